"""Turns that failed, were stopped or wait: their words, and the ways to go on."""

import json
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from browser_tests.reader import Open, answer, conversation_of, ended, message, png, say, turn, wait
from tests.support.service import Service


def messages(service: Service, page: Page) -> str:
    """Return the next prompt of the open conversation as one text."""
    return json.dumps(service.get(f"{conversation_of(page)}/messages"))


def test_a_failed_turn_says_what_is_kept_and_a_retry_leaves_it_out(opened: Open, service: Service, gate: Path) -> None:
    page = opened(service)
    page.locator("#file").set_input_files([png("one.png", 40)])
    script: list[dict[str, Any]] = [
        {"call": [["echo", {"text": "kept-step"}]]},
        {"fail_until": str(gate), "say": ["Now it works."]},
    ]
    say(page, script, title="Try")
    ended(page, "failed")
    outcome = page.locator(".outcome")
    expect(outcome).to_contain_text("This turn failed.")
    expect(page.locator("#announcement")).to_contain_text("This turn failed.")
    expect(outcome).to_contain_text("In the memory: your message and 1 finished step.")
    assert messages(service, page).count("kept-step") > 1
    gate.touch()
    page.get_by_role("button", name="Retry").click()
    expect(answer(page).last).to_have_text("Now it works.")
    expect(turn(page)).to_have_count(2)
    expect(page.locator(".outcome").first).to_contain_text("Rolled back. Not in the memory")
    expect(turn(page).last.locator(".said .picture img")).to_have_count(1)
    assert messages(service, page).count("Try ") == 1


def test_an_edited_message_goes_to_a_fork(opened: Open, service: Service) -> None:
    page = opened(service)
    say(page, [{"say": ["One."]}])
    expect(answer(page)).to_have_text("One.")
    say(page, [{"say": ["Two."]}])
    expect(answer(page).last).to_have_text("Two.")
    first = page.url
    page.get_by_role("button", name="Edit").last.click()
    expect(page).not_to_have_url(first)
    expect(message(page)).to_have_value('[{"say": ["Two."]}]')
    expect(page.locator("#origin")).to_contain_text("after turn 1")
    expect(answer(page)).to_have_text("One.")
    say(page, [{"say": ["Three."]}])
    expect(answer(page)).to_have_text(["One.", "Three."])
    page.locator("#origin a").click()
    expect(answer(page)).to_have_text(["One.", "Two."])


def test_a_message_that_is_too_long_is_forgotten(opened: Open, service: Service) -> None:
    page = opened(service)
    say(page, [{"raise": "beyond the context length"}], title="Large")
    ended(page, "failed")
    page.get_by_role("button", name="Forget").click()
    expect(page.locator(".outcome").first).to_contain_text("Rolled back. Not in the memory")
    expect(page.get_by_role("button", name="Forget")).to_have_count(0)
    say(page, [{"say": ["It fits."]}])
    expect(answer(page).last).to_have_text("It fits.")
    assert "Large" not in messages(service, page)


def test_a_message_is_sent_again_with_its_approvals_and_options(opened: Open, service: Service) -> None:
    options = {"approve": ["echo"], "max_steps": 3, "deadline_s": 50, "additional_args": {"city": "Bonn"}}
    body = {"agent": "talker", "message": json.dumps([{"raise": "once"}]), **options}
    sent = service.post("/turn", **body).json()
    page = opened(service, f"/#/c/{sent['conversation_id']}")
    page.get_by_role("button", name="Retry").click()
    expect(turn(page)).to_have_count(2)
    ended(page, "failed")
    page.get_by_role("button", name="Edit").last.click()
    expect(page.locator("#origin")).to_be_visible()
    expect(message(page)).to_have_value(str(body["message"]))
    say(page, [{"call": [["echo", {"text": "asked"}]]}])
    expect(page.locator(".request")).to_have_count(1)
    for path in (f"/conversations/{sent['conversation_id']}", conversation_of(page)):
        again = service.get(f"{path}/turns/2")
        assert {**again["options"], "additional_args": again["additional_args"]}.items() >= options.items()


def test_messages_queue_while_a_turn_runs_and_one_is_taken_out(opened: Open, service: Service, gate: Path) -> None:
    page = opened(service)
    say(page, [{"say": ["One ", wait(gate), "ends."]}])
    expect(answer(page)).to_have_text("One")
    for number in ("Two.", "Three."):
        say(page, [{"say": [number]}])
    expect(turn(page)).to_have_count(3)
    expect(turn(page).nth(1)).to_have_attribute("data-status", "queued")
    turn(page).nth(1).get_by_role("button", name="Remove from the queue").click()
    gate.touch()
    expect(answer(page).last).to_have_text("Three.")
    expect(turn(page).nth(1)).to_have_attribute("data-status", "cancelled")
    expect(answer(page).first).to_have_text("One ends.")


def test_a_message_stops_the_running_turn_and_keeps_or_drops_its_steps(
    opened: Open, service: Service, gate: Path
) -> None:
    page = opened(service)
    for mode, expected in (("interrupt", "Stopped."), ("rollback", "Rolled back.")):
        say(page, [{"call": [["echo", {"text": mode}]]}, {"say": ["Never ", wait(gate), "ends."]}])
        expect(answer(page).last).to_have_text("Never")
        page.locator("#busy").select_option(mode)
        say(page, [{"say": [f"After {mode}."]}])
        expect(answer(page).last).to_have_text(f"After {mode}.")
        expect(page.locator(".outcome").filter(has_text=expected)).to_have_count(1)
    prompt = messages(service, page)
    assert "interrupt" in prompt
    assert "rollback" not in prompt.replace("After rollback", "")
