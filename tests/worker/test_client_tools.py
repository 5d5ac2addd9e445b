"""Tools that the client runs, whose calls wait for its results, and answers with a schema that the client sends."""

import json
from base64 import b64encode
from functools import partial
from typing import Any

import pytest
from smolagents import Tool

from tests.support.answering import APPROVE, answer, answering, ask, observed
from tests.support.approvals import TOOLS, make_plain
from tests.support.coders import make_coder
from tests.support.service import Service
from tests.support.streaming import Event
from tests.support.turns import DONE, error_code, png

pytestmark = pytest.mark.timeout(120)

WHERE: dict[str, Any] = {
    "name": "where",
    "description": "Return the place of a thing.",
    "parameters": {"type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"]},
    "output_schema": {"type": "object", "required": ["room"], "properties": {"room": {"type": "string"}}},
}


@pytest.fixture(scope="module")
def service(asking: Service) -> Service:
    return asking


def in_room(room: str) -> Event:
    return {"result": {"room": room}}


def where(thing: str) -> list[Any]:
    return ["where", {"thing": thing}]


def test_a_call_waits_for_the_result_of_the_client(service: Service) -> None:
    turn = ask(service, {"call": [where("key"), ["echo", {"text": "own"}], where("cup")]}, DONE, client_tools=[WHERE])
    first, second = turn["requests"]
    assert [first[n] for n in ("kind", "tool", "arguments", "call_id")] == ["result", "where", {"thing": "key"}, "1.1"]
    assert (first["parameters"], first["output_schema"]) == (WHERE["parameters"], WHERE["output_schema"])
    assert second["arguments"] == {"thing": "cup"}
    ended = answer(service, turn, in_room("hall"), in_room("sink"))
    assert observed(service, turn)[0] == "{'room': 'hall'}\nown\n{'room': 'sink'}"
    assert [(call["name"], call["where"], call["repeated"]) for call in ended["tool_calls"]] == [
        *(("where", "client", False), ("echo", "service", False), ("where", "client", False))
    ]
    assert ended["tool_call_names"] == ["where", "echo", "where"]


def test_an_error_of_the_client_is_one_of_the_tool(service: Service) -> None:
    turn = ask(service, {"call": [where("key")]}, {"shown": True}, client_tools=[WHERE])
    ended = answer(service, turn, {"error": "nobody knows"})
    assert "ClientToolError: nobody knows" in ended["reply"]
    assert [call["ok"] for call in ended["tool_calls"]] == [False]


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        ({"result": {"room": 1}}, "/answers/0/result/room"),
        ({"result": {}}, "/answers/0/result"),
        (APPROVE, "/answers/0"),
        (APPROVE | in_room("x"), "/answers/0"),
        (in_room("x") | {"error": "none"}, "/answers/0/error"),
        ({}, "/answers/0/decision"),
    ],
)
def test_a_wrong_result_is_refused(service: Service, given: Event, pointer: str) -> None:
    turn = ask(service, {"call": [where("key")]}, DONE, client_tools=[WHERE])
    refused = answering(service, turn, given)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, pointer)
    assert error_code(answering(service, turn, in_room("x" * 1024 * 1024))) == "too_large"
    assert answering(service, turn, in_room("hall")).status_code == 200
    assert answering(service, turn, in_room("hall")).status_code == 200
    assert error_code(answering(service, turn, in_room("sink"))) == "already_answered"


def test_a_tool_with_an_approval_asks_for_it_first(service: Service) -> None:
    turn = ask(service, {"call": [where("key"), where("pen")]}, DONE, client_tools=[WHERE], approve=["where"])
    assert [request["kind"] for request in turn["requests"]] == ["approval"] * 2
    turn = answer(service, turn, APPROVE | {"arguments": {"thing": "cup"}}, APPROVE, status=202)
    assert [[request[name] for name in ("kind", "arguments", "replaces")] for request in turn["requests"]] == [
        *(["result", {"thing": "cup"}, None], ["result", {"thing": "pen"}, None])
    ]
    ended = answer(service, turn, in_room("sink"), in_room("desk"))
    assert [call["approval"]["decision"] for call in ended["tool_calls"]] == ["edited", "approved"]
    assert observed(service, turn)[0].startswith("{'room': 'sink'}\n{'room': 'desk'}")


