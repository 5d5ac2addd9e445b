"""Schema of a turn's answer: `final_answer` shows it to the model, and an answer of another form is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from pydantic_core import to_json
from smolagents import CodeAgent, MultiStepAgent, Tool
from smolagents.default_tools import FinalAnswerTool

from smolsessions.agents.run.proxy import unproxied
from smolsessions.agents.tools.json_schemas import check_schema, schema_problems
from smolsessions.agents.tools.mcp_schemas import MAX_BYTES, adapted, resolved, shown_to_models
from smolsessions.agents.values.json_forms import json_form
from smolsessions.agents.values.results import without_text
from smolsessions.core.errors import InvalidRequestError

FINAL = "final_answer"


def check_output_schema(schema: dict[str, Any], pointer: str = "/output_schema") -> None:
    """Raise `InvalidRequestError` for a schema that no model can be shown, or no answer checked by."""
    if len(to_json(schema)) > MAX_BYTES:
        raise InvalidRequestError.at(pointer, "is larger than 64 KiB")
    check_schema(schema, pointer)
    with shown_to_models(pointer):
        _shown(schema)


def output_problems(schema: dict[str, Any], output: Any) -> str:
    """Return the mistakes in the JSON form of an answer, as a sentence for the model. Empty: it conforms."""
    found = schema_problems(schema, json_form(without_text(output)))
    return "; ".join(f"{pointer or 'the answer'}: {message}" for pointer, message in found)


def answer_check(schema: dict[str, Any]) -> Callable[..., bool]:
    """Return a check for `final_answer_checks`. It is no effect of the turn: a replay finds the same."""

    def output_schema(answer: Any, *_args: Any, **_kwargs: Any) -> bool:
        if problems := output_problems(schema, answer):
            raise ValueError(problems)
        return True

    return output_schema


def tools_of_turn(agent: MultiStepAgent, client_tools: Sequence[Tool], schema: dict[str, Any] | None) -> dict[str, Any]:
    """Return the tools of an agent in a turn, those of the client before `final_answer`, as in a bare agent.

    `final_answer` shows the schema. One of the author's stays as it is.
    """
    tools = {**agent.tools, **{tool.name: tool for tool in client_tools}}
    if FINAL not in tools:
        return tools
    last = tools.pop(FINAL)
    if schema and type(tool := unproxied(last)) is FinalAnswerTool:
        last, shown = copy(tool), _shown(schema)
        text = tool.inputs["answer"]["description"]
        if isinstance(agent, CodeAgent):  # whose prompt shows no more of an input than type and description
            text = f"{text}, as JSON of this schema: {json.dumps(schema, ensure_ascii=False)}"
        elif shown["description"]:
            text = f"{text}. {shown['description']}"
        last.inputs = {"answer": {**shown, "description": text}}
    return {**tools, FINAL: last}


def _shown(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema as smolagents shows it, as the one argument of a tool. Raises `SchemaError`."""
    wrapped = {"properties": {"answer": resolved(schema)}, "required": ["answer"]}
    return adapted(FINAL, "", wrapped, None, ()).inputs["answer"]
