"""Answers with a JSON Schema: one of another form goes back to the agent."""

import json
from functools import partial
from typing import Any

import pytest

from tests.support.answering import APPROVE, answer, ask, observed
from tests.support.approvals import TOOLS, make_plain
from tests.support.coders import make_coder
from tests.support.service import Service
from tests.support.streaming import Event
from tests.support.turns import error_code

pytestmark = pytest.mark.timeout(120)

ROOM: Event = {
    "$defs": {"size": {"type": "integer", "minimum": 1}},
    "type": "object",
    "required": ["size"],
    "properties": {"size": {"$ref": "#/$defs/size"}, "parts": {"type": "array", "items": {"$ref": "#"}}},
}
LONG: Event = {"type": "string", "minLength": 20}


@pytest.fixture(scope="module")
def service(asking: Service) -> Service:
    return asking


def final(value: Any) -> Event:
    return {"call": [["final_answer", {"answer": value}]]}


def code(value: Any) -> Event:
    return {"code": f"final_answer({value!r})"}


@pytest.mark.parametrize(("agent", "entry"), [("plain", final), ("wild", code)])
def test_an_answer_of_another_form_goes_back_to_the_agent(service: Service, agent: str, entry: Any) -> None:
    wrong, right = {"size": 2, "parts": [{"size": 0}]}, {"size": 2, "parts": [{"size": 1, "more": None}]}
    turn = service.play(entry(wrong), entry(right), agent=agent, output_schema=ROOM)
    assert (turn["status"], turn["output"], json.loads(turn["reply"])) == ("finished", right, right)
    assert turn["options"]["output_schema"] == ROOM
    errors = [step["error"] for step in service.steps(turn) if step["type"] == "action"]
    assert [error and error["message"] for error in errors] == [
        *("Check output_schema failed with error: /parts/0/size: 0 is less than the minimum of 1", None)
    ]


@pytest.mark.parametrize(
    ("agent", "make", "entry", "shown"),
    [
        ("plain", make_plain, final, {**LONG, "description": "The final answer to the problem. Some text."}),
        (
            "wild",
            partial(make_coder, ("sqlite3",)),
            code,
            {
                "type": "string",
                "description": "The final answer to the problem, as JSON of this schema: "
                '{"type": "string", "minLength": 20, "description": "Some text."}',
            },
        ),
    ],
)
def test_prompts_equal_those_of_a_bare_agent(service: Service, agent: str, make: Any, entry: Any, shown: Event) -> None:
    asks: Event = {"call": [["echo", {"text": "a"}]]} if agent == "plain" else {"code": "echo('a')"}
    script = [entry("short"), asks, asks, {"prompt": True}]  # the model counts a refused answer twice

    def output_schema(value: str, *_args: Any, **_kwargs: Any) -> bool:
        if len(value) < LONG["minLength"]:
            raise ValueError("the answer: 'short' is too short")
        return True

    bare = make(tools=[*TOOLS], final_answer_checks=[output_schema])
    bare.tools["final_answer"].inputs = {"answer": shown}
    schema = {**LONG, "description": "Some text."}
    turn = ask(service, *script, agent=agent, output_schema=schema, approve=["echo"])
    assert answer(service, turn, APPROVE)["reply"] == bare.run(json.dumps(script))  # after a replay
    assert len(observed(service, turn)) == 3


def test_a_turn_without_steps_for_a_right_answer_fails(service: Service) -> None:
    script = [final({"size": "2"}), final({"size": 0})]
    turn = service.play(*script, agent="plain", output_schema=ROOM, max_steps=2)
    assert (turn["status"], turn["error"]["code"], turn["outcome"]) == ("failed", "output_invalid", "max_steps_error")
    assert turn["output"] is None
    forced = service.play(final("short"), agent="plain", output_schema={"enum": ["forced answer"]}, max_steps=1)
    assert (forced["status"], forced["output"], forced["outcome"]) == ("finished", "forced answer", "max_steps_error")


def test_a_turn_replaces_the_schema_of_its_agent(service: Service) -> None:
    script = [final("no"), final(["yes"])]
    assert service.play(*script, agent="formed")["output"] == ["yes"]
    assert service.play(*script, agent="formed", output_schema={})["output"] == "no"
    assert service.play(*script, agent="formed", output_schema={"type": "string"})["output"] == "no"


_DEEP: Event = {}
for _ in range(40):
    _DEEP = {"items": _DEEP}


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"items": {"$ref": "https://elsewhere.test/a"}}, "/items/$ref"),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/none"}]}, "/anyOf/1/$ref"),
        ({"properties": {"a": {"type": "text"}}}, "/properties/a/type/0"),
        ({"properties": {"$ref": {"minimum": "1"}}}, "/properties/$ref/minimum"),
        ({"description": "x" * 70_000}, ""),
        ({"anyOf": [{}] * 5100}, ""),
        (_DEEP, ""),
    ],
)
def test_a_wrong_schema_is_refused(service: Service, schema: Event, pointer: str) -> None:
    refused = service.client.post("/turn", json={"agent": "plain", "message": "[]", "output_schema": schema})
    assert (refused.status_code, error_code(refused)) == (422, "invalid_request")
    assert refused.json()["errors"][0]["pointer"] == f"/output_schema{pointer}"
