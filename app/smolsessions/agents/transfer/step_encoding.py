"""Encode a step as JSON, with all fields that prompt and record depend on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import PIL.Image
from smolagents.agent_types import AgentImage
from smolagents.memory import ActionStep, PlanningStep, TaskStep
from smolagents.models import MessageRole

from smolsessions.agents.memory.step_types import EditStep, NoteStep
from smolsessions.agents.memory.steps import step_type
from smolsessions.agents.memory.token_scale import shown_estimate
from smolsessions.agents.transfer.document_models import MAX_COUNT
from smolsessions.agents.values.images import stored_images
from smolsessions.agents.values.json_forms import json_flaw, json_form, utf8_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smolagents.memory import ToolCall
    from smolagents.models import ChatMessage, ChatMessageToolCall
    from smolagents.monitoring import Timing, TokenUsage

    from smolsessions.agents.memory.steps import Step

LABELS = "smolsessions_labels"
"""Attribute of an imported step with pointers to texts and data that replaced other values at its export."""
_ROLES = frozenset(role.value for role in MessageRole)


def encode_step(step: Step) -> dict[str, Any]:
    """Return a step as JSON data. Its `labels` point to texts and data that replace values without exact JSON."""
    return {"type": step_type(step)} | _StepEncoder(step).members


class _StepEncoder:
    def __init__(self, step: Step) -> None:
        self._labels: set[str] = set(getattr(step, LABELS, ()))
        members: dict[str, Any]
        if isinstance(step, TaskStep):
            members = {"task": self._text("/task", step.task), "task_images": _images(step.task_images)}
        elif isinstance(step, PlanningStep):
            members = self._planning(step)
        elif isinstance(step, ActionStep):
            members = self._action(step)
        elif isinstance(step, NoteStep):
            text = self._text("/text", step.text)
            members = {"number": step.number, "text": text, "replaces": step.replaces}
        elif isinstance(step, EditStep):
            inner = None if step.step is None else encode_step(step.step)
            members = {"step": inner, "of": step.of, "gone": step.gone, "order": step.order}
        else:
            counts = {"input_tokens": step.input_tokens, "output_tokens": step.output_tokens}
            members = {"text": self._text("/text", step.text), "recent": step.recent, **counts}
        self.members = members | {"labels": sorted(self._labels)}

    def _planning(self, step: PlanningStep) -> dict[str, Any]:
        return {
            "plan": self._text("/plan", step.plan),
            "model_output_message": self._message(step.model_output_message),
            **_cost(step.timing, step.token_usage),
        }

    def _action(self, step: ActionStep) -> dict[str, Any]:
        output = step.action_output
        image = _image_name(output)
        return {
            "step_number": step.step_number,
            "model_output": self._output("/model_output", step.model_output),
            "model_output_message": self._message(step.model_output_message),
            "tool_calls": self._calls(step.tool_calls),
            "code_action": self._text_or_none("/code_action", step.code_action),
            "observations": self._text_or_none("/observations", step.observations),
            "observations_images": _images(step.observations_images),
            "action_output": None if image else self._value("/action_output", output),
            "action_output_image": image,
            "error": {"type": type(step.error).__name__, "message": utf8_text(str(step.error))} if step.error else None,
            "is_final_answer": bool(step.is_final_answer),
            "shown_estimate": shown_estimate(step),
            **_cost(step.timing, step.token_usage),
        }

    def _message(self, message: ChatMessage | None) -> dict[str, Any] | None:
        if message is None:
            return None
        role = str(getattr(message.role, "value", message.role))
        if role not in _ROLES:
            self._labels.add("/model_output_message/role")
            role = MessageRole.ASSISTANT.value
        calls = message.tool_calls
        return {
            "role": role,
            "content": self._output("/model_output_message/content", message.content),
            "tool_calls": None if calls is None else [self._message_call(*call) for call in enumerate(calls)],
            "token_usage": _usage(message.token_usage),
        }

    def _message_call(self, index: int, call: ChatMessageToolCall) -> dict[str, Any]:
        pointer, function = f"/model_output_message/tool_calls/{index}", call.function
        return {
            "id": self._text(f"{pointer}/id", call.id),
            "type": self._text(f"{pointer}/type", call.type),
            "name": self._text(f"{pointer}/name", function.name),
            "arguments": self._value(f"{pointer}/arguments", function.arguments),
            "description": self._text_or_none(f"{pointer}/description", function.description),
        }

    def _calls(self, calls: Sequence[ToolCall] | None) -> list[dict[str, Any]] | None:
        if calls is None:
            return None
        return [
            {
                "id": self._text(f"/tool_calls/{index}/id", call.id),
                "name": self._text(f"/tool_calls/{index}/name", call.name),
                "arguments": self._value(f"/tool_calls/{index}/arguments", call.arguments),
            }
            for index, call in enumerate(calls)
        ]

    def _output(self, pointer: str, output: Any) -> Any:
        """Return a model's output: a text, or content parts."""
        if output is None or type(output) is str:
            return self._text_or_none(pointer, output)
        parts = self._value(pointer, output)
        if isinstance(parts, list) and all(isinstance(part, dict) for part in parts):
            return parts
        return self._text(pointer, output)

    def _text_or_none(self, pointer: str, text: Any) -> str | None:
        return None if text is None else self._text(pointer, text)

    def _text(self, pointer: str, text: Any) -> str:
        if type(text) is str:
            return utf8_text(text)
        self._labels.add(pointer)
        return utf8_text(str(json_form(text)))

    def _value(self, pointer: str, value: Any) -> Any:
        if json_flaw(value) is None:
            return value
        self._labels.add(pointer)
        return json_form(value)


def _cost(timing: Timing, usage: TokenUsage | None) -> dict[str, Any]:
    times = {"start_time": _seconds(timing.start_time) or 0.0, "end_time": _seconds(timing.end_time)}
    return {"timing": times, "token_usage": _usage(usage)}


def _seconds(time: Any) -> float | None:
    return time if type(time) in {int, float} and math.isfinite(time) else None


def _usage(usage: TokenUsage | None) -> dict[str, int] | None:
    return {name: _count(getattr(usage, name)) for name in ("input_tokens", "output_tokens")} if usage else None


def _count(tokens: Any) -> int:
    """Return a provider's token count, or 0 if it is no count."""
    return int(tokens) if type(tokens) in {int, float} and 0 <= tokens <= MAX_COUNT else 0


def _images(images: Sequence[PIL.Image.Image] | None) -> list[str] | None:
    return None if images is None else [image.name for image in stored_images(images)]


def _image_name(value: Any) -> str | None:
    if not isinstance(value, PIL.Image.Image):
        return None
    raw: Any = value.to_raw() if isinstance(value, AgentImage) else value
    return next((image.name for image in stored_images([raw])), None)
