"""Waiting turns on the page: cards that approve and change calls, and that answer questions."""

import json
import re
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, Route, expect

from browser_tests.reader import Open, answer, choose, conversation_of, ended, fits, forgive, message, reach, say, turn
from tests.support.service import Gate, Service

MAIL = ["send_email", {"to": "ann@example.org", "text": "Dear Ann,\nall is well."}]
MARKUP = "<img src=x onerror='window.ran = 1'><b>bold</b>"
DONE = {"say": "Done."}
POSTS = [{"call": [["post", {"to": "ann", "media": name}] for name in ("image.png", "report.csv")]}]
CARD = """(request) => import("/page/request.js").then(({ RequestCard }) => {
  window.sent = [];
  const card = new RequestCard(request, async (answer) => window.sent.push(JSON.stringify(answer)));
  document.getElementById("turns").replaceChildren(card.element);
})"""
HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def cards(page: Page) -> Locator:
    return page.locator(".request")


def wait_for_cards(
    opened: Open, service: Service, *calls: Any, agent: Any = "mailer", client_tools: Any = (), **options: Any
) -> Page:
    body = {"agent": agent, "message": json.dumps([{"call": calls}, DONE]), "client_tools": client_tools}
    response = service.client.post("/turn", json=body)
    assert response.status_code == HTTPStatus.ACCEPTED, response.text
    page = opened(service, f"/#/c/{response.json()['conversation_id']}", **options)
    expect(cards(page).first).to_be_focused()  # after this the page does not scroll to it any more
    return page


def mails(service: Service) -> str:
    path = service.folder / "outbox"
    return path.read_text() if path.exists() else ""


def turn_of(page: Page, service: Service) -> tuple[str, dict[str, Any]]:
    path = f"{conversation_of(page)}/turns/1"
    return path, service.get(path)


def test_a_call_is_approved_with_the_keyboard_alone(page: Page, service: Service) -> None:
    choose(page, "mailer")
    say(page, [{"call": [["send_email", {"to": "by-keyboard", "text": "a"}]]}, DONE])
    expect(cards(page)).to_be_focused()
    expect(page.get_by_role("form", name="Approve this call of send_email?")).to_be_visible()
    expect(page.get_by_label("to", exact=True)).to_have_value("by-keyboard")
    expect(page.locator("#announcement")).to_have_text("The turn waits for you. Approve this call of send_email?")
    expect(cards(page).locator(".request-about")).to_have_text("mailer · step 1 · asked just now, expires in 7 days")
    assert "by-keyboard" not in mails(service)
    page.keyboard.press("Enter")
    reach(page, ".request input[type=text]", "Tab")
    page.keyboard.press("Enter")  # approves nothing
    reach(page, ".request .primary", "Tab")
    page.keyboard.press("Enter")
    expect(answer(page)).to_have_text("Done.")
    expect(cards(page)).to_have_count(0)
    expect(message(page)).to_be_focused()
    assert mails(service).count("by-keyboard") == 1
    expect(page.locator(".step .preview").first).to_contain_text("approved by local, just now")
    page.reload()
    page.locator(".work > summary").click()
    page.locator(".step > details > summary").first.click()
    expect(page.locator(".call > summary .decision")).to_have_text("approved by local, just now")


def test_a_request_leaves_the_focus_to_a_person_who_writes(page: Page, gate: Path) -> None:
    choose(page, "mailer")
    say(page, [Gate(gate).script, {"call": [MAIL]}, DONE])
    message(page).fill("a draft")
    gate.touch()
    expect(page.locator("#announcement")).to_contain_text("The turn waits for you.")
    expect(message(page)).to_be_focused()
    expect(message(page)).to_have_value("a draft")


def test_changed_arguments_are_used_and_said_to_be(opened: Open, service: Service) -> None:
    page = wait_for_cards(opened, service, MAIL)
    edits = page.locator(".edits")
    expect(edits).to_be_hidden()
    page.get_by_label("to", exact=True).fill("elsewhere")
    expect(edits).to_have_text(
        "You changed to. The call gets your arguments, and the model is told that they were changed. Undo the changes"
    )
    page.get_by_role("button", name="Undo the changes").click()
    expect(page.get_by_label("to", exact=True)).to_have_value("ann@example.org")
    expect(edits).to_be_hidden()
    page.get_by_label("to", exact=True).fill("changed-by-a-person")
    with page.expect_request("**/answers") as sent:
        page.get_by_role("button", name="Approve with changes").click()
    (given,) = (sent.value.post_data_json or {})["answers"]
    assert given["arguments"] == {"to": "changed-by-a-person", "text": "Dear Ann,\nall is well."}
    expect(answer(page)).to_have_text("Done.")
    assert "changed-by-a-person: Dear Ann" in mails(service)
    page.locator(".step > details > summary").first.click()
    expect(page.locator(".call > summary .decision")).to_contain_text("edited by local")
    expect(page.locator(".call .argument").first).to_have_text("tochanged-by-a-person")
    expect(page.locator(".call .former")).to_have_text("The agent had asked fortoann@example.org")