def test_media_of_a_result_reach_the_agent(service: Service) -> None:
    turn = ask(service, {"call": [where("key"), where("cup")]}, DONE, client_tools=[{**WHERE, "output_schema": None}])
    broken = answering(service, turn, {"result": 1}, {"images": ["bm8="]}).json()
    assert broken["errors"][0]["pointer"] == "/answers/1/images/0"
    large = [png("red", (4000, 4000))]  # 16 million pixels, and 25 for all answers
    assert error_code(answering(service, turn, {"images": large}, {"images": large})) == "too_large"
    file = {"name": "notes.txt", "media_type": "text/plain", "data": b64encode(b"in the hall").decode()}
    half = {"files": [{**file, "data": b64encode(b"x" * 3_000_000).decode()}]}  # and 5 MiB for all answers
    assert error_code(answering(service, turn, half, half)) == "too_large"
    turn = answer(service, turn, {"result": None}, status=202)
    ended = answer(service, turn, {"images": [png("red")], "files": [file], "result": "both"})
    assert ended["status"] == "finished"
    assert observed(service, turn)[0].startswith("None\nboth")


def test_a_call_whose_arguments_cannot_be_shown_is_not_made(service: Service) -> None:
    lines = ["try:", "    where('x' * 300_000)", "except Exception as error:", "    print(error)"]
    code = "\n".join([*lines, "print(send_email('x' * 300_000, 'hi'))"])
    seen = observed(service, service.play({"code": code}, DONE, agent="code-mailer", client_tools=[WHERE]))[0]
    assert "the arguments of where hold more than 256 KiB" in seen
    assert "send_email needs an approval, and its arguments hold more than 256 KiB. It was not made" in seen


def test_tools_of_a_conversation_hold_for_its_turns(service: Service) -> None:
    made = service.post("/conversations", agent="mailer", client_tools=[WHERE]).json()
    assert made["client_tools"] == [WHERE]
    other = {**WHERE, "description": "Another.", "output_schema": None}
    for tools, schema in (([], WHERE["output_schema"]), ([other], None)):
        options = {"conversation_id": made["id"], "client_tools": tools, "approve": ["where"]}
        turn = ask(service, {"call": [where("a")]}, DONE, **options)
        turn = answer(service, turn, APPROVE, status=202)
        assert turn["requests"][0]["output_schema"] == schema
        answer(service, turn, in_room("hall"))
    system, *_ = service.get(f"/conversations/{made['id']}/prompt")["messages"]
    assert "- where: Return the place of a thing." in json.dumps(system)
    patched = service.client.patch(f"/conversations/{made['id']}", json={"client_tools": []})
    assert patched.json()["client_tools"] == []
    again = {"conversation_id": made["id"], "message": json.dumps([{"call": [where("a")]}, DONE])}
    ended = service.post("/turn", **again)
    assert (ended.status_code, ended.json()["requests"]) == (200, [])
    assert service.post("/turn", **again, approve=["where"]).json()["errors"][0]["pointer"] == "/approve/0"


class Where(Tool):
    """The same tool in a bare agent."""

    name, description, output_type, output_schema = "where", WHERE["description"], "object", WHERE["output_schema"]
    inputs = {"thing": {"type": "string", "description": ""}}  # noqa: RUF012 - smolagents' own form

    def forward(self, thing: str) -> dict[str, str]:
        return {"room": thing}


MAKE: dict[str, Any] = {"plain": make_plain, "wild": partial(make_coder, ("sqlite3",))}


