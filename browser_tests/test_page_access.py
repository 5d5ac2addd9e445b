"""Accessibility of the page: with a keyboard alone, on a phone, in light and dark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from browser_tests.reader import PHONE, answer, choose, fits, reach, say, turn, wait, weak_texts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.support.service import Service

    Open = Callable[..., Page]


def test_everything_can_be_done_with_the_keyboard_alone(opened: Open, service: Service, gate: Path) -> None:
    page = opened(service)
    keys = page.keyboard
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    reach(page, ".skip", "Shift+Tab")
    keys.press("Enter")
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    reach(page, "input[name=agent]", "Shift+Tab")
    keys.press("ArrowDown")
    expect(page.get_by_role("radio", name="coder", exact=True)).to_be_checked()
    keys.press("ArrowUp")
    reach(page, "#message", "Tab")
    first, last = json.dumps([{"say": ["Hello ", wait(gate), "world."]}]).split(" ", 1)
    keys.type(first)
    keys.press("Shift+Enter")
    keys.type(last)
    keys.press("Enter")
    expect(answer(page)).to_have_text("Hello")
    assert "\n" in page.locator(".said-text").inner_text()
    reach(page, "#stop", "Tab")
    keys.press("Enter")
    expect(turn(page)).to_have_attribute("data-status", "cancelled")
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    reach(page, ".work > summary", "Shift+Tab")
    keys.press("Enter")
    expect(page.locator(".work")).not_to_have_attribute("open", "")
    reach(page, "#list .row:first-child button", "Shift+Tab")
    keys.press("Enter")
    expect(page.get_by_role("button", name="Keep it")).to_be_focused()
    keys.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.locator("#list .row button").first).to_be_focused()
    keys.press("Enter")
    keys.press("Tab")
    keys.press("Enter")
    expect(page.locator("#welcome")).to_be_visible()


def test_a_phone_shows_all_without_scrolling_sideways(opened: Open, service: Service, gate: Path) -> None:
    page = opened(service, **PHONE)
    assert fits(page)
    choose(page, "leader")
    wide = "w" * 300
    task = [{"think": [wide], "call": [["echo", {"text": wide}], ["fail", {"reason": wide}]]}, {"say": [wide]}]
    code = f"`{wide}`\n```\n{wide}\n```\n"
    say(page, [{"think": [wide], "call": [["helper", {"task": json.dumps(task)}]]}, {"say": [wide, code, wait(gate)]}])
    expect(answer(page).locator("pre")).to_be_visible()
    page.locator(".step > details").evaluate_all("(all) => all.forEach((details) => (details.open = true))")
    assert fits(page)
    gate.touch()
    expect(turn(page)).to_have_attribute("data-status", "finished")
    assert fits(page)
    expect(page.locator("#list")).not_to_be_in_viewport()
    page.get_by_role("button", name="Conversations").click()
    expect(page.get_by_role("button", name="Close the list")).to_be_focused()
    assert fits(page)
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Conversations")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(opened: Open, service: Service, scheme: str) -> None:
    page = opened(service, color_scheme=scheme)
    say(page, [{"think": ["Hm."], "call": [["echo", {"text": "a"}], ["fail", {"reason": "b"}]]}, {"say": ["`Yes`."]}])
    expect(turn(page)).to_have_attribute("data-status", "finished")
    page.locator(".step summary").first.click()
    assert weak_texts(page) == []
