"""Decode steps of smolagents' own `agent.memory.get_full_steps()`, also after JSON: as the members of own steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from smolagents.models import MessageRole

from smolsessions.agents.transfer.document_models import Strict, Text, checked, is_parts
from smolsessions.agents.transfer.step_models import IMAGE_FIELDS, ActionIn, PlanningIn, StepIn, TaskIn
from smolsessions.agents.values.json_forms import json_flaw, json_pointer
from smolsessions.core.errors import InvalidRequestError

Members = dict[str, Any]

_ROLES = {role.name: role for role in MessageRole} | {role.value: role for role in MessageRole}
_OWN = StepIn.own | {"action_output_image", "action_output_file", "shown_estimate", "task_files"}


class _SystemPrompt(Strict):
    system_prompt: Text


_MARKS: dict[str, tuple[str, type[Strict]]] = {
    "task": ("task", TaskIn),
    "plan": ("planning", PlanningIn),
    "step_number": ("action", ActionIn),
    "system_prompt": ("", _SystemPrompt),
}


def read_memory_step(data: Any, pointer: str, turn: int) -> StepIn | None:
    """Validate a step's members, which show its type, after a step of `turn`. Returns None for a system prompt."""
    marks = [mark for mark in _MARKS if mark in data] if isinstance(data, dict) else []
    if not marks:
        raise InvalidRequestError.at(pointer, f"is no step of smolagents: it has none of {', '.join(_MARKS)}")
    kind, model = _MARKS[marks[0]]
    step = checked(model, _step_members(data, pointer, kind, turn), pointer, place=_place)
    return step if isinstance(step, StepIn) else None


def _step_members(data: Members, pointer: str, kind: str, turn: int) -> Members:
    for name in data:
        if name in _OWN:
            raise InvalidRequestError.at(json_pointer(pointer, name), "is no member of smolagents' steps")
        if name in IMAGE_FIELDS and data[name]:
            reason = "holds images as smolagents gives them, pixels without a size; put null in their place"
            raise InvalidRequestError.at(json_pointer(pointer, name), reason)
    step = _converted(_without(data, "model_input_messages", *IMAGE_FIELDS), _STEP)
    if kind == "planning" and step.get("model_output_message") is None:
        step["model_output_message"] = {"role": "assistant", "content": data["plan"]}
    return step | {"type": kind, "turn": turn + (kind == "task" or not turn)} if kind else step


def _place(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return the place of a fault in smolagents' form of a call."""
    is_nested = "tool_calls" in loc and loc[-1] in {"name", "arguments", "description"}
    return (*loc[:-1], "function", loc[-1]) if is_nested else loc


def _message_call(call: Members) -> Members:
    function = call.pop("function", None)
    return function | call if isinstance(function, dict) else call


def _call(call: Members) -> Members:
    return _without(_message_call(call), "type", "description")


def _message(message: Members) -> Members:
    """Return the members of a message. Its role is a member, its value, or its `str()`."""
    role, content = message.get("role"), message.get("content")
    name = role.removeprefix("MessageRole.") if type(role) is str else role
    if not (content is None or isinstance(content, str) or is_parts(content) or json_flaw(content)):
        content = json.dumps(content, ensure_ascii=False)  # a text that looked like JSON: smolagents reads those
    role = _ROLES.get(name, role) if isinstance(name, str) else role
    members = _without(message, "raw") | {"role": role, "content": content}
    return _converted(members, {"tool_calls": _message_call} | _COST)


def _without(members: Members, *names: str) -> Members:
    return {name: value for name, value in members.items() if name not in names}


def _converted(members: Members, converters: Mapping[str, Callable[[Members], Members]]) -> Members:
    """Return the members that are read. Converters get copies of objects, or of the objects in a list."""
    converted = dict(members)
    for name, convert in converters.items():
        value = members.get(name)
        if isinstance(value, dict):
            converted[name] = convert(dict(value))
        elif isinstance(value, list) and name == "tool_calls":  # an empty one is smolagents' form of no calls
            converted[name] = [convert(dict(one)) if isinstance(one, dict) else one for one in value] or None
    return converted


_COST: dict[str, Callable[[Members], Members]] = {
    "timing": lambda timing: _without(timing, "duration"),
    "token_usage": lambda usage: _without(usage, "total_tokens"),
}
_STEP = {"tool_calls": _call, "model_output_message": _message} | _COST
