"""Accessibility of the page: with a keyboard alone, on a phone, in light and dark."""

import json
from pathlib import Path

from playwright.sync_api import expect

from browser_tests.reader import PHONE, Open, answer, choose, ended, fits, message, reach, say, send, turn, wait
from tests.support.service import Service


def test_everything_can_be_done_with_the_keyboard_alone(opened: Open, service: Service, gate: Path) -> None:
    page = opened(service)
    keys = page.keyboard
    expect(message(page)).to_be_focused()
    reach(page, ".skip", "Shift+Tab")
    keys.press("Enter")
    expect(message(page)).to_be_focused()
    reach(page, "input[name=agent]", "Shift+Tab")
    keys.press("ArrowDown")
    expect(page.get_by_role("radio", name="coder", exact=True)).to_be_checked()
    keys.press("ArrowUp")
    reach(page, "#message", "Tab")
    keys.type("  ")
    keys.press("Enter")  # sends nothing
    expect(message(page)).to_have_value("  ")
    first, last = json.dumps([{"say": ["Hello ", wait(gate), "world."]}]).split(" ", 1)
    keys.type(first)
    keys.press("Shift+Enter")
    keys.type(last)
    keys.press("Enter")
    expect(answer(page)).to_have_text("Hello")
    assert "\n" in page.locator(".said-text").inner_text()
    reach(page, "#stop", "Tab")
    keys.press("Enter")
    ended(page, "cancelled")
    expect(message(page)).to_be_focused()
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
    page = opened(service, is_alone=True)
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
    send(page, [{"say": ["Sent."]}])
    expect(page.get_by_role("alert")).to_contain_text("a JSON object")
    page.get_by_label("Variables").fill('{"city": "Bonn"}')
    with page.expect_request("**/turn") as sent:
        message(page).press("Enter")
    body = sent.value.post_data_json or {}
    assert (body["reset"], body["max_steps"], body["additional_args"]) == (True, 3, {"city": "Bonn"})
    ended(page)
    expect(page.get_by_label("Most steps")).to_be_hidden()


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
    ended(page)
    assert fits(page)
    expect(page.locator("#list")).not_to_be_in_viewport()
    page.get_by_role("button", name="Conversations").click()
    expect(page.get_by_role("button", name="Close the list")).to_be_focused()
    expect(page.locator("#main")).to_have_js_property("inert", True)
    assert fits(page)
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Conversations")).to_be_focused()
    expect(page.locator("#main")).to_have_js_property("inert", False)
