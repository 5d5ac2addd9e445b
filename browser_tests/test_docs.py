"""The description of the HTTP interface, under the page's content security policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from browser_tests.reader import try_liveness

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    from tests.support.service import Service


def test_a_call_can_be_tried_in_the_docs(opened: Callable[..., Page], service: Service) -> None:
    try_liveness(opened(service, "/docs"))
