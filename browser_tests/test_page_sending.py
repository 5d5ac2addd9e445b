"""Messages with images, refused messages, and turns that failed, were stopped or wait."""

import json
import re
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from playwright.sync_api import FilePayload, Page, expect

from browser_tests.reader import (
    Open,
    act,
    answer,
    conversation_of,
    ended,
    expired,
    forgive,
    message,
    paste,
    png,
    say,
    send,
    turn,
    wait,
)
from tests.support.service import Service, wait_until


def test_a_refused_message_stays_in_its_field(page: Page, service: Service, gate: Path, sins: list[str]) -> None:
    say(page, [{"say": ["One."]}])
    expect(turn(page)).to_have_attribute("data-status", "finished")
    body = {"message": json.dumps([{"say": ["From elsewhere ", wait(gate), "comes this."]}])}
    sent = service.client.post(f"{conversation_of(page)}/turns", json=body, headers={"Prefer": "respond-async"})
    assert sent.status_code == HTTPStatus.ACCEPTED
    mine = [{"say": ["Mine."]}]
    send(page, mine)
    expect(page.get_by_role("alert")).to_contain_text("running")
    expect(message(page)).to_have_value(json.dumps(mine))
    expect(answer(page).last).to_have_text("From elsewhere")
    gate.touch()
    expect(answer(page).last).to_have_text("From elsewhere comes this.")
    message(page).press("Enter")
    expect(answer(page).last).to_have_text("Mine.")
    expect(message(page)).to_have_value("")
    expect(page.get_by_role("alert")).to_be_hidden()
    forgive(sins, "409")


def test_an_unreachable_service_shows_an_error_and_the_message_stays(page: Page, sins: list[str]) -> None:
    detail = "The store does not answer."
    problem = json.dumps({"status": 503, "code": "store_unavailable", "detail": detail})
    page.route("**/turn", lambda r: r.fulfill(status=503, content_type="application/problem+json", body=problem))
    mine = [{"say": ["At last."]}]
    send(page, mine)
    expect(page.get_by_role("alert")).to_have_text(detail)
    expect(message(page)).to_have_value(json.dumps(mine))
    page.unroute("**/turn")
    message(page).press("Enter")
    expect(answer(page)).to_have_text("At last.")
    forgive(sins, "503")


def test_a_chosen_agent_offers_its_examples(page: Page) -> None:
    page.get_by_role("radio", name="demo-code", exact=True).check()
    page.get_by_role("button", name="What is 2 ** 64?").click()
    expect(message(page)).to_have_value("What is 2 ** 64?")
    message(page).press("Enter")
    expect(answer(page)).to_contain_text("18446744073709551616")


