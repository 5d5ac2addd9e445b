"""Answers to the requests of waiting turns, as HTTP takes them: alone, together, twice, wrong, late and streamed."""

import hashlib
import json
from typing import Any

import httpx2
import pytest

from tests.support.answering import (
    APPROVE,
    REJECT,
    answer,
    answering,
    ask,
    asking_service,
    mail,
    read,
    sent,
    submit_asking,
)
from tests.support.owners import ADA, BOB, SECOND, owner_line, request_as
from tests.support.service import Gate, Service, shared_service, write_private
from tests.support.streaming import EVENTS, Event, Frame, Stream, check_numbers, effects, log_of, place, posting
from tests.support.turns import DONE, cancel, error_code, wait_for_end

pytestmark = pytest.mark.timeout(120)
service = shared_service(asking_service)
KEYS = owner_line("ada", ADA) + owner_line("ada", SECOND) + owner_line("bob", BOB)
owned = shared_service(lambda folder: asking_service(folder, API_KEYS_FILE=str(write_private(folder / "keys", KEYS))))


def pointers(response: httpx2.Response) -> list[str]:
    assert (response.status_code, error_code(response)) == (422, "invalid_request"), response.text
    return [problem["pointer"] for problem in response.json()["errors"]]


def test_one_invalid_answer_rejects_the_whole_batch(service: Service) -> None:
    turn = ask(service, {"call": [mail("batch1"), mail("batch2")]}, DONE)
    found = pointers(answering(service, turn, APPROVE, APPROVE | {"arguments": {"to": 7, "more": 1}}))
    assert sorted(found) == ["/answers/1/arguments", "/answers/1/arguments", "/answers/1/arguments/to"]
    assert read(service, turn)["requests"] == turn["requests"]
    assert [frame.event for frame in log_of(service, turn, until="waiting")][-1] == "turn.waiting"
    unknown = answering(service, turn, APPROVE, {"request_id": "nobody:1:1.1", "decision": "approve"})
    assert (unknown.status_code, error_code(unknown)) == (404, "request_not_found")
    assert read(service, turn)["requests"] == turn["requests"]
    answer(service, turn, APPROVE, APPROVE)
    assert sorted(line for line in sent(service) if line.startswith("batch")) == ["batch1: hi", "batch2: hi"]


WRONG: list[tuple[Event, str]] = [
    ({"decision": "approve", "text": "yes"}, "/text"),
    ({"decision": "reject", "arguments": {"path": "x"}}, "/arguments"),
    ({"decision": "approve", "arguments": {"path": "x", "force": "yes"}}, "/arguments/force"),
    ({"decision": "approve", "arguments": {"path": None}}, "/arguments/path"),
    ({"decision": "approve", "arguments": {"path": "x", "times": 1.5}}, "/arguments/times"),
    ({"decision": "approve", "arguments": {"path": "x", "other": 1}}, "/arguments"),
    ({"decision": "approve", "arguments": {}}, "/arguments"),
    ({"decision": "approve", "arguments": []}, "/arguments"),
    ({"decision": "perhaps"}, "/decision"),
    ({"decision": "approve", "surprise": 1}, "/surprise"),
    ({}, "/decision"),
    ({"decision": "approve", "reason": "x" * 10_001}, "/reason"),
]


def test_an_invalid_answer_is_named_and_changes_nothing(service: Service) -> None:
    turn = ask(service, {"call": [["delete_file", {"path": "a"}]]}, DONE)
    for wrong, at in WRONG:
        assert pointers(answering(service, turn, wrong)) == [f"/answers/0{at}"]
    bad: list[Any] = [[], [{"request_id": "x", "decision": "approve"}] * 101, {}, None, "x"]
    for answers in bad:
        response = service.client.post(place(turn, "/answers"), json={"answers": answers})
        assert pointers(response) == ["/answers"], answers
    assert pointers(service.client.post(place(turn, "/answers"), json={})) == ["/answers"]
    body = {"answers": [{"request_id": f"{turn['conversation_id']}:1:9.9", "decision": "approve"}]}
    for other, code in (
        (turn, "request_not_found"),
        (turn | {"turn": 2}, "turn_not_found"),
        (turn | {"conversation_id": "none"}, "conversation_not_found"),
    ):
        response = service.client.post(place(other, "/answers"), json=body)
        assert (response.status_code, error_code(response)) == (404, code)
    name = {"request_id": turn["requests"][0]["request_id"]}
    assert pointers(answering(service, turn, APPROVE | name, REJECT | name)) == ["/answers/1/request_id"]
    assert read(service, turn)["requests"] == turn["requests"]
    cancel(service, turn)


def test_arguments_may_be_left_out_or_null_as_the_tool_allows(service: Service) -> None:
    turn = ask(service, {"call": [["delete_file", {"path": "a"}]] * 2}, DONE)
    new: list[dict[str, Any]] = [{"path": "b", "times": None}, {"path": "c", "force": True, "times": 3}]
    ended = answer(service, turn, *(APPROVE | {"arguments": each} for each in new))
    assert [call["arguments"] for call in ended["tool_calls"]] == new
    results = [frame.data["result"] for frame in log_of(service, turn) if frame.event == "tool.result"]
    assert sorted(results)[:2] == ["deleted b False None", "deleted c True 3"]