def test_requests_are_answered_one_by_one_in_two_tabs(opened: Open, service: Service) -> None:
    deletion = ["delete_file", {"path": "/tmp/x", "times": 2}]
    question = ["ask_user", {"question": "Which?", "choices": ["one", "two"]}]
    page = wait_for_cards(opened, service, MAIL, deletion, question, ["ask_user", {"question": "How?"}])
    expect(cards(page)).to_have_count(4)
    expect(page.locator("#waits")).to_contain_text("This turn waits for 4 answers.")
    other = page.context.new_page()
    other.goto(page.url)
    expect(cards(other)).to_have_count(4)
    cards(page).nth(1).get_by_role("button", name="Reject").click()
    page.keyboard.type("not this file")
    page.keyboard.press("Enter")
    expect(cards(page)).to_have_count(3)
    expect(cards(other)).to_have_count(3)
    expect(turn(other)).to_have_attribute("data-status", "waiting")
    other.reload()
    expect(cards(other)).to_have_count(3)
    cards(other).nth(1).get_by_role("button", name="Answer", exact=True).click()
    expect(cards(other).nth(1).get_by_role("alert")).to_have_text("Choose an answer, or decline.")
    cards(other).nth(1).get_by_role("radio", name="two").check()
    page.get_by_role("textbox", name="Your answer").fill("like this")
    other.keyboard.press("Enter")
    expect(cards(page)).to_have_count(2)
    expect(page.get_by_role("textbox", name="Your answer")).to_have_value("like this")
    page.get_by_role("textbox", name="Your answer").press("Enter")
    expect(cards(other)).to_have_count(1)
    cards(other).get_by_role("button", name="Approve", exact=True).click()
    for each in (page, other):
        expect(answer(each)).to_have_text("Done.")
        expect(each.locator("#waits")).to_be_hidden()
    _, ended = turn_of(page, service)
    decisions = [call["approval"] and call["approval"]["decision"] for call in ended["tool_calls"]]
    assert decisions == ["approved", "rejected", None, None]
    page.locator(".step > details > summary").first.click()
    mail, deleted, *_ = page.locator(".call").all()
    which, how = (page.locator(".call").filter(has_text=text) for text in ("Which?", "How?"))  # they began together
    expect(mail.locator(".decision")).to_contain_text("approved")
    expect(deleted.locator(".decision")).to_contain_text("rejected by local")
    expect(deleted.locator(".decision")).to_have_attribute("title", re.compile("Reason: not this file$"))
    expect(deleted.locator(".result")).to_contain_text("It was not made. Reason: not this file")
    expect(which.locator(".result")).to_contain_text("two")
    expect(how.locator(".result")).to_contain_text("like this")
    expect(page.locator(".work > summary")).to_contain_text("1 rejected")
    expect(page.locator(".work > summary")).not_to_contain_text("error")


def test_a_person_sends_the_result_of_a_tool_that_the_client_runs(opened: Open, service: Service) -> None:
    tool = {"name": "where", "description": "Find it.", "parameters": {"properties": {"thing": {"type": "string"}}}}
    calls = [["where", {"thing": "key"}], ["where", {"thing": "cup"}]]
    page = wait_for_cards(opened, service, *calls, agent="mailer", client_tools=[tool])
    expect(page.locator(".call > summary .preview").first).to_have_text("waits for its result below")
    first = page.get_by_role("form", name="Run where and send its result").first
    first.get_by_label("Result, as JSON or as a text").fill('{"room": "hall"}')
    first.get_by_role("button", name="Send the result").click()
    expect(cards(page)).to_have_count(1)
    page.get_by_role("button", name="No result").click()
    page.get_by_role("button", name="Send no result").click()
    expect(answer(page)).to_have_text("Done.")
    _, turn = turn_of(page, service)
    assert [call["ok"] for call in turn["tool_calls"]] == [True, False]


def test_code_is_approved_as_a_person_changed_it(page: Page) -> None:
    choose(page, "code-reader")
    say(page, [{"code": "print('as the model wrote it')"}, DONE])
    expect(page.get_by_role("form", name="Approve this code?")).to_be_focused()
    code = page.get_by_role("textbox", name="Code")
    expect(code).to_have_value("print('as the model wrote it')")
    code.fill("print('as a person wrote it')")
    page.get_by_role("button", name="Approve with changes").click()
    expect(page.locator(".step")).to_have_count(2)
    expect(code).to_have_value("final_answer('Done.')")
    page.get_by_role("button", name="Approve", exact=True).click()
    expect(answer(page)).to_have_text("Done.")
    first = page.locator(".step").first
    expect(first.locator("> details > summary .decision")).to_contain_text("edited by local")
    first.locator("summary").first.click()
    expect(first.locator(".part-output").first).to_contain_text("as a person wrote it")


