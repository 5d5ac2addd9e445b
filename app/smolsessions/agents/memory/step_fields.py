"""Types of a step's fields. A callback may store any value there, while every reader relies on these types."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import PIL.Image
from smolagents.memory import ActionStep, MemoryStep, PlanningStep, TaskStep, ToolCall
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import Timing, TokenUsage
from smolagents.utils import AgentError

from smolsessions.agents.values.json_forms import json_form, utf8_text

Rule = Callable[[Any], Any]

Error = TypeVar("Error", bound=AgentError)


def repair_fields(step: MemoryStep) -> list[str]:
    """Replace values of a wrong type in place, and return the names of their fields."""
    rules = next((rules for kind, rules in _RULES.items() if isinstance(step, kind)), {})
    repaired = []
    for name, rule in rules.items():
        before = getattr(step, name, None)
        after = rule(before)
        if after is not before:
            setattr(step, name, after)
            repaired.append(name)
    return repaired


def error_of(kind: type[Error], message: str) -> Error:
    """Return an error without `AgentError.__init__`, which needs a logger."""
    error = kind.__new__(kind, message)
    error.message = message
    return error


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return utf8_text(str(value if isinstance(value, Exception) else json_form(value)))
    except Exception:  # noqa: BLE001 - a foreign exception's own text
        return str(json_form(value))


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _model_output(value: Any) -> str | list[Any] | None:
    is_parts = isinstance(value, list) and all(isinstance(part, dict) for part in value)
    return value if is_parts else _optional_text(value)


def _error(value: Any) -> AgentError | None:
    return value if value is None or isinstance(value, AgentError) else error_of(AgentError, _text(value))


def _calls(value: Any) -> Any:
    calls = _members(value, ToolCall)
    if calls is None or all(
        type(call) is ToolCall and isinstance(call.name, str) and isinstance(call.id, str | None) for call in calls
    ):
        return calls
    fields = [[getattr(call, name, None) for name in ("name", "arguments", "id")] for call in calls]
    return [ToolCall(_text(name), arguments, _text(call_id)) for name, arguments, call_id in fields]


def _members(value: Any, kind: type) -> Any:
    """Keep the members of this type. A value that is no list or tuple has none."""
    if not isinstance(value, list | tuple):
        return None
    return value if all(isinstance(one, kind) for one in value) else [one for one in value if isinstance(one, kind)]


def _optional_message(value: Any) -> ChatMessage | None:
    if not isinstance(value, ChatMessage):
        return None
    usage, calls = _usage(value.token_usage), _message_calls(value.tool_calls)
    is_valid = usage is value.token_usage and calls is value.tool_calls
    return value if is_valid else replace(value, token_usage=usage, tool_calls=calls)


def _message_calls(calls: Any) -> Any:
    is_valid = isinstance(calls, list) and all(
        isinstance(call, ChatMessageToolCall) and isinstance(call.function, ChatMessageToolCallFunction)
        for call in calls
    )
    return calls if is_valid else None


def _message(value: Any) -> ChatMessage:
    return _optional_message(value) or ChatMessage(role=MessageRole.ASSISTANT, content=None)


def _timing(value: Any) -> Timing:
    is_valid = isinstance(value, Timing) and _is_finite(value.start_time)
    return value if is_valid and (value.end_time is None or _is_finite(value.end_time)) else Timing(0.0)


def _usage(value: Any) -> TokenUsage | None:
    is_valid = isinstance(value, TokenUsage) and _is_finite(value.input_tokens) and _is_finite(value.output_tokens)
    return value if is_valid else None


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _number(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _flag(value: Any) -> bool:
    return value if isinstance(value, bool) else isinstance(value, int) and value == 1


_COST: dict[str, Rule] = {"timing": _timing, "token_usage": _usage}
_RULES: dict[type[MemoryStep], dict[str, Rule]] = {
    ActionStep: {
        "step_number": _number,
        "model_output": _model_output,
        "model_output_message": _optional_message,
        "tool_calls": _calls,
        "code_action": _optional_text,
        "observations": _optional_text,
        "observations_images": partial(_members, kind=PIL.Image.Image),
        "error": _error,
        "is_final_answer": _flag,
        **_COST,
    },
    PlanningStep: {"plan": _text, "model_output_message": _message, **_COST},
    TaskStep: {"task": _text, "task_images": partial(_members, kind=PIL.Image.Image)},
}
