"""Checks of the arguments that a person changes, against schemas of any server."""

import time
from typing import Any

import pytest

import smolsessions
from smolsessions.agents.option_checks import check_approvals, check_options
from smolsessions.agents.run.approvals import edited, matches
from smolsessions.agents.tools.json_schemas import schema_problems
from smolsessions.core.errors import StartError
from tests.support import approvals


def test_a_rule_has_the_name_that_a_tool_itself_has() -> None:
    agent = approvals.make_plain()
    agent.tools["mail"] = agent.tools.pop("send_email")
    check_approvals("office", smolsessions.options(agent, approve=["send_email"]), takes_caller=False)
    with pytest.raises(StartError, match="approve: entry 1 names no tool that the agent can call"):
        check_approvals("office", smolsessions.options(agent, approve=["mail"]), takes_caller=False)


def test_an_agent_with_a_wrong_schema_is_not_served() -> None:
    agent = smolsessions.options(approvals.make_plain(), output_schema={"properties": {"a": {"type": "text"}}})
    with pytest.raises(StartError, match="the agent 'office': output_schema: /properties/a/type/0: "):
        check_options("office", agent)


@pytest.mark.parametrize("name", ["final_answer", "python_interpreter", "ask_user"])
def test_a_pattern_names_no_internal_tool(name: str) -> None:
    assert not matches(name, ["*", "*_*"])
    assert matches(name, [name]) == (name != "final_answer")
    assert matches("send_email", ["delete", "send_*"])


def test_an_edit_changes_what_differs_as_json() -> None:
    image, shown = object(), {"picture": "an image", "times": 1, "to": ["ann", "bob"], "more": {}}
    given = shown | {"picture": image, "to": ("ann", image)}
    changed = edited(given, shown, {"picture": "an image", "times": True, "to": ["eve", "bob", "ann"]})
    assert changed == {"picture": image, "times": True, "to": ["eve", image, "ann"]}
    assert changed["times"] is True


def test_arguments_with_the_names_of_keywords_are_arguments() -> None:
    schema = {
        "type": "object",
        "properties": {"pattern": {"type": "string", "pattern": "^a"}, "mode": {"const": {"pattern": 1}}},
        "required": ["pattern"],
        "additionalProperties": False,
    }
    assert schema_problems(schema, {"pattern": "b", "mode": {"pattern": 1}}) == []
    assert [pointer for pointer, _ in schema_problems(schema, {"pattern": 1, "mode": {}})] == ["/pattern", "/mode"]
    assert [pointer for pointer, _ in schema_problems(schema, {"pattern": "b", "$ref": 1})] == [""]


def test_names_that_only_a_pattern_allows_are_let_through() -> None:
    schema = {"patternProperties": {"^x-": {}}, "additionalProperties": False, "properties": {"a": {"type": "string"}}}
    assert schema_problems(schema, {"a": "b", "x-1": 1}) == []
    assert [pointer for pointer, _ in schema_problems(schema, {"a": 1})] == ["/a"]


def _nested(depth: int) -> tuple[dict[str, Any], dict[str, Any]]:
    schema: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    for _ in range(depth):
        schema, arguments = {"properties": {"a": schema}}, {"a": arguments}
    return schema, arguments


_DOUBLED = {str(n + 1): {"allOf": [{"$ref": f"#/$defs/{n}"}] * 2} for n in range(16)} | {"0": {}}


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"type": "obj"}, {}),
        ({"properties": 5}, {"a": 1}),
        ({"properties": {"a": {"multipleOf": 0}}}, {"a": 1}),
        ({"properties": {"a": {"minimum": "x"}}}, {"a": 1}),
        _nested(2000),
        ({"$ref": "#"}, {}),
        ({"$ref": "https://elsewhere.test/a"}, {}),
        ({"allOf": [{"$ref": "#/$defs/16"}], "$defs": _DOUBLED}, {}),
        ({"anyOf": [{"type": "string"}] * 3000}, {"a": "x" * 500_000}),
    ],
    ids=["type", "properties", "multiple", "minimum", "deep", "circle", "foreign", "doubled", "branches"],
)
def test_a_schema_that_is_wrong_refuses_changes(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    ((pointer, message),) = schema_problems(schema, arguments)
    assert pointer == ""
    assert "its schema is wrong" in message


def test_references_within_a_schema_are_followed() -> None:
    schema = {"properties": {"of": {"$ref": "#"}, "n": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}
    assert schema_problems(schema, {"n": 1, "of": {"of": {"n": 2}}}) == []
    assert [pointer for pointer, _ in schema_problems(schema, {"of": {"of": {"n": "x"}}})] == ["/of/of/n"]
    others = {"items": {"not": {"$ref": "#/$defs/n"}}, "$defs": schema["$defs"]}
    assert schema_problems(others, ["x"] * 200) == []


def test_many_equal_items_take_no_time() -> None:
    since = time.process_time()
    schema = {"properties": {"a": {"uniqueItems": True}}}
    assert schema_problems(schema, {"a": [{"i": i} for i in range(20_000)]}) == []
    assert time.process_time() - since < 10
