"""The description of the HTTP interface, under the page's content security policy."""

from collections.abc import Callable

from playwright.sync_api import Page

from browser_tests.reader import try_liveness
from tests.support.service import Service


def test_a_call_can_be_tried_in_the_docs(opened: Callable[..., Page], service: Service) -> None:
    try_liveness(opened(service, "/docs"))
