"""Accessibility of the page: with a keyboard alone, on a phone, in light and dark."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import expect

from browser_tests.accessibility import breaches
from browser_tests.reader import PHONE, Open, answer, choose, fits, reach, say, turn, wait
from browser_tests.test_page_markdown import REPORT
from tests.support.service import Service


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
    expect(page.locator("#welcome")).to_be_visible()
    reach(page, "#undo", "Tab")
    keys.press("Enter")
    expect(page.locator("#list .row:first-child a")).to_be_focused()
    keys.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    keys.press("Escape")
    keys.press("j")
    expect(turn(page)).to_have_count(1)
    keys.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    keys.type("?j")
    expect(page.get_by_role("searchbox")).to_have_value("?j")


def test_keys_can_be_turned_off(opened: Open, service: Service) -> None:
    page = opened(service)
    page.get_by_role("button", name="Keys").click()
    page.get_by_label("Use these keys").uncheck()
    page.get_by_role("button", name="Close", exact=True).click()
    page.reload()
    page.get_by_role("button", name="New conversation").focus()
    page.keyboard.press("?")
    page.keyboard.press("/")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("searchbox")).not_to_be_focused()


def test_an_agent_has_its_details(opened: Open, service: Service) -> None:
    page = opened(service)
    page.get_by_role("button", name="Details of coder").click()
    dialog = page.get_by_role("dialog", name="coder")
    expect(dialog).to_contain_text("Writes the code that the message says.")
    expect(dialog.locator(".tool").first).to_contain_text("text string: any text.")
    dialog.get_by_role("button", name="Close").click()
    expect(page.get_by_role("radio", name="coder", exact=True)).not_to_be_checked()
    page.get_by_role("button", name="Details of picky").click()
    expect(page.get_by_role("dialog", name="picky").locator(".facts")).to_contain_text("keep last n steps n = 50")


def test_options_of_a_message_are_sent(opened: Open, service: Service) -> None:
    page = opened(service)
    page.get_by_role("button", name="Options").click()
    page.get_by_label("Begin anew").check()
    page.get_by_label("Most steps").fill("3")
    page.get_by_label("Variables").fill("{oops")
    say(page, [{"say": ["Sent."]}])
    expect(page.get_by_role("alert")).to_contain_text("a JSON object")
    page.get_by_label("Variables").fill('{"city": "Bonn"}')
    with page.expect_request("**/turn") as sent:
        page.get_by_role("textbox", name="Message").press("Enter")
    body = sent.value.post_data_json or {}
    assert (body["reset"], body["max_steps"], body["additional_args"]) == (True, 3, {"city": "Bonn"})
    expect(turn(page)).to_have_attribute("data-status", "finished")
    expect(page.get_by_label("Most steps")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_rule_of_accessibility_is_broken(opened: Open, service: Service, scheme: str) -> None:
    page = opened(service, color_scheme=scheme)
    assert breaches(page) == []
    task = [{"think": ["**I** help."], "call": [["echo", {"text": "deep"}], ["fail", {"reason": "b"}]]}, {"say": ["x"]}]
    say(page, [{"call": [["helper", {"task": json.dumps(task)}]]}, {"say": [REPORT]}])
    expect(turn(page)).to_have_attribute("data-status", "finished")
    say(page, [{"raise": "out of order"}])
    expect(turn(page).last).to_have_attribute("data-status", "failed")
    page.locator("details").evaluate_all("(all) => all.forEach((details) => (details.open = true))")
    page.get_by_role("button", name="Options").click()
    assert breaches(page) == []
    page.get_by_role("button", name="Keys").click()
    assert breaches(page) == []


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
