"""Accessibility of the page with a keyboard alone, on a phone, in light and dark, and its inspector."""

import json
import re
from pathlib import Path

from playwright.sync_api import Page, Route, expect

from browser_tests.reader import (
    PHONE,
    Open,
    answer,
    choose,
    conversation_of,
    ended,
    fits,
    forgive,
    message,
    png,
    reach,
    say,
    send,
    turn,
    wait,
)
from tests.support.service import Gate, Service

DARK = "rgb(23, 24, 27)"


def test_everything_can_be_done_with_the_keyboard_alone(page: Page, gate: Path) -> None:
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
    expect(page.get_by_role("menuitem", name="Rename")).to_be_focused()
    keys.press("Escape")
    expect(page.get_by_role("menu")).to_be_hidden()
    expect(page.locator("#list .row:first-child button").first).to_be_focused()
    keys.press("Enter")
    keys.press("ArrowUp")
    expect(page.get_by_role("menuitem", name="Delete")).to_be_focused()
    keys.press("Enter")
    expect(page.locator("#welcome")).to_be_visible()
    reach(page, "#undo", "Tab")
    keys.press("Enter")
    expect(page.locator("#list .row:first-child a").first).to_be_focused()
    keys.press("?")
    expect(page.get_by_role("dialog", name="Shortcuts")).to_be_visible()
    keys.press("Escape")
    keys.press("j")
    expect(turn(page)).to_have_count(1)
    keys.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    keys.type("?j")
    expect(page.get_by_role("searchbox")).to_have_value("?j")


def test_keys_can_be_turned_off(opened: Open, service: Service) -> None:
    page = opened(service, is_alone=True)
    page.get_by_role("button", name="Shortcuts").click()
    page.get_by_label("Use these shortcuts").uncheck()
    page.get_by_role("button", name="Close", exact=True).click()
    page.reload()
    page.get_by_role("button", name="New conversation").focus()
    page.keyboard.press("?")
    page.keyboard.press("/")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("searchbox")).not_to_be_focused()


def test_a_theme_holds_from_the_start_of_the_next_page(opened: Open, service: Service, sins: list[str]) -> None:
    page = opened(service, color_scheme="light")
    page.get_by_role("radio", name="Dark").check()
    expect(page.locator("body")).to_have_css("background-color", DARK)
    page.route("**/page.js", lambda route: route.abort())
    page.reload(wait_until="commit")
    expect(page.locator("body")).to_have_css("background-color", DARK)
    page.unroute("**/page.js")
    page.reload()
    forgive(sins, "ERR_FAILED")
    expect(page.get_by_role("radio", name="Dark")).to_be_checked()
    page.get_by_role("radio", name="As the system").check()
    expect(page.locator("body")).not_to_have_css("background-color", DARK)


def test_options_of_a_message_are_sent(page: Page) -> None:
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
    choose(page, "demo-code")
    expect(page.get_by_role("button", name="What is 2 ** 64?")).to_be_in_viewport(ratio=1)
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


def test_the_inspector_shows_and_changes_the_memory(page: Page, service: Service) -> None:
    choose(page, "coder")
    block = "<code>\ntotal = [1, 2]\nprint(echo(text='hi'))\n</code>"
    say(page, [{"write": [block]}, {"write": ["<code>\nfinal_answer('done')\n</code>"]}])
    ended(page)
    page.get_by_role("button", name="Inspector", exact=True).click()
    panel = page.get_by_role("tabpanel")
    expect(panel).to_contain_text("The next prompt as the model gets it")
    page.get_by_role("tab", name="Variables").click()
    expect(panel.locator(".variable code")).to_have_text("total")
    page.get_by_role("tab", name="Timeline").click()
    expect(panel.locator(".bar-tool")).to_have_count(2)
    page.get_by_role("tab", name="Memory").click()
    policy = page.get_by_role("combobox", name="Policy")
    policy.press("Enter")
    expect(page.get_by_role("option", name="the agent's own")).to_be_focused()
    page.keyboard.type("keep")
    page.keyboard.press("Enter")
    expect(policy).to_have_value("keep_last_n_steps")
    page.get_by_label("n", exact=True).fill("1")
    expect(panel.locator(".estimate")).to_contain_text("1 step left out")
    page.get_by_role("button", name="Use this policy").click()
    expect(panel.locator(".estimate")).to_contain_text("holds from the next turn")
    here = conversation_of(page)
    assert service.get(here)["policy"] == [{"name": "keep_last_n_steps", "n": 1}]
    page.locator("#policy").select_option("")  # the agent's own, which is none
    expect(panel.locator(".estimate")).to_contain_text("0 steps left out")
    page.get_by_role("button", name="Prune now").click()
    expect(panel.locator(".estimate")).to_contain_text("0 steps left the memory")
    page.get_by_role("tab", name="Share").click()
    with page.expect_download() as found:
        page.get_by_role("button", name="Export").click()
    page.locator("#import-file").set_input_files(found.value.path())
    expect(page).not_to_have_url(re.compile(here.rpartition("/")[2]))
    expect(turn(page)).to_have_count(1)


