"""Encode a step as JSON, with all fields that prompt and record depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import PIL.Image
from smolagents.agent_types import AgentImage
from smolagents.memory import ActionStep
from smolagents.models import MessageRole

from smolsessions.agents.memory.steps import step_type
from smolsessions.agents.memory.tokens import shown_estimate
from smolsessions.agents.transfer.document_models import MAX_COUNT
from smolsessions.agents.values.images import stored_images
from smolsessions.agents.values.json_forms import json_flaw, json_form, utf8_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from smolagents.models import ChatMessage, ChatMessageToolCall
    from smolagents.monitoring import Timing, TokenUsage
    from smolagents.utils import AgentError

    from smolsessions.agents.memory.steps import Step

    Encode = Callable[["_Encoder", str, Any], Any]

LABELS = "smolsessions_labels"
"""Attribute of an imported step with pointers to texts and data that replaced other values at its export."""
_ROLES = frozenset(role.value for role in MessageRole)


def encode_step(step: Step) -> dict[str, Any]:
    """Return a step as JSON data. Its `labels` point to texts and data that replace values without exact JSON."""
    encoder = _Encoder(getattr(step, LABELS, ()))
    kind = step_type(step)
    members = encoder.members("", step, _FIELDS[kind])
    if isinstance(step, ActionStep):
        members["action_output_image"] = _image_name(step.action_output)
        members["shown_estimate"] = shown_estimate(step)
    return {"type": kind, **members, "labels": sorted(encoder.labels)}


class _Encoder:
    """Encoder of one step's fields, which `restore_fields` has given the right classes."""

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = set(labels)

    def members(self, pointer: str, source: Any, fields: Mapping[str, Encode]) -> dict[str, Any]:
        return {name: encode(self, f"{pointer}/{name}", getattr(source, name)) for name, encode in fields.items()}

    def plain(self, _pointer: str, value: Any) -> Any:
        return value

    def value(self, pointer: str, value: Any) -> Any:
        if json_flaw(value) is None:
            return value
        self.labels.add(pointer)
        return json_form(value)

    def text(self, pointer: str, text: Any) -> str:
        if type(text) is str:
            return utf8_text(text)
        self.labels.add(pointer)
        return utf8_text(str(json_form(text)))

    def text_or_none(self, pointer: str, text: Any) -> str | None:
        return None if text is None else self.text(pointer, text)

    def output(self, pointer: str, output: Any) -> Any:
        """Return a model's output: a text, content parts or null."""
        if output is None or type(output) is str:
            return self.text_or_none(pointer, output)
        parts = self.value(pointer, output)
        is_parts = isinstance(parts, list) and all(isinstance(part, dict) for part in parts)
        return parts if is_parts else self.text(pointer, output)

    def action_output(self, pointer: str, output: Any) -> Any:
        return None if _image_name(output) else self.value(pointer, output)

    def calls(self, pointer: str, calls: Sequence[Any] | None) -> list[dict[str, Any]] | None:
        if calls is None:
            return None
        return [self.members(f"{pointer}/{index}", call, _CALL) for index, call in enumerate(calls)]

    def message(self, pointer: str, message: ChatMessage | None) -> dict[str, Any] | None:
        return None if message is None else self.members(pointer, message, _MESSAGE)

    def role(self, pointer: str, role: Any) -> str:
        name = str(getattr(role, "value", role))
        if name in _ROLES:
            return name
        self.labels.add(pointer)
        return MessageRole.ASSISTANT.value

    def message_calls(self, pointer: str, calls: Sequence[ChatMessageToolCall] | None) -> list[dict[str, Any]] | None:
        if calls is None:
            return None
        places = [f"{pointer}/{index}" for index in range(len(calls))]
        return [
            self.members(place, call, _MESSAGE_CALL) | self.members(place, call.function, _FUNCTION)
            for place, call in zip(places, calls, strict=True)
        ]

    def images(self, _pointer: str, images: Sequence[PIL.Image.Image] | None) -> list[str] | None:
        return None if images is None else [image.name for image in stored_images(images)]

    def error(self, _pointer: str, error: AgentError | None) -> dict[str, str] | None:
        return {"type": type(error).__name__, "message": utf8_text(str(error))} if error else None

    def timing(self, _pointer: str, timing: Timing) -> dict[str, float | None]:
        return {"start_time": timing.start_time, "end_time": timing.end_time}

    def usage(self, _pointer: str, usage: TokenUsage | None) -> dict[str, int] | None:
        return {name: _count(getattr(usage, name)) for name in ("input_tokens", "output_tokens")} if usage else None

    def step(self, _pointer: str, step: Step | None) -> dict[str, Any] | None:
        return None if step is None else encode_step(step)


def _count(tokens: Any) -> int:
    """Return a provider's token count, or 0 if it is no count."""
    return int(tokens) if type(tokens) in {int, float} and 0 <= tokens <= MAX_COUNT else 0


def _image_name(value: Any) -> str | None:
    if not isinstance(value, PIL.Image.Image):
        return None
    raw: Any = value.to_raw() if isinstance(value, AgentImage) else value
    return next((image.name for image in stored_images([raw])), None)


_CALL: dict[str, Encode] = {"id": _Encoder.text, "name": _Encoder.text, "arguments": _Encoder.value}
_MESSAGE_CALL: dict[str, Encode] = {"id": _Encoder.text, "type": _Encoder.text}
_FUNCTION: dict[str, Encode] = {
    "name": _Encoder.text,
    "arguments": _Encoder.value,
    "description": _Encoder.text_or_none,
}
_MESSAGE: dict[str, Encode] = {
    "role": _Encoder.role,
    "content": _Encoder.output,
    "tool_calls": _Encoder.message_calls,
    "token_usage": _Encoder.usage,
}
_COST: dict[str, Encode] = {"timing": _Encoder.timing, "token_usage": _Encoder.usage}
_FIELDS: dict[str, dict[str, Encode]] = {
    "task": {"task": _Encoder.text, "task_images": _Encoder.images},
    "planning": {"plan": _Encoder.text, "model_output_message": _Encoder.message, **_COST},
    "action": {
        "step_number": _Encoder.plain,
        "model_output": _Encoder.output,
        "model_output_message": _Encoder.message,
        "tool_calls": _Encoder.calls,
        "code_action": _Encoder.text_or_none,
        "observations": _Encoder.text_or_none,
        "observations_images": _Encoder.images,
        "action_output": _Encoder.action_output,
        "error": _Encoder.error,
        "is_final_answer": _Encoder.plain,
        **_COST,
    },
    "note": {"number": _Encoder.plain, "text": _Encoder.text, "replaces": _Encoder.plain},
    "edit": dict.fromkeys(("of", "gone", "order"), _Encoder.plain) | {"step": _Encoder.step},
    "summary": {"text": _Encoder.text} | dict.fromkeys(("recent", "input_tokens", "output_tokens"), _Encoder.plain),
}