def test_images_are_attached_sent_shown_and_opened(page: Page) -> None:
    page.locator("#file").set_input_files([png("one.png", 40), png("two.png", 60)])
    paste(page, png("three.png", 80))
    expect(page.locator("#attached img")).to_have_count(3)
    page.get_by_role("button", name="Remove one.png").click()
    expect(page.locator("#attached img")).to_have_count(2)
    with page.expect_request("**/turn") as sent:
        say(page, [{"call": [["picture", {"width": 220}]]}, {"say": ["image.png"]}], title="Draw")
    assert [image[:22] for image in (sent.value.post_data_json or {})["images"]] == ["data:image/png;base64,"] * 2
    drawn = page.locator(".answer-pictures img")
    expect(drawn).to_have_js_property("naturalWidth", 220)
    expect(page.locator("#attached")).to_be_hidden()
    expect(page.locator(".said .picture img")).to_have_count(2)
    expect(page.locator(".step > .pictures img")).to_have_count(0)  # the message and the answer show them
    page.locator(".answer-pictures button").click()
    expect(page.locator("#viewer img")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#viewer")).to_be_hidden()
    page.reload()
    expect(drawn).to_have_js_property("naturalWidth", 220)
    expect(page.locator(".said .picture img")).to_have_count(2)
    page.wait_for_function("() => [...document.querySelectorAll('.said img')].every((i) => i.naturalWidth)")


def test_files_are_attached_sent_shown_and_downloaded(page: Page) -> None:
    page.locator("#file").set_input_files({"name": "a.exe", "mimeType": "text/plain", "buffer": b"text"})
    expect(page.get_by_role("alert")).to_contain_text("Only PNG, JPEG, GIF and WebP images, texts")
    expect(page.locator("#attached")).to_be_hidden()
    table = FilePayload(name="cities of all.CSV", mimeType="", buffer=b"city\nParis\n")
    empty = FilePayload(name="empty.md", mimeType="", buffer=b"")
    contract = FilePayload(name="contract.pdf", mimeType="application/pdf", buffer=b"%PDF-1.4 \x00\xff")
    page.locator("#file").set_input_files([table, png("one.png", 40), contract, empty])
    expect(page.locator("#attached .file")).to_have_text(["cities of all.CSV", "contract.pdf", "empty.md"])
    say(page, [{"say": ["contract.pdf"]}])
    expect(page.locator(".answer-pictures .file")).to_have_text("contract.pdf")
    expect(page.locator("#attached")).to_be_hidden()
    assert downloaded(page, ".said .file >> nth=0") == (table["name"], table["buffer"])  # of this browser
    page.reload()
    expect(page.locator(".said .file")).to_have_text(["cities of all.CSV", "contract.pdf", "empty.md"])
    expect(page.locator(".said .picture img")).to_have_count(1)
    assert downloaded(page, ".said .file >> nth=0") == (table["name"], table["buffer"])
    assert downloaded(page, ".answer-pictures .file") == (contract["name"], contract["buffer"])


def downloaded(page: Page, place: str) -> tuple[str, bytes]:
    with page.expect_download() as found:
        page.locator(place).click()
    return found.value.suggested_filename, found.value.path().read_bytes()


def messages(service: Service, page: Page) -> str:
    """Return the next prompt of the open conversation as one text."""
    return json.dumps(service.get(f"{conversation_of(page)}/prompt"))


def test_a_failed_turn_says_what_is_kept_and_a_retry_leaves_it_out(page: Page, service: Service, gate: Path) -> None:
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
    message(page).fill("a draft")
    page.get_by_role("button", name="Retry").click()
    expect(answer(page).last).to_have_text("Now it works.")
    expect(turn(page)).to_have_count(2)
    expect(page.locator(".outcome").first).to_contain_text("Rolled back. Not in the memory")
    expect(turn(page).last.locator(".said .picture img")).to_have_count(1)
    expect(message(page)).to_have_value("a draft")
    assert messages(service, page).count("Try ") == 1


def test_a_message_goes_to_the_conversation_where_it_was_sent(opened: Open, service: Service) -> None:
    script, fails, mine = '[{"say": ["One."]}]', '[{"raise": "no"}]', '[{"say": ["Mine."]}]'
    first, second = (service.post("/turn", agent="talker", message=script).json()["conversation_id"] for _ in range(2))
    service.post("/turn", conversation_id=first, message=fails)
    page = opened(service, f"/#/c/{first}")
    leave = "(button, id) => { button.click(); location.hash = `#/c/${id}`; }"
    with page.expect_request(f"**/conversations/{first}"):  # it is rolled back, and that is all
        page.get_by_role("button", name="Retry").evaluate(leave, second)
    expect(answer(page)).to_have_text("One.")
    message(page).fill(mine)
    page.locator("#file").set_input_files(png("one.png", 40))
    page.locator("#send").evaluate(leave, first)
    wait_until(lambda: service.get(f"/conversations/{second}")["turn_count"] > 1)
    turns = [service.get(f"/conversations/{each}/turns")["items"] for each in (first, second)]
    assert [[each["message"] for each in items] for items in turns] == [[script, fails], [script, mine]]


def test_an_edited_message_becomes_a_version_once_it_is_sent(page: Page, service: Service, sins: list[str]) -> None:
    say(page, [{"say": ["One."]}])
    ended(page)
    page.locator("#file").set_input_files(png("one.png", 40))
    say(page, [{"say": ["Two."]}])
    ended(page)
    first, root = page.url, conversation_of(page)
    made: list[str] = []
    page.on("request", lambda request: made.append(request.url) if request.url.endswith("/fork") else None)
    page.get_by_role("button", name="Edit").last.click()
    editor = page.get_by_role("textbox", name="Edit the message")
    expect(editor).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Edit").last).to_be_focused()
    page.keyboard.press("Enter")
    editor.fill('[{"say": ["Three."]}]')
    assert not made
    problem = json.dumps({"status": 422, "code": "invalid_request", "detail": "Not so."})
    page.route("**/turns", lambda r: r.fulfill(status=422, content_type="application/problem+json", body=problem))
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("Not so.")
    expect(editor).to_have_value('[{"say": ["Three."]}]')
    assert service.get(root)["metadata"] == {"page_branches": {}}  # the fork is deleted
    page.unroute("**/turns")
    page.keyboard.press("Enter")
    expect(answer(page)).to_have_text(["One.", "Three."])
    expect(turn(page).last.locator(".said .picture img")).to_have_count(1)
    expect(page.get_by_role("img", name="Version 2 of 2")).to_be_visible()
    page.get_by_role("button", name="Previous version").click()
    expect(answer(page)).to_have_text(["One.", "Two."])
    assert page.url == first
    forgive(sins, "422")


def test_versions_of_an_answer_are_listed_and_deleted(opened: Open, service: Service, sins: list[str]) -> None:
    said = service.post("/turn", agent="talker", message='Versions [{"say": ["One."]}]').json()
    root = f"/conversations/{said['conversation_id']}"
    service.follow_up(said, {"say": ["Two."]})
    page = opened(service, f"/#/c/{said['conversation_id']}")
    shown = page.locator(".versions:visible")
    for number in (2, 3):
        page.get_by_role("button", name="Regenerate").last.click()
        expect(shown).to_contain_text(f"{number}/{number}")
        ended(page)
    say(page, [{"say": ["Four."]}])
    ended(page)
    page.get_by_role("button", name="Regenerate").first.click()
    expect(answer(page)).to_have_text(["One."])
    page.reload()
    expect(shown).to_contain_text("2/2")
    page.get_by_role("button", name="Previous version").click()
    expect(shown.last).to_contain_text("1/3")
    page.get_by_role("button", name="Next version").last.press("Enter")
    expect(shown.last).to_contain_text("2/3")
    expect(page.get_by_role("button", name="Next version").last).to_be_focused()
    page.keyboard.press("Enter")
    expect(answer(page)).to_have_text(["One.", "Two.", "Four."])
    rows = page.locator("#list .row", has_text="Versions")
    expect(rows.locator("[aria-current]")).to_have_count(1)
    expect(rows).to_have_count(1)
    page.locator("#filter > summary").click()
    page.get_by_label("Show branches").check()
    expect(rows).to_have_count(4)
    page.get_by_label("Show branches").uncheck()
    expect(rows).to_have_count(1)
    service.client.delete(conversation_of(page))
    page.goto(f"{service.client.base_url}#{root.replace('conversations', 'c')}")
    page.get_by_role("button", name="Next version").last.click()
    expect(shown.last).to_contain_text("2/3")
    page.get_by_role("button", name="Next version").last.click()
    expect(page.get_by_role("alert")).to_have_text("This version was deleted.")
    expect(shown.last).to_contain_text("2/2")
    branches = service.get(root)["metadata"]["page_branches"]
    act(rows, "Delete")
    expect(page.locator("#welcome")).to_be_visible()
    page.reload()  # it is deleted when the page is left, with its branches
    for path in (root, *(f"/conversations/{each}" for each in branches)):
        wait_until(lambda path=path: service.client.get(path).status_code == HTTPStatus.NOT_FOUND)  # type: ignore[misc]
    forgive(sins, "404")


def test_a_message_is_sent_again_with_its_approvals_and_options(opened: Open, service: Service) -> None:
    options = {"approve": ["echo"], "max_steps": 3, "deadline_s": 50, "additional_args": {"city": "Bonn"}}
    body = {"agent": "talker", "message": json.dumps([{"raise": "once"}]), **options}
    sent = service.post("/turn", **body).json()
    page = opened(service, f"/#/c/{sent['conversation_id']}")
    page.get_by_role("button", name="Retry").click()
    expect(turn(page)).to_have_count(2)
    ended(page, "failed")
    page.get_by_role("button", name="Edit").last.click()
    editor = page.get_by_role("textbox", name="Edit the message")
    expect(editor).to_have_value(str(body["message"]))
    editor.fill(json.dumps([{"call": [["echo", {"text": "asked"}]]}]))
    page.get_by_role("button", name="Send", exact=True).first.click()
    expect(page.locator(".request")).to_have_count(1)
    for path in (f"/conversations/{sent['conversation_id']}/turns/2", f"{conversation_of(page)}/turns/1"):
        again = service.get(path)
        assert {**again["options"], "additional_args": again["additional_args"]}.items() >= options.items()


def test_messages_queue_while_a_turn_runs_and_one_is_taken_out(page: Page, gate: Path) -> None:
    say(page, [{"say": ["One ", wait(gate), "ends."]}])
    expect(answer(page)).to_have_text("One")
    for number in ("Two.", "Three."):
        say(page, [{"say": [number]}])
    expect(turn(page)).to_have_count(3)
    expect(turn(page).nth(1)).to_have_attribute("data-status", "queued")
    expect(turn(page).nth(1).locator(".work-text")).to_have_text(re.compile("^Queued"))
    turn(page).nth(1).get_by_role("button", name="Remove from the queue").click()
    gate.touch()
    expect(answer(page).last).to_have_text("Three.")
    expect(turn(page).nth(1)).to_have_attribute("data-status", "cancelled")
    expect(answer(page).first).to_have_text("One ends.")


def test_a_message_joins_the_turn_between_two_steps(page: Page, service: Service, gate: Path, tmp_path: Path) -> None:
    later = tmp_path / "later"
    say(page, [{"think": ["One ", wait(gate)], "call": [["echo", {"text": "first"}]]}])
    expect(page.locator(".step")).to_contain_text("One")
    page.locator("#busy").select_option("steer")
    page.locator("#file").set_input_files(png("one.png", 40))
    say(page, [{"think": ["Two ", wait(later)], "call": [["echo", {"text": "second"}]]}, {"say": ["Both."]}])
    expect(turn(page).nth(1)).to_have_attribute("data-status", "queued")
    gate.touch()
    ended(page, "cancelled", at=1)  # while the first turn still runs
    note = turn(page).nth(1).locator(".outcome")
    expect(note).to_have_text("The agent read this message while it worked on the turn above.")
    expect(turn(page).first).to_have_attribute("data-status", "running")
    parts = turn(page).first.locator(".steps > li")
    expect(parts.nth(1)).to_contain_text("You added:")
    expect(parts.nth(1).locator("img")).to_have_js_property("naturalWidth", 40)
    later.touch()
    expect(answer(page).first).to_have_text("Both.")
    expect(turn(page)).to_have_count(2)
    page.route("**/turns/1/events", partial(expired, service.get(f"{conversation_of(page)}/turns/1")))
    page.reload()
    page.locator(".work > summary:visible").click()
    expect(parts).to_have_text(
        [re.compile(text) for text in ("From the record", "first", "You added:", "second", "Answer")]
    )


def test_a_message_stops_the_turn_and_keeps_or_drops_its_steps(page: Page, service: Service, gate: Path) -> None:
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


def test_a_message_that_the_model_cannot_read_is_taken_out_of_the_memory(page: Page, service: Service) -> None:
    say(page, [{"raise": "it exceeds the available context size"}], title="Too long")
    ended(page, "failed")
    page.get_by_role("button", name="Forget", exact=True).click()
    expect(page.locator(".outcome")).to_contain_text("Rolled back. Not in the memory")
    assert "Too long" not in messages(service, page)