def test_files_of_the_workspace_are_shown_downloaded_and_refreshed(page: Page, service: Service, gate: Path) -> None:
    choose(page, "keeper")
    evil = "<script>alert(1)</script>"
    names = ("notes/plan.md", "page.html", "mark.svg")
    say(page, [{"call": [["write_file", {"path": name, "content": evil}] for name in names]}, {"say": ["Written."]}])
    ended(page)
    folder = service.folder / "data/workspaces/local" / conversation_of(page).rpartition("/")[2]
    (folder / "cup.png").write_bytes(png("cup.png", 40)["buffer"])
    (folder / "data.bin").write_bytes(b"\0\1")
    (folder / "long.txt").write_text("ü" * 60_000)
    page.get_by_role("button", name="Files", exact=True).click()
    rows = page.locator(".workspace-file")
    expect(rows.locator("code")).to_have_text(
        ["cup.png", "data.bin", "long.txt", "mark.svg", "notes/plan.md", "page.html"]
    )
    for summary in rows.locator("summary").all():
        summary.click()
    expect(rows.nth(0).locator("img")).to_have_js_property("naturalWidth", 40)
    expect(rows.nth(1)).to_contain_text("It is no text")
    expect(rows.nth(2)).to_contain_text("The first 64.0 KiB of 117.2 KiB.")
    assert len(rows.nth(2).locator("pre").inner_text()) == 32 * 1024
    for place in (3, 4, 5):
        expect(rows.nth(place).locator("pre")).to_have_text(evil)
    with page.expect_download() as found:
        page.get_by_role("button", name="Download notes/plan.md").click()
    assert found.value.path().read_text() == evil
    plan = {"path": "notes/plan.md", "content": "Buy milk."}
    say(page, [{"call": [["write_file", plan]]}, {"say": [wait(gate), "Changed."]}])
    rows.nth(3).locator("summary").focus()
    gate.touch()
    expect(rows.nth(4).locator(".figures")).to_contain_text("9 B")
    expect(rows.nth(3).locator("pre")).to_be_visible()  # the others stay as they were
    expect(rows.nth(3).locator("summary")).to_be_focused()
    rows.nth(4).locator("summary").click()
    expect(rows.nth(4).locator("pre")).to_have_text("Buy milk.")

    def cut(route: Route) -> None:
        answered = route.fetch()
        route.fulfill(response=answered, json=answered.json() | {"complete": False})

    page.route("**/workspace/files", cut)
    page.get_by_role("tab", name="Files").click()
    expect(page.get_by_role("tabpanel")).to_contain_text("There are more files.")


def test_effects_of_a_waiting_turn_are_followed_to_its_end(page: Page, gate: Path) -> None:
    choose(page, "mailer")
    say(page, [{"call": [["send_email", {"to": "ada", "text": "hi"}]]}, Gate(gate).script, {"say": "sent"}])
    ended(page, "waiting")
    page.get_by_role("button", name="Inspector", exact=True).click()
    panel = page.get_by_role("tabpanel")
    page.get_by_role("tab", name="Effects").click()
    expect(panel).to_contain_text("Turn 1 waits for a person. ")
    rows = panel.locator(".effects li")
    expect(rows.locator(".effect-name")).to_have_text(["A person was asked", "Model call"])
    page.get_by_role("button", name="Approve").click()
    expect(panel).to_contain_text("Turn 1 runs in attempt 2")
    waiting = rows.filter(has_text="wait_for")
    expect(waiting).to_contain_text("runs now")
    expect(waiting).to_contain_text("attempt 2")
    expect(rows.filter(has_text="send_email")).to_contain_text("done")
    gate.touch()
    expect(panel).to_contain_text("No turn runs or waits.")
    expect(rows).to_have_count(0)
    page.get_by_role("tab", name="Timeline").click()
    expect(panel.locator(".timeline text").filter(has_text="Waits for a person")).to_have_count(1)
    expect(panel.locator(".bar-replay")).to_have_count(1)
    expect(panel).to_contain_text("It was played in 2 attempts.")


def test_a_past_prompt_is_rebuilt_and_marked(page: Page, service: Service) -> None:
    choose(page, "talker")
    say(page, [{"think": ["So."], "call": [["echo", {"text": "apple"}]]}, {"say": ["first answer"]}])
    ended(page)
    say(page, [{"say": ["second answer"]}])
    ended(page)
    service.client.patch(
        conversation_of(page),
        json={"policy": {"name": "keep_last_n_steps", "n": 1}},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    page.reload()
    turn(page).first.get_by_role("button", name="Prompt").click()
    panel = page.get_by_role("tabpanel")
    expect(panel.locator(".rebuilt")).to_have_text("Rebuilt. ")
    messages = panel.locator(".prompt-message")
    expect(messages).to_have_count(2)
    expect(messages.last.locator(".figures")).to_contain_text("≈")
    expect(panel).to_contain_text("The model itself counted 10 tokens")
    page.locator("#prompt-step").select_option("2")
    expect(messages.last.locator("pre")).to_contain_text("apple")
    page.locator("#prompt-of").select_option("")
    expect(panel).to_contain_text("The next prompt as the model gets it")
    expect(panel).to_contain_text("The memory policy (keep last n steps n = 1) leaves out")
    page.get_by_role("tab", name="Memory").click()
    expect(page.locator("#policy")).to_have_value("keep_last_n_steps")
