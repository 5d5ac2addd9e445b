"""Turns as they are described: arguments and options in their records, journals of running ones, and schemas."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from smolsessions.core.errors import FAILURES, STEP_FAILURES, codes_of_answers
from tests.support.killed_turns import WITHOUT_CODE
from tests.support.openapi import assert_described, validator
from tests.support.problems import problem
from tests.support.service import ROOT, Gate, Service
from tests.support.store_server import PARTITION
from tests.support.streaming import Event, effects, log_of, place, posting
from tests.support.turns import DONE, ENDLESS, error_code, pages, submit_next, submit_turn, wait_for_end

ARGUMENTS = {"city": "Kyōto", "wells": [1, 2.5, None, True], "deep": {"a": {}}}
NO_TOOLS: dict[str, object] = {"approve": [], "client_tools": [], "output_schema": None}
OPTIONS = {"max_steps": 7, "deadline_s": 30.5, "reset": True, "on_busy": "enqueue"} | NO_TOOLS
NONE: dict[str, object] = {"max_steps": None, "deadline_s": None, "reset": False, "on_busy": "reject"} | NO_TOOLS


def asked(turn: dict[str, Any]) -> tuple[Any, Any]:
    return turn["additional_args"], turn["options"]


def test_a_turn_shows_its_arguments_and_options_everywhere(service: Service) -> None:
    played = service.play(DONE, additional_args=ARGUMENTS, **OPTIONS)
    bare = service.follow_up(played, DONE)
    at = f"/conversations/{played['conversation_id']}"
    listed = service.get(f"{at}/turns")["items"]
    final = log_of(service, played)[-1].data["result"]

    assert [asked(it) for it in (played, listed[0], final, service.get(f"{at}/turns/1"))] == [(ARGUMENTS, OPTIONS)] * 4
    assert [asked(turn) for turn in (bare, listed[1])] == [({}, NONE)] * 2
    for turn in (played, bare):
        assert_described("Turn", turn)


def test_a_turn_that_waits_shows_them_and_uses_them_later(service: Service) -> None:
    first = submit_turn(service, ENDLESS, agent="streamed")
    waiting = submit_next(service, first, {"shown": True}, additional_args=ARGUMENTS, on_busy="interrupt")
    assert asked(waiting) == (ARGUMENTS, NONE | {"on_busy": "interrupt"})
    ended = wait_for_end(service, waiting)
    assert asked(ended) == asked(waiting)
    assert "wells" in ended["reply"]


def test_an_agent_that_changes_its_arguments_leaves_the_record(service: Service) -> None:
    code = {"code": "wells.append(3)\nfinal_answer(wells)"}
    turn = service.play(code, agent="threaded", additional_args={"wells": [1]})
    assert (turn["output"], turn["additional_args"]) == ([1, 3], {"wells": [1]})
    longest = service.play({"code": "final_answer('x' * 1_000_001)"}, agent="threaded")["reply"]
    assert longest == "x" * 1_000_000 + "… (1000001 characters)"


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_page_of_large_turns_is_short_and_goes_on(service: Service, order: str) -> None:
    turn = service.play(DONE, additional_args={"text": "x" * 1_000_000})
    for _ in range(5):
        service.follow_up(turn, DONE, additional_args=turn["additional_args"])
    found = pages(service, f"/conversations/{turn['conversation_id']}/turns", limit=100, order=order)
    expected = [[1, 2, 3, 4], [5, 6]] if order == "asc" else [[6, 5, 4, 3], [2, 1]]
    assert [[each["turn"] for each in page] for page in found] == expected


SECRET = "not-for-any-inspector"
FIRST = {"call": [["echo", {"text": SECRET}], ["fail", {"reason": SECRET}]]}


def brief(found: list[Event]) -> list[tuple[Any, ...]]:
    return [(each["kind"], each["call_id"], each["name"], each["state"], each["ok"]) for each in found]


def begun(service: Service, gate: Gate, *script: Event) -> Event:
    turn = submit_turn(service, *script, gate.script, DONE)
    gate.reached()
    return turn


def test_a_running_turn_lists_its_effects_without_their_results(service: Service, gate: Gate) -> None:
    turn = begun(service, gate, FIRST)
    response = service.client.get(place(turn, "/effects"))
    assert SECRET not in response.text
    found = response.json()
    assert found["next_cursor"] is None
    assert found["complete"] is True
    assert brief(found["items"]) == [
        ("model", "1.m1", None, "done", True),
        ("tool", "1.1", "echo", "done", True),
        ("tool", "1.2", "fail", "done", False),
        ("model", "2.m1", None, "done", True),
        ("tool", "2.1", "wait_for", "begun", None),
    ]
    echo, failed, waits = found["items"][1], found["items"][2], found["items"][4]
    assert (echo["step_id"], echo["attempt"], echo["repeated"], echo["error"]) == ("1", 1, False, None)
    assert echo["size_bytes"] > len(SECRET)
    assert echo["duration_ms"] >= 0
    assert failed["error"] == {"code": "tool_error", "message": "The call raised ValueError.", "retryable": False}
    missing = service.client.get(place(turn | {"turn": 2}, "/effects"))
    assert (missing.status_code, error_code(missing)) == (404, "turn_not_found")
    assert (waits["attempt"], waits["size_bytes"], waits["duration_ms"], waits["step_id"]) == (1, None, None, "2")
    gate.open()
    wait_for_end(service, turn)
    assert service.get(place(turn, "/effects")) == {"items": [], "next_cursor": None, "complete": True}


def test_pages_continue_in_both_orders_while_the_turn_goes_on(service: Service, gate: Gate) -> None:
    turn = begun(service, gate, FIRST)
    whole = effects(service, turn)
    assert [each["call_id"] for each in whole] == ["1.m1", "1.1", "1.2", "2.m1", "2.1"]
    for order, wanted in (("asc", whole), ("desc", whole[::-1])):
        found = pages(service, place(turn, "/effects"), limit=2, order=order)
        assert [item for page in found for item in page] == wanted
        assert max(map(len, found)) <= 2


def test_large_results_make_pages_shorter(service: Service, gate: Gate) -> None:
    noise = {"call": [["make", {"what": "noise"}]]}
    turn = begun(service, gate, noise, noise)
    first = service.get(place(turn, "/effects"))
    assert first["next_cursor"]
    assert max(each["size_bytes"] or 0 for each in first["items"]) > 6_000_000
    rest = service.get(place(turn, "/effects"), cursor=first["next_cursor"])
    assert brief(first["items"] + rest["items"])[-1] == ("tool", "3.1", "wait_for", "begun", None)


def test_a_long_journal_is_read_in_part(service: Service, gate: Gate) -> None:
    turn = begun(service, gate)
    with Redis(unix_socket_path=str(service.folder / "data" / "store.sock")) as raw:
        journal = f"{PARTITION}:journal:local/{turn['conversation_id']}:1"
        raw.hset(journal, mapping={f"begun:tool:3.{number}:echo:d": b"" for number in range(9_990)})
        page = service.get(place(turn, "/effects"), order="desc", limit=100)
        assert (len(page["items"]), page["complete"]) == (100, True)
        raw.hset(journal, mapping={f"begun:tool:4.{number}:echo:d": b"" for number in range(30_000)})
        page = service.get(place(turn, "/effects"), order="desc", limit=100)
        assert (len(page["items"]), page["complete"]) == (100, False)


def test_a_call_that_is_made_again_after_a_kill_is_marked(tmp_path: Path, gate: Gate) -> None:
    settings = WITHOUT_CODE | {"AGENTS": "scripted=tests.support.agents:make_scripted", "LEASE_S": "0.5"}
    with Service(tmp_path, settings) as service:
        turn = begun(service, gate, FIRST)
        service.kill()
        gate.path.with_name(f"{gate.path.name}.started").unlink()
        service.start()
        gate.reached()
        found = effects(service, turn)
        assert [each["attempt"] for each in found] == [1, 1, 1, 1, 2]
        assert [each["repeated"] for each in found] == [False, False, False, False, True]
        assert service.get(place(turn))["attempts"] == 2
        gate.open()
        wait_for_end(service, turn)


def test_a_damaged_journal_is_reported_and_harms_no_other_turn(service: Service, gate: Gate) -> None:
    turn = begun(service, gate, FIRST)
    other = Gate(gate.path.with_name("other"))
    sound = begun(service, other)
    try:
        with Redis(unix_socket_path=str(service.folder / "data" / "store.sock")) as raw:
            journal = f"{PARTITION}:journal:local/{turn['conversation_id']}:1"
            kept = raw.hget(journal, "model:1.m1")
            assert isinstance(kept, bytes)
            for spoilt in (kept[:-1] + bytes([kept[-1] ^ 1]), b"\x01", None):
                if spoilt is None:
                    raw.hdel(journal, "model:1.m1")
                else:
                    raw.hset(journal, "model:1.m1", spoilt)
                response = service.client.get(place(turn, "/effects"))
                assert (response.status_code, error_code(response)) == (500, "seal_broken")
            raw.hset(journal, "model:1.m1", kept)
        assert len(effects(service, turn)) == 5
        assert len(effects(service, sound)) == 2
    finally:
        other.open()


ECHO = {"call": [["echo", {"text": "hello"}]]}
TURNS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "a tool call": ("streamed", [ECHO, DONE]),
    "parallel calls": ("streamed", [{"call": [["echo", {"text": "a"}], ["echo", {"text": "b"}]]}, DONE]),
    "a failed call": ("streamed", [{"call": [["fail", {"text": "no"}]]}, DONE]),
    "a failed turn": ("streamed", [ECHO, {"raise": "model_error"}]),
    "code": ("streamed-code", [{"code": "print(echo(text='hello'))"}, DONE]),
    "a plan": ("streamed-planner", [ECHO, DONE]),
    "managed agents": ("family", [{"call": [["lead", {"task": "[]"}]]}, DONE]),
    "an image": ("scripted", [{"call": [["picture", {}]]}, DONE]),
    "a forced answer": ("streamed", [ECHO] * 6),
    "an error in code": ("streamed-code", [{"code": "1 / 0"}, DONE]),
    "structured code": ("structured", [{"code": "print(1)"}, DONE]),
    "text alone": ("streamed", [{"text": "I only talk."}, DONE]),
    "managed code": ("code-family", [{"code": "print(1)"}, DONE]),
    "data": ("code", [{"code": "final_answer({'a': [1, 2.5, None, True]})"}]),
}


@pytest.mark.parametrize("name", TURNS)
def test_events_and_answers_match_their_schema(service: Service, name: str) -> None:
    agent, script = TURNS[name]
    with posting(service, *script, agent=agent) as stream:
        frames = stream.rest()
    turn = frames[-1].data["result"]
    for frame in [*frames, *log_of(service, turn, include_internal_tools="true")]:
        assert frame.event == frame.data["type"]
        assert_described("Event", frame.data)
    at = f"/conversations/{turn['conversation_id']}"
    preview = service.post(f"{at}/prune", dry_run=True, policy={"name": "keep_last_n_steps", "n": 1}).json()
    for schema, answer in (
        ("Turn", service.get(place(turn), include_internal_tools=True)),
        ("TurnPage", service.get(f"{at}/turns")),
        ("Conversation", service.get(at)),
        ("StepPage", service.get(f"{at}/steps")),
        ("Prompt", service.get(f"{at}/prompt")),
        ("PruneResult", preview),
    ):
        assert_described(schema, answer)


def test_lists_agents_and_problems_match_their_schema(service: Service) -> None:
    service.play(DONE)
    assert_described("ConversationPage", service.get("/conversations"))
    assert_described("AgentList", service.get("/agents"))
    assert_described("AgentDetails", service.get("/agents/scripted"))
    for path in ("/nothing", "/conversations/x", "/conversations?limit=0", "/turn"):
        assert_described("Problem", service.client.get(path).json())


def test_the_schema_of_events_refuses_others(service: Service) -> None:
    final = log_of(service, service.play(DONE))[-1].data
    wrong: list[dict[str, Any]] = [
        {name: value for name, value in final.items() if name != "type"},
        {name: value for name, value in final.items() if name != "result"},
        {**final, "seq": "last"},
    ]

    assert [validator("Event").is_valid(event) for event in wrong] == [False] * 3
    assert validator("Event").is_valid({**wrong[1], "type": "turn.adjourned"}), "a later release may add it"
    assert not validator("KnownEvent").is_valid({**final, "type": "turn.adjourned"})


APP = ROOT / "app" / "smolsessions"


def test_an_answer_has_the_id_that_its_request_has(service: Service) -> None:
    for sent in ("abc-1:2.x_Y", "a" * 128):
        for path in ("/livez", "/conversations", "/", "/nothing"):
            answer = service.client.get(path, headers={"X-Request-Id": sent})
            assert answer.headers.get_list("X-Request-Id") == [sent]
        refused = service.client.post("/turn", json={}, headers={"X-Request-Id": sent})
        assert problem(refused, 422, "invalid_request")["instance"] == sent
    with posting(service, DONE) as stream:
        assert re.fullmatch("[0-9a-f]{16}", stream.response.headers["X-Request-Id"])
    service.client.post("/turn", json={"message": "[", "agent": "scripted"}, headers={"X-Request-Id": "find-me"})
    lines = [line for line in service.log().splitlines() if "request=find-me " in line]
    assert [line for line in lines if "model_error" in line]


def test_other_requests_get_ids_of_their_own(service: Service) -> None:
    for sent in (None, "", "a b", "a" * 129, "<script>", "é"):
        headers = [] if sent is None else [(b"X-Request-Id", sent.encode())]
        answers = [service.client.get("/nothing", headers=headers) for _ in range(2)]
        ids = [problem(answer, 404, "not_found")["instance"] for answer in answers]
        assert ids == [answer.headers["X-Request-Id"] for answer in answers]
        assert len({*ids, sent}) == 3
        assert all(re.fullmatch("[0-9a-f]{16}", each) for each in ids)


def test_each_code_of_an_answer_has_a_page(service: Service) -> None:
    for code, answer in codes_of_answers().items():
        page = service.client.get(f"/docs/errors/{code}")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert answer().message.split(";")[0].replace("'", "&#x27;") in page.text
    for failures, what in ((FAILURES, "turn"), (STEP_FAILURES, "step")):
        assert all(f"<p>Of a {what}: " in service.client.get(f"/docs/errors/{code}").text for code in failures)
    problem(service.client.get("/docs/errors/never"), 404, "not_found")


def test_each_failure_of_a_turn_is_listed() -> None:
    used: set[object] = set()
    for path in APP.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Name("Failure" | "_Kind"), args=[ast.Constant(str(code)), *_]):
                    used.add(code)
    assert {"model_error", "deadline_exceeded", "rolled_back", "rate_limited"} <= used
    assert used <= FAILURES.keys()
