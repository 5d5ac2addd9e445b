"""Effects: results of calls as the journal stores them.

A first run also uses the value that was decoded from the stored bytes, so that a replay cannot differ.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter
from pydantic_core import from_json, to_json
from smolagents.agent_types import AgentImage, AgentText
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import TokenUsage

from smolsessions.agents.models.token_usage import DetailedUsage
from smolsessions.agents.run.failures import error_marks
from smolsessions.agents.values import CodecError, dumps, dumps_lossy, loads
from smolsessions.agents.values.json_forms import json_form, json_text, utf8_text
from smolsessions.agents.values.results import ValueWithText, raised_parts, rebuild_error, without_text
from smolsessions.core.effects import EffectOutcome

MAX_BYTES = 64 * 1024 * 1024
_UNWRAP: dict[type, Callable[[Any], Any]] = {AgentImage: AgentImage.to_raw, AgentText: AgentText.to_string}
_ROLES = {role.value: role for role in MessageRole}
_WRAP: dict[str, Any] = {kind.__name__: kind for kind in _UNWRAP}


def as_text(value: Any) -> str:
    """Return a text unchanged, and any other value as the text of its JSON form."""
    value = json_form(without_text(value))
    return value if isinstance(value, str) else json_text(value)


@dataclass(slots=True)
class Effect:
    """Result of one call. It is opaque, without `returned` and `raised`, if the result cannot be stored.

    `returned` is an encoded value. `kind` is smolagents' class around it. `text` is the original text of a value whose
    decoded form reads differently. `raised` is class name, built-in base and text, `marks` the attributes that tell a
    failure's kind. `changes` holds the changes of state that the call made, by the names of their pieces. `model` is
    the fallback that answered, if not the agent's first model did. `attempt` is the one that made the call, 0 for the
    first. The longest come last: `outcome_of` reads the first bytes.
    """

    __pydantic_config__: ClassVar = ConfigDict(ser_json_bytes="hex", val_json_bytes="hex", extra="forbid")
    returned: bytes | None = None
    kind: str = ""
    duration_ms: float = 0.0
    repeated: bool = False
    attempt: int = 0
    model: str = ""
    raised: Sequence[str] = ()
    marks: dict[str, str] = field(default_factory=dict)
    text: str | None = None
    changes: dict[str, bytes] = field(default_factory=dict)

    @property
    def is_opaque(self) -> bool:
        return self.returned is None and not self.raised

    def to_bytes(self) -> bytes:
        """Return a line of JSON, followed by the returned bytes."""
        head = _EFFECT.serializer.to_json(self, exclude={"returned"}, exclude_defaults=True)
        return head + b"\n" + (self.returned or b"")

    @classmethod
    def from_bytes(cls, data: bytes) -> Effect:
        line, _, returned = data.partition(b"\n")
        effect: Effect = _EFFECT.validate_json(line)
        effect.returned = returned or None
        return effect

    @property
    def error(self) -> Exception:
        error = rebuild_error(*self.raised)
        vars(error).update(self.marks)
        return error

    def outcome(self, stored_classes: Collection[type]) -> Any:
        if self.raised:
            raise self.error
        assert self.returned is not None, "an opaque effect has no outcome"
        if self.kind == "json":
            return from_json(self.returned)
        value = loads(self.returned, stored_classes, max_bytes=MAX_BYTES)
        if self.kind:
            value = _WRAP[self.kind](value)
        return value if self.text is None else ValueWithText(value, self.text)


_EFFECT = TypeAdapter(Effect)


def outcome_of(start: bytes) -> EffectOutcome:
    """Return the outcome of a call by the first bytes of its journaled effect."""
    head = from_json(start.partition(b"\n")[0], allow_partial=True)
    return EffectOutcome(
        error=next(iter(head.get("raised", ())), None),
        repeated=head.get("repeated", False),
        attempt=head.get("attempt", 1),
        duration_ms=head.get("duration_ms"),
        model=head.get("model"),
    )


def encode_returned(value: Any, stored_classes: Collection[type], *, is_lossy: bool) -> tuple[Effect, Any]:
    """Encode a value, and return it decoded again. A value that cannot be stored is returned unchanged.

    `is_lossy` replaces parts that cannot be encoded by their JSON form or a label: code gets the same.
    """
    unwrap = _UNWRAP.get(type(value))
    kind, bare = (type(value).__name__, unwrap(value)) if unwrap else ("", value)
    try:
        effect = Effect((dumps_lossy if is_lossy else dumps)(bare, stored_classes, max_bytes=MAX_BYTES), kind)
        again = effect.outcome(stored_classes)
    except CodecError:
        return Effect(), value
    if is_lossy or type(again) is type(value):
        return effect, again
    try:
        text = utf8_text(str(value))
    except Exception:  # noqa: BLE001 - a foreign class's text may be code that fails
        return Effect(), value
    return replace(effect, text=text), ValueWithText(again, text)


def encode_raised(error: Exception) -> Effect:
    marks = {name: utf8_text(str(value)) for name, value in error_marks(error).items()}
    return Effect(raised=raised_parts(error), marks=marks)


def encode_message(message: ChatMessage) -> tuple[Effect, ChatMessage]:
    """Encode a model's message, and return it decoded again, without the provider's object."""
    usage = message.token_usage
    calls: list[Any] | None = None
    if message.tool_calls is not None:
        functions = [(call.function, call) for call in message.tool_calls]
        calls = [[each.name, each.arguments, each.description, call.id, call.type] for each, call in functions]
    role = str(getattr(message.role, "value", message.role))
    message.role = _ROLES.get(role, MessageRole.ASSISTANT)  # a replay knows no other
    counts: list[Any] | None = [usage.input_tokens, usage.output_tokens] if usage else None
    if counts and isinstance(usage, DetailedUsage):
        counts += [usage.cached_input_tokens, usage.cache_write_tokens, usage.reasoning_tokens]
    parts = [message.role.value, message.content, calls, counts]
    with contextlib.suppress(ValueError):  # half a character, or a value without a JSON form
        data = to_json(parts)  # the codec of values would cost 5 % of a turn
        if from_json(data) == parts:
            message.raw = None
            return Effect(data, "json"), message
    try:
        effect = Effect(dumps(parts))
    except CodecError:
        return Effect(), message
    return effect, decode_message(effect)


def decode_message(effect: Effect) -> ChatMessage:
    role, content, parts, counts = effect.outcome(())
    calls = parts and [
        ChatMessageToolCall(ChatMessageToolCallFunction(arguments, name, description), call_id, kind)
        for name, arguments, description, call_id, kind in parts
    ]
    usage = None
    if counts:
        read, written, *details = counts
        usage = DetailedUsage(read, written, *details) if details else TokenUsage(read, written)
    return ChatMessage(MessageRole(role), content, calls, token_usage=usage)


def usage_of(data: bytes) -> TokenUsage | None:
    """Return the tokens of a journaled model call. A failed call has none."""
    effect = Effect.from_bytes(data)
    return None if effect.raised or effect.is_opaque else decode_message(effect).token_usage
