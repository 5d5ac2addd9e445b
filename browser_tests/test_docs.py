"""The description of the HTTP interface, under the page's content security policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    from tests.support.service import Service


def test_a_call_can_be_tried_in_the_docs(opened: Callable[..., Page], service: Service) -> None:
    page = opened(service, "/docs")
    call = page.locator("#operations-health-getLiveness")
    call.get_by_role("button", name="GET /livez Return 200 while the process runs").click()
    call.get_by_role("button", name="Try it out").click()
    call.get_by_role("button", name="Execute").click()
    expect(call.locator(".live-responses-table .response-col_status").last).to_contain_text("200")