def test_a_mistake_is_shown_at_its_field(opened: Open, service: Service, sins: list[str]) -> None:
    page = wait_for_cards(opened, service, ["lead", {"task": json.dumps([DONE])}], agent="office")
    page.get_by_role("button", name="additional_args").click()
    field = page.get_by_role("textbox", name="additional_args")
    expect(field).to_be_focused()
    field.fill("{1")
    page.get_by_role("button", name="Approve with changes").click()
    expect(page.locator(".field-problem:visible")).to_contain_text("additional_args is not valid JSON")
    expect(field).to_have_attribute("aria-invalid", "true")
    field.fill("[1]")
    expect(page.locator(".field-problem:visible")).to_have_count(0)
    page.get_by_role("button", name="Approve with changes").click()
    expect(page.locator(".field-problem:visible")).to_contain_text("additional_args [1] is not of type 'object'")
    expect(field).to_be_focused()
    field.fill('{"a": 1}')
    page.get_by_role("button", name="Approve with changes").click()
    expect(answer(page)).to_have_text("Done.")
    forgive(sins, "422")


def _first(act: Callable[[], object]) -> Callable[[Route], None]:
    """Let another client act just before the page's answer arrives."""

    def handle(route: Route) -> None:
        act()
        route.continue_()

    return handle


def test_an_answer_that_comes_too_late_says_who_answered(opened: Open, service: Service, sins: list[str]) -> None:
    page = wait_for_cards(opened, service, MAIL, ["ask_user", {"question": "How?"}])
    path, waiting = turn_of(page, service)
    body = {"answers": [{"request_id": waiting["requests"][0]["request_id"], "decision": "reject"}]}
    headers = {"Prefer": "respond-async"}
    page.route("**/answers", _first(lambda: service.client.post(f"{path}/answers", json=body, headers=headers)))
    page.get_by_role("button", name="Approve", exact=True).click()
    expect(page.locator("#problem")).to_have_text(
        "Your answer came too late and does not count: send_email was rejected by local, just now."
    )
    expect(cards(page)).to_have_count(1)
    page.unroute("**/answers")
    page.route("**/answers", _first(lambda: service.client.post(f"{path}/cancel")))
    page.get_by_role("textbox", name="Your answer").fill("so")
    page.get_by_role("button", name="Answer", exact=True).click()
    ended(page, "cancelled")
    expect(page.locator("#problem")).to_contain_text("does not wait for this answer any more")
    expect(cards(page)).to_have_count(0)
    forgive(sins, "409", 2)


def test_the_list_marks_waiting_conversations_and_a_stop_ends_the_wait(opened: Open, service: Service) -> None:
    page = wait_for_cards(opened, service, MAIL)
    row = page.locator("#list .row", has=page.locator("[aria-current]"))
    expect(row).to_contain_text("mailer · waits for a person")
    expect(page.locator(".work > summary")).to_contain_text("Waiting for a person")
    expect(page.locator("#waits")).to_contain_text("This turn waits for your answer.")
    expect(page.locator("#waits")).to_be_hidden()  # the card is on the screen
    page.set_viewport_size({"width": 1280, "height": 300})
    message(page).click()
    page.locator("#scroll").evaluate("(at) => at.scrollTop = 0")
    page.get_by_role("button", name="Go to it").click()
    page.set_viewport_size({"width": 1280, "height": 860})  # the next test has the same tab
    expect(cards(page)).to_be_focused()
    service.play(DONE, agent="mailer")
    page.locator("#filter > summary").click()
    page.get_by_label("State").select_option("waiting")
    expect(row).to_have_count(1)
    expect(page.locator("#list .row:not(.waits-for)")).to_have_count(0)
    page.get_by_role("button", name="Stop", exact=True).click()
    ended(page, "cancelled")
    expect(cards(page)).to_have_count(0)
    expect(row).to_have_count(0)
    page.get_by_label("State").select_option("")
    expect(row).to_have_count(1)
    expect(row).not_to_contain_text("waits")