def test_a_question_is_answered_with_a_text_alone(service: Service) -> None:
    turn = ask(service, {"call": [["ask_user", {"question": "?"}]]}, DONE)
    for wrong in ({"decision": "approve"}, {"text": " "}, {"text": "a", "arguments": {}}):
        assert all(at.startswith("/answers/0/") for at in pointers(answering(service, turn, wrong)))
    assert answering(service, turn, REJECT | {"text": "no"}).status_code == 422
    answer(service, turn, {"text": "yes"})


def test_another_owner_gets_the_same_404_as_for_nothing(owned: Service) -> None:
    body = {"agent": "mailer", "message": json.dumps([{"call": [mail("mine")]}, DONE])}
    turn = request_as(owned, ADA, "POST", "/turn", body).json()
    (request,) = turn["requests"]
    sent_answers = {"answers": [{"request_id": request["request_id"], "decision": "approve"}]}
    theirs = request_as(owned, BOB, "POST", place(turn, "/answers"), sent_answers)
    nothing = request_as(owned, BOB, "POST", "/conversations/nothing/turns/1/answers", sent_answers)
    assert (theirs.status_code, error_code(theirs)) == (404, "conversation_not_found")
    assert theirs.json() | {"instance": ""} == nothing.json() | {"instance": ""}
    assert request_as(owned, None, "POST", place(turn, "/answers"), sent_answers).status_code == 401
    ended = request_as(owned, SECOND, "POST", place(turn, "/answers"), sent_answers).json()
    by = {"owner": "ada", "key": hashlib.sha256(SECOND.encode()).hexdigest()[:12]}
    assert ended["tool_calls"][0]["approval"]["by"] == by
    events = request_as(owned, ADA, "GET", place(turn, "/events")).text
    assert '"input.answered"' in events
    assert by["key"] in events
    line = next(line for line in owned.log().splitlines() if request["request_id"] in line)
    assert "ada" in line
    assert by["key"] in line
    assert SECOND not in owned.log()


def test_a_stream_stays_open_while_its_turn_waits_and_sees_the_answer(service: Service) -> None:
    with posting(service, {"call": [mail("watched")]}, DONE, agent="mailer") as stream:
        event = stream.until("turn.waiting")
        turn = {"conversation_id": event["conversation_id"], "turn": event["turn"], "requests": event["requests"]}
        answered = answering(service, turn, APPROVE, Prefer="respond-async")
        assert (answered.status_code, answered.headers["preference-applied"]) == (202, "respond-async")
        rest = [frame.event for frame in stream.rest()]
    assert rest[0] == "input.answered"
    assert rest[-1] == "turn.finished"
    check_numbers(stream.seen)
    assert [frame.event for frame in stream.seen].count("turn.waiting") == 1
    assert [frame.event for frame in stream.seen].count("tool.call") == 2  # the call that waited, and the answer's


def stream_answers(service: Service, turn: Event, number: int = 0, until: str | None = None) -> list[Frame]:
    body = {"answers": [{"request_id": turn["requests"][number]["request_id"], "decision": "approve"}]}
    query = {"until": until} if until else None
    with service.client.stream("POST", place(turn, "/answers"), json=body, params=query, headers=EVENTS) as response:
        assert response.status_code == 200, response.read()
        return Stream(response).rest()


def test_a_stream_of_answers_begins_with_their_event(service: Service) -> None:
    turn = submit_asking(service, {"call": [mail("s1")]}, {"call": [mail("s2")]}, DONE)
    for ends in ("turn.waiting", "turn.finished"):
        frames = stream_answers(service, turn, until="waiting")
        assert (frames[0].event, frames[-1].event) == ("input.answered", ends)
        assert frames[0].data["answers"][0]["request_id"] == turn["requests"][0]["request_id"]
        again = stream_answers(service, turn, until="waiting")
        assert [frame.raw for frame in again] == [frame.raw for frame in frames]
        turn = read(service, turn) if ends == "turn.waiting" else turn


def test_a_waiting_turn_lists_requests_and_answers_in_its_effects(service: Service, gate: Gate) -> None:
    turn = ask(service, {"call": [mail("one"), mail("two")]}, DONE)
    asked = [("model", "1.m1"), ("request", "1.1"), ("request", "1.2")]
    assert [(each["kind"], each["call_id"]) for each in effects(service, turn)] == asked
    answering(service, {**turn, "requests": turn["requests"][:1]}, APPROVE, Prefer="respond-async")
    assert ("answer", "1.1") in [(each["kind"], each["call_id"]) for each in effects(service, turn)]
    assert "decision" not in json.dumps(effects(service, turn))
    cancel(service, turn)
    later = submit_asking(service, {"call": [mail("three")]}, gate.script, DONE)
    answering(service, later, APPROVE, Prefer="respond-async")
    gate.reached()
    attempts = {each["call_id"]: each["attempt"] for each in effects(service, later) if each["kind"] == "tool"}
    assert attempts == {"1.1": 2, "2.1": 2}
    gate.open()
    wait_for_end(service, later)
