"""Kinds of a step's fields. An author's callback may leave any value there, and every reader relies on these kinds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import PIL.Image
from smolagents.memory import ActionStep, PlanningStep, TaskStep, ToolCall
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import Timing, TokenUsage
from smolagents.utils import AgentError

from smolsessions.agents.values.json_forms import json_form, utf8_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from smolagents.memory import MemoryStep

    Rule = Callable[[Any], Any]

Error = TypeVar("Error", bound=AgentError)


def repair_fields(step: MemoryStep) -> list[str]:
    """Replace the values of a wrong kind, in place, and return the names of their fields."""
    restored = []
    for kind, rules in _RULES:
        if isinstance(step, kind):
            for name, rule in rules.items():
                before = getattr(step, name, None)
                after = rule(before)
                if after is not before:
                    setattr(step, name, after)
                    restored.append(name)
    return restored


def error_of(kind: type[Error], message: str) -> Error:
    """Return an error without `AgentError.__init__`, which needs a logger to print to."""
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


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _output(value: Any) -> str | list[Any] | None:
    is_parts = isinstance(value, list) and all(isinstance(part, dict) for part in value)
    return value if is_parts else _text_or_none(value)


def _error(value: Any) -> AgentError | None:
    return value if value is None or isinstance(value, AgentError) else error_of(AgentError, _text(value))


def _images(value: Any) -> Any:
    return _only(value, PIL.Image.Image)


def _calls(value: Any) -> Any:
    calls = _only(value, ToolCall)
    return calls if calls is None or all(map(_is_call, calls)) else [*map(_call, calls)]


def _only(value: Any, kind: type) -> Any:
    """Keep the members of this kind; anything else than a list or a tuple holds none."""
    if not isinstance(value, list | tuple):
        return None
    return value if all(isinstance(one, kind) for one in value) else [one for one in value if isinstance(one, kind)]


def _is_call(call: ToolCall) -> bool:
    return type(call) is ToolCall and isinstance(call.name, str) and isinstance(call.id, str | None)


def _call(call: ToolCall) -> ToolCall:
    name, arguments, call_id = (getattr(call, name, None) for name in ("name", "arguments", "id"))
    return ToolCall(_text(name), arguments, _text(call_id))


def _message(value: Any) -> ChatMessage | None:
    if not isinstance(value, ChatMessage):
        return None
    usage, are_calls = _usage(value.token_usage), _are_message_calls(value.tool_calls)
    if usage is value.token_usage and are_calls:
        return value
    return replace(value, token_usage=usage, tool_calls=value.tool_calls if are_calls else None)


def _are_message_calls(calls: Any) -> bool:
    return calls is None or (
        isinstance(calls, list)
        and all(isinstance(call, ChatMessageToolCall) for call in calls)
        and all(isinstance(call.function, ChatMessageToolCallFunction) for call in calls)
    )


def _some_message(value: Any) -> ChatMessage:
    return _message(value) or ChatMessage(role=MessageRole.ASSISTANT, content=None)


def _timing(value: Any) -> Timing:
    is_timing = isinstance(value, Timing) and _is_finite(value.start_time)
    return value if is_timing and (value.end_time is None or _is_finite(value.end_time)) else Timing(0.0)


def _usage(value: Any) -> TokenUsage | None:
    is_usage = isinstance(value, TokenUsage) and _is_finite(value.input_tokens) and _is_finite(value.output_tokens)
    return value if is_usage else None


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _number(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _flag(value: Any) -> bool:
    return value if isinstance(value, bool) else value == 1 if isinstance(value, int) else False


_COST: dict[str, Rule] = {"timing": _timing, "token_usage": _usage}
_RULES: tuple[tuple[type[MemoryStep], dict[str, Rule]], ...] = (
    (
        ActionStep,
        {
            "step_number": _number,
            "model_output": _output,
            "model_output_message": _message,
            "tool_calls": _calls,
            "code_action": _text_or_none,
            "observations": _text_or_none,
            "observations_images": _images,
            "error": _error,
            "is_final_answer": _flag,
            **_COST,
        },
    ),
    (PlanningStep, {"plan": _text, "model_output_message": _some_message, **_COST}),
    (TaskStep, {"task": _text, "task_images": _images}),
)