def test_a_hidden_tab_holds_no_stream_and_catches_up(opened: Open, service: Service) -> None:
    page = wait_for_cards(opened, service, MAIL)
    expect(cards(page)).to_be_focused()
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/events")):
        page.evaluate(HIDE, True)
    path, waiting = turn_of(page, service)
    body = {"answers": [{"request_id": waiting["requests"][0]["request_id"], "decision": "approve"}]}
    assert service.post(f"{path}/answers", **body).status_code == HTTPStatus.OK
    expect(page.locator("#connection")).to_be_hidden()
    expect(cards(page)).to_have_count(1)
    page.evaluate(HIDE, False)
    expect(answer(page)).to_have_text("Done.")
    expect(cards(page)).to_have_count(0)


def test_hostile_texts_are_shown_as_text_and_each_type_has_its_field(page: Page) -> None:
    properties = {
        "kind": {"enum": ["a", MARKUP]},
        "many": {"type": "array"},
        "large": {"type": "integer"},
        "ratio": {"type": ["number", "null"], "description": MARKUP},
        "sure": {"type": "boolean"},
        "note": {"type": "string"},
    }
    request = {
        "request_id": "c:1:1.1:2",
        "kind": "approval",
        "call_id": "1.1",
        "tool": MARKUP,
        "agent": f"lead/{MARKUP}",
        "step_id": "1",
        "asked_at": "2026-01-01T00:00:00Z",
        "expires_at": "2026-01-02T00:00:00Z",
        "question": None,
        "choices": None,
        "replaces": "c:1:1.1",
        "arguments": {
            "kind": "a",
            "many": [1, {"b": MARKUP}],
            "large": 0,
            "ratio": None,
            "sure": True,
            MARKUP: "x\u202ey",
        },
        "parameters": {"properties": properties, "required": ["kind", "many", "large", "ratio", "sure"]},
    }
    text = json.dumps(request | {"images": [], "files": []}).replace('"large": 0', '"large": 12345678901234567890')
    page.evaluate(f"(text) => import('/page/exact.js').then(({{ exactly }}) => ({CARD})(exactly(text)))", text)
    card = cards(page)
    expect(card.locator(".replaces")).to_contain_text("This replaces an earlier request for the same call")
    expect(card).to_contain_text(f"Approve this call of {MARKUP}?")
    expect(card.locator("img, b")).to_have_count(0)
    assert page.evaluate("window.ran") is None
    expect(card.locator(".field-hidden:visible")).to_contain_text("U+202E")
    expect(card.get_by_label("large")).to_have_value("12345678901234567890")
    card.get_by_label("kind").select_option(MARKUP)
    card.get_by_label("sure").select_option("false")
    card.get_by_label("large").fill("1.5")
    card.get_by_role("button", name="note").click()
    card.get_by_role("textbox", name="note").fill("two\nlines")
    card.get_by_role("button", name="ratio = null").click()
    card.get_by_role("textbox", name="ratio").fill("half")
    card.get_by_role("button", name="Approve with changes").click()
    expect(card.locator(".field-problem:visible")).to_have_text(
        ["large must be a whole number", "ratio must be a number, as 12 or 0.5"]
    )
    expect(card.get_by_label("large")).to_be_focused()
    assert page.evaluate("window.sent") == []
    card.get_by_label("large").fill("98765432109876543210")
    card.get_by_role("textbox", name="ratio").fill("0.5")
    card.get_by_role("button", name="Approve with changes").click()
    (sent,) = page.evaluate("window.sent")
    assert json.loads(sent)["arguments"] == {
        "kind": MARKUP,
        "many": [1, {"b": MARKUP}],
        "large": 98765432109876543210,
        "ratio": 0.5,
        "sure": False,
        "note": "two\nlines",
        MARKUP: "x\u202ey",
    }


def test_images_and_files_of_a_call_are_shown_with_their_hashes(opened: Open, service: Service) -> None:
    draw = [{"call": [["picture", {}]]}, {"call": [["report", {}]]}]
    body = {"agent": "poster", "message": json.dumps([*draw, *POSTS, DONE])}
    page = opened(service, f"/#/c/{service.client.post('/turn', json=body).json()['conversation_id']}")
    shown = cards(page).locator("figure")
    expect(shown).to_have_count(2)
    expect(shown.first.locator("img")).to_have_js_property("naturalWidth", 4)
    path, waiting = turn_of(page, service)
    requests = waiting["requests"]
    hashes = [part["sha256"] for request in requests for part in (*request["images"], *request["files"])]
    assert [shown.nth(n).locator("code").get_attribute("title") for n in (0, 1)] == [f"SHA-256 {h}" for h in hashes]
    expect(shown.first.locator("figcaption")).to_contain_text("media")
    expect(shown.nth(1).get_by_role("button", name="Download report.csv")).to_be_visible()
    fits(page)
    for request in requests:
        decision = {"request_id": request["request_id"], "decision": "reject"}
        service.client.post(f"{path}/answers", json={"answers": [decision]})