@pytest.mark.parametrize("agent", MAKE)
def test_prompts_equal_those_of_a_bare_agents_tool(service: Service, agent: str) -> None:
    script = [{"call": [where("key")]} if agent == "plain" else {"code": "print(where('key'))"}, {"prompt": True}]
    bare = MAKE[agent](tools=[*TOOLS, Where()]).run(json.dumps(script))  # type: ignore[no-untyped-call]
    turn = ask(service, *script, agent=agent, client_tools=[WHERE])
    assert answer(service, turn, in_room("key"))["reply"] == bare


def _schema(**members: Any) -> Event:
    return {**WHERE, "parameters": {"type": "object", "properties": members}}


@pytest.mark.parametrize(
    ("tools", "code", "pointer"),
    [
        ([{**WHERE, "name": "echo"}], "tool_name_taken", "/client_tools/0/name"),
        ([WHERE, WHERE], "tool_name_taken", "/client_tools/1/name"),
        ([{**WHERE, "name": "final_answer"}], "tool_name_taken", "/client_tools/0/name"),
        ([{**WHERE, "name": "class"}], "invalid_request", "/client_tools/0/name"),
        ([_schema(a={"$ref": "https://o.test/a"})], "invalid_request", "/client_tools/0/parameters/properties/a/$ref"),
        ([{**WHERE, "parameters": {"properties": 1}}], "invalid_request", "/client_tools/0/parameters/properties"),
        ([{**WHERE, "parameters": {"type": "array"}}], "invalid_request", "/client_tools/0/parameters/type"),
        ([{**WHERE, "output_schema": {"type": "room"}}], "invalid_request", "/client_tools/0/output_schema/type/0"),
        ([_schema(a={"description": "x" * 70_000})], "invalid_request", "/client_tools"),
        ([{**WHERE, "name": f"t{n}"} for n in range(65)], "invalid_request", "/client_tools"),
    ],
)
def test_a_wrong_tool_is_refused(service: Service, tools: list[Event], code: str, pointer: str) -> None:
    for path, body in (("/turn", {"message": json.dumps([DONE])}), ("/conversations", {})):
        refused = service.client.post(path, json={"agent": "mailer", "client_tools": tools, **body})
        problem = refused.json()
        assert (refused.status_code, problem["code"], problem["errors"][0]["pointer"]) == (422, code, pointer)


ROOM: Event = {
    "$defs": {"size": {"type": "integer", "minimum": 1}},
    "type": "object",
    "required": ["size"],
    "properties": {"size": {"$ref": "#/$defs/size"}, "parts": {"type": "array", "items": {"$ref": "#"}}},
}
LONG: Event = {"type": "string", "minLength": 20}


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


@pytest.mark.parametrize("agent", MAKE)
def test_prompts_equal_those_of_a_bare_agent(service: Service, agent: str) -> None:
    schema, what = {**LONG, "description": "Some text."}, "The final answer to the problem"
    asks: Event = {"call": [["echo", {"text": "a"}]]} if agent == "plain" else {"code": "echo('a')"}
    if agent == "plain":
        entry, shown = final, {**LONG, "description": f"{what}. Some text."}
    else:
        entry = code
        shown = {"type": "string", "description": f"{what}, as JSON of this schema: {json.dumps(schema)}"}
    script = [entry("short"), asks, asks, {"prompt": True}]  # the model counts a refused answer twice

    def output_schema(value: str, *_args: Any, **_kwargs: Any) -> bool:
        if len(value) < LONG["minLength"]:
            raise ValueError("the answer: 'short' is too short")
        return True

    bare = MAKE[agent](tools=[*TOOLS], final_answer_checks=[output_schema])
    bare.tools["final_answer"].inputs = {"answer": shown}
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


def test_a_name_that_code_has_of_its_own_is_taken(service: Service) -> None:
    named = {"message": json.dumps([DONE]), "client_tools": [{**WHERE, "name": "len"}]}
    refused = service.client.post("/turn", json={"agent": "wild", **named})
    assert (refused.status_code, error_code(refused)) == (422, "tool_name_taken")
    assert service.client.post("/turn", json={"agent": "mailer", **named}).status_code == 200
