"""Answers and events match openapi.yaml, and ids of requests and codes of errors are in answers, logs and pages."""

import ast
import re
from typing import Any

import pytest

from smolsessions.core.errors import FAILURES, STEP_FAILURES, codes_of_answers
from tests.support.openapi import assert_described, validator
from tests.support.problems import problem
from tests.support.service import ROOT, Service
from tests.support.streaming import log_of, place, posting
from tests.support.turns import DONE

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
    turn = service.play(DONE)
    final = log_of(service, turn)[-1].data
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
