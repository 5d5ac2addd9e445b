"""A turn on the page, while it runs and after its end."""

import json
import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from browser_tests.reader import answer, choose, ended, say, turn, wait


def test_an_answer_appears_piece_by_piece_before_the_turn_ends(page: Page, gate: Path) -> None:
    say(page, [{"say": ["Hello <end_", wait(gate), "code>world."]}])  # a mark of a model is never shown
    expect(answer(page)).to_have_text("Hello")
    expect(turn(page)).to_have_attribute("data-status", "running")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    expect(page.locator(".work-text")).to_have_text(re.compile("^Writing the answer"))
    gate.touch()
    expect(answer(page)).to_have_text("Hello world.")
    ended(page)
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    announcement = page.locator("#announcement[role=status][aria-live=polite]")
    expect(announcement).to_contain_text("Answer: Hello")
    expect(page.locator(".work")).to_be_hidden()  # an answer of one step
    page.get_by_role("button", name="Step", exact=True).click()
    expect(page.locator(".step-title")).to_have_text("Answer")


def test_a_long_silence_says_what_happens(page: Page, gate: Path) -> None:
    end = gate.with_name("end")
    script: list[dict[str, Any]] = [
        {"think": [wait(gate), "So."], "call": [["echo", {"text": "a"}]]},
        {"say": [wait(end), "Done."]},
    ]
    say(page, script)
    status = page.locator(".work-text")
    expect(status).to_have_text(re.compile(r"^Reading ≈ 1,\d00 tokens · \d+ s$"))  # the service estimates
    gate.touch()
    expect(status).to_have_text(re.compile(r"^Reading ≈ [12]\d tokens"))  # the model has counted
    end.touch()
    ended(page)


def test_a_step_shows_its_thought_its_calls_and_their_results(page: Page, gate: Path) -> None:
    calls: list[Any] = [["echo", {"text": "a sound"}], ["fail", {"reason": "no luck"}]]
    usage = {"prompt_tokens_details": {"cached_tokens": 8}}
    say(page, [{"think": ["I try ", "both."], "call": calls, "usage": usage}, {"say": [wait(gate), "So it is."]}])
    first = page.locator(".step").first
    expect(first).to_have_attribute("data-state", "wrong")
    first.locator("summary").first.click()
    expect(first.locator(".part-thought")).to_contain_text("I try both.")
    echo, fail = first.locator(".call").all()
    expect(echo).to_have_attribute("data-state", "done")
    expect(echo.locator(".argument")).to_have_text("texta sound")
    expect(echo.locator(".result")).to_contain_text("a sound")
    expect(fail).to_have_attribute("data-state", "wrong")
    expect(fail.locator(".result")).to_contain_text("ValueError: no luck")
    expect(first.locator(".part-wrong")).to_have_count(0)  # the call shows the error
    expect(first.locator(".preview").first).to_have_text("Error: ValueError: no luck")
    expect(first.locator("summary .figures").first).to_contain_text("10 (8 cached) → 5 tokens")
    gate.touch()
    expect(answer(page)).to_have_text("So it is.")
    expect(page.locator(".turn-foot")).to_contain_text("20 (8 cached) → 10 tokens")


def test_code_its_output_and_its_error_are_shown(page: Page) -> None:
    choose(page, "coder")
    first = "Thought:  I print.\n<code>\nprint(echo(text='from code'))\n41 + 1\n</code>"
    broken = "Thought: I break it.\n<code>\nmissing + 1\n</code>"
    last = "Thought: I end.\n<code>\nfinal_answer('over')\n</code>"
    say(page, [{"write": [*first]}, {"write": [broken]}, {"write": [last]}])
    expect(answer(page)).to_have_text("over")
    one, two, last_one = page.locator(".step").all()
    one.locator("summary").first.click()
    expect(one.locator(".part-thought .text")).to_have_text("I print.")
    expect(one.locator(".part-code pre")).to_have_text("print(echo(text='from code'))\n41 + 1")
    expect(one.locator(".call-name")).to_have_text("echo")
    expect(one.locator(".part-output pre").first).to_have_text("from code")
    expect(one.locator(".part-output pre").last).to_have_text("42")
    expect(two).to_have_attribute("data-state", "wrong")
    expect(two.locator(".preview").first).to_contain_text("missing")
    expect(last_one.locator("summary")).to_contain_text("Code and answerfinal_answer('over')")


def test_a_stop_ends_the_turn_and_the_conversation_goes_on(page: Page, gate: Path) -> None:
    say(page, [{"say": ["It begins ", wait(gate), "and never ends."]}])
    expect(answer(page)).to_have_text("It begins")
    page.locator("#busy").click()
    kept = page.get_by_role("option", name="Stop this turn, keep its steps")
    expect(kept).to_be_visible()
    page.keyboard.press("Escape")
    expect(kept).to_be_hidden()
    assert page.locator("#stop").inner_text() == "Stop"  # not Stopping
    page.keyboard.press("Escape")
    ended(page, "cancelled")
    expect(answer(page)).to_have_text("It begins")
    expect(page.locator(".step")).to_have_attribute("data-state", "broken")
    expect(page.locator(".outcome")).to_contain_text("Stopped.")
    say(page, [{"say": ["Here again."]}])
    expect(answer(page).last).to_have_text("Here again.")


def test_the_steps_of_a_managed_agent_stand_inside_the_call(page: Page, gate: Path) -> None:
    choose(page, "leader")
    task = [{"think": ["I help."], "call": [["echo", {"text": "deep"}]]}, {"say": ["From below", wait(gate)]}]
    say(page, [{"call": [["helper", {"task": json.dumps(task)}]]}, {"say": ["From above."]}])
    call = page.locator("#turns .played > .work > .steps > .step > details > .step-body > .call")
    expect(call.locator(".call-name").first).to_have_text("helper")
    inner = call.locator("> .steps > .step")
    expect(inner).to_have_count(2)
    expect(inner.first.locator(".call-name")).to_have_text("echo")
    expect(inner.first.locator(".owner")).to_have_text("helper")
    expect(inner.last.locator(".part-answer .text")).to_have_text("From below")
    outside, inside = call.bounding_box(), inner.first.bounding_box()
    assert outside
    assert inside
    assert inside["x"] > outside["x"]
    gate.touch()
    expect(answer(page)).to_have_text("From above.")
