"""The inspector: prompts, memory, variables, effects, timeline, and ways out."""

import re
from pathlib import Path

from playwright.sync_api import expect

from browser_tests.reader import Open, choose, conversation_of, ended, say, turn
from tests.support.service import Service
from tests.support.turns import wait_for_gate


def test_the_inspector_shows_and_changes_the_memory(opened: Open, service: Service) -> None:
    page = opened(service)
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
    page.locator("#policy").select_option("keep_last_n_steps")
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


def test_effects_of_a_waiting_turn_are_followed_to_its_end(opened: Open, service: Service, gate: Path) -> None:
    page = opened(service)
    choose(page, "mailer")
    say(page, [{"call": [["send_email", {"to": "ada", "text": "hi"}]]}, wait_for_gate(gate), {"say": "sent"}])
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


def test_a_past_prompt_is_rebuilt_and_marked(opened: Open, service: Service) -> None:
    page = opened(service)
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
