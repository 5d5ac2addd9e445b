"""Messages with images, refused messages, and turns that failed, were stopped or wait."""

import json
from http import HTTPStatus
from pathlib import Path
from typing import Any

from playwright.sync_api import FilePayload, Page, expect

from browser_tests.reader import (
    Open,
    answer,
    conversation_of,
    ended,
    forgive,
    message,
    paste,
    png,
    say,
    send,
    turn,
    wait,
)
from tests.support.service import Service


def test_a_message_that_is_refused_stays_in_its_field(
    page: Page, service: Service, gate: Path, sins: list[str]
) -> None:
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
    page.route(
        "**/turn", lambda route: route.fulfill(status=503, content_type="application/problem+json", body=problem)
    )
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
    shown = page.locator(".step > .pictures img")
    expect(shown.nth(1)).to_be_visible()
    page.wait_for_function("() => [...document.querySelectorAll('.step > .pictures img')].every((i) => i.naturalWidth)")
    assert {60, 80} <= set(shown.evaluate_all("(images) => images.map((image) => image.naturalWidth)"))
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
    """Click a file. Return its name and its content."""
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
    page.get_by_role("button", name="Retry").click()
    expect(answer(page).last).to_have_text("Now it works.")
    expect(turn(page)).to_have_count(2)
    expect(page.locator(".outcome").first).to_contain_text("Rolled back. Not in the memory")
    expect(turn(page).last.locator(".said .picture img")).to_have_count(1)
    assert messages(service, page).count("Try ") == 1


def test_an_edited_message_goes_to_a_fork(page: Page) -> None:
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


def test_a_message_that_is_too_long_is_forgotten(page: Page, service: Service) -> None:
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


def test_messages_queue_while_a_turn_runs_and_one_is_taken_out(page: Page, gate: Path) -> None:
    say(page, [{"say": ["One ", wait(gate), "ends."]}])
    expect(answer(page)).to_have_text("One")
    for number in ("Two.", "Three."):
        say(page, [{"say": [number]}])
    expect(turn(page)).to_have_count(3)
    expect(turn(page).nth(1)).to_have_attribute("data-status", "queued")
    expect(turn(page).nth(1).locator(".work-text")).to_have_text("Queued")
    turn(page).nth(1).get_by_role("button", name="Remove from the queue").click()
    gate.touch()
    expect(answer(page).last).to_have_text("Three.")
    expect(turn(page).nth(1)).to_have_attribute("data-status", "cancelled")
    expect(answer(page).first).to_have_text("One ends.")


def test_a_message_stops_the_running_turn_and_keeps_or_drops_its_steps(
    page: Page, service: Service, gate: Path
) -> None:
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
