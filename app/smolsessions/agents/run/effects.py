"""Effects: results of calls as the journal stores them.

A first run also uses the value that was decoded from the stored bytes, so that a replay cannot differ.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_core import from_json, to_json
from smolagents.agent_types import AgentImage, AgentText
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import TokenUsage

from smolsessions.agents.models.keys import without_secrets
from smolsessions.agents.run.failures import error_marks
from smolsessions.agents.values import CodecError, dumps, dumps_lossy, loads
from smolsessions.agents.values.json_forms import json_form, json_text, utf8_text
from smolsessions.core.effects import EffectOutcome
from smolsessions.core.records import Usage

MODEL_KEY = "model:"
MAX_BYTES = 64 * 1024 * 1024
_SCALARS = frozenset({int, bool, type(None)})
_UNWRAP: dict[type, Callable[[Any], Any]] = {AgentImage: AgentImage.to_raw, AgentText: AgentText.to_string}
_WRAP: dict[str, Any] = {kind.__name__: kind for kind in _UNWRAP}


class ValueWithText:
    """A decoded value whose text differs from the original's. The model reads the original text."""

    def __init__(self, value: Any, text: str) -> None:
        self.value = value
        self._text = text

    def __str__(self) -> str:
        return self._text


def without_text(value: Any) -> Any:
    """Return the value of a `ValueWithText`, and any other value unchanged."""
    return value.value if type(value) is ValueWithText else value


def as_text(value: Any) -> str:
    """Return a text unchanged, and any other value as the text of its JSON form."""
    value = json_form(value.value if type(value) is ValueWithText else value)
    if type(value) is int:
        return str(value)
    return value if isinstance(value, str) else json_text(value)


@dataclass(slots=True)
class Effect:
    """Result of one call. It is opaque, without `returned` and `raised`, if the result cannot be stored.

    `form` is the encoding of `returned`: `text`, `json` or `crossed`. `kind` is smolagents' class around the value.
    `text` is the original text of a value whose decoded form reads differently. `raised` is class name, built-in base
    and text, `marks` the attributes that tell a failure's kind. `changes` holds the changes of state that the call
    made, by the names of their pieces. `model` is the fallback that answered, if not the agent's first model did.
    `attempt` is the one that made the call, 0 for the first.
    """

    returned: bytes | None = None
    form: str = "crossed"
    kind: str = ""
    text: str | None = None
    raised: Sequence[str] = ()
    marks: dict[str, str] = field(default_factory=dict)
    duration_ms: float = 0.0
    repeated: bool = False
    changes: dict[str, bytes] = field(default_factory=dict)
    model: str = ""
    attempt: int = 0

    @property
    def is_opaque(self) -> bool:
        return self.returned is None and not self.raised

    def to_bytes(self) -> bytes:
        """Return a line of JSON, followed by the returned bytes."""
        head: dict[str, Any] = {} if self.returned is None else {"form": self.form}
        if self.duration_ms:
            head["duration_ms"] = self.duration_ms
        if any(map(self.__getattribute__, _RARE)):
            head |= {name: value for name in _RARE if (value := getattr(self, name))}
        return to_json(head, bytes_mode="hex") + b"\n" + (self.returned or b"")

    @classmethod
    def from_bytes(cls, data: bytes) -> Effect:
        line, _, returned = data.partition(b"\n")
        head = from_json(line)
        changes = {name: bytes.fromhex(data) for name, data in head.pop("changes", {}).items()}
        return cls(returned if "form" in head else None, **head, changes=changes)

    @property
    def error(self) -> Exception:
        error = rebuild_error(*self.raised)
        vars(error).update(self.marks)
        return error

    def outcome(self, stored_classes: Collection[type]) -> Any:
        if self.raised:
            raise self.error
        assert self.returned is not None, "an opaque effect has no outcome"
        if self.form == "text":
            value: Any = self.returned.decode()
        elif self.form == "json":
            value = from_json(self.returned)
        else:
            value = loads(self.returned, stored_classes, max_bytes=MAX_BYTES)
        if self.kind:
            value = _WRAP[self.kind](value)
        return value if self.text is None else ValueWithText(value, self.text)


_RARE = ("kind", "repeated", "attempt", "model", "raised", "marks", "text", "changes")
"""The longest come last: `outcome_of` reads the first bytes."""


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
    if type(bare) is str and len(bare) <= MAX_BYTES // 4:
        with contextlib.suppress(UnicodeEncodeError):  # half a character
            return Effect(bare.encode(), "text", kind), value
    if type(bare) in _SCALARS:
        return Effect(to_json(bare), "json"), value
    try:
        data = (dumps_lossy if is_lossy else dumps)(bare, stored_classes, max_bytes=MAX_BYTES)
        effect = Effect(data, kind=kind)
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
    base = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
    marks = {name: utf8_text(str(value)) for name, value in error_marks(error).items()}
    return Effect(raised=(type(error).__name__, base, without_secrets(error_text(error))), marks=marks)


def rebuild_error(name: str, base: str, text: str) -> Exception:
    """Rebuild an exception: a class of its name on the nearest built-in one, with the same text."""
    nearest: Any = getattr(builtins, base, Exception)
    if issubclass(nearest, BaseExceptionGroup):  # its members are not stored
        nearest = Exception
    kind: Any = type(name, (nearest,), {"__str__": lambda _self: text})
    error: Exception = kind.__new__(kind, text)  # some constructors need other arguments
    error.args = (text,)
    return error


def error_text(error: BaseException) -> str:
    try:
        return utf8_text(str(error))
    except Exception:  # noqa: BLE001 - a foreign exception's text may be code that fails
        return type(error).__name__


def encode_message(message: ChatMessage) -> tuple[Effect, ChatMessage]:
    """Encode a model's message, and return it decoded again, without the provider's object."""
    usage, calls = message.token_usage, message.tool_calls
    fields = {
        "role": str(getattr(message.role, "value", message.role)),
        "content": message.content,
        "calls": None if calls is None else [_call_parts(call, call.function) for call in calls],
        "usage": [usage.input_tokens, usage.output_tokens] if usage else None,
    }
    try:
        data = to_json(fields)
        if from_json(data) == fields:  # a decoded message would be equal
            message.raw = None
            return Effect(data, "json"), message
    except ValueError:  # half a character, or a value without JSON form
        pass
    try:
        effect = Effect(dumps(fields))
    except CodecError:
        return Effect(), message
    return effect, decode_message(effect)


def decode_message(effect: Effect) -> ChatMessage:
    fields = effect.outcome(())
    usage = TokenUsage(*fields["usage"]) if fields["usage"] else None
    calls = [_call(*parts) for parts in fields["calls"]] if fields["calls"] is not None else None
    return ChatMessage(MessageRole(fields["role"]), fields["content"], calls, token_usage=usage)


def _call_parts(call: ChatMessageToolCall, function: ChatMessageToolCallFunction) -> list[Any]:
    return [function.name, function.arguments, function.description, call.id, call.type]


def _call(name: str, arguments: Any, description: str | None, call_id: str, kind: str) -> ChatMessageToolCall:
    function = ChatMessageToolCallFunction(name=name, arguments=arguments, description=description)
    return ChatMessageToolCall(function=function, id=call_id, type=kind)


def usage_of(data: bytes) -> Usage:
    """Return the tokens of a journaled model call. A failed call has none."""
    effect = Effect.from_bytes(data)
    if effect.raised or effect.is_opaque:
        return Usage()
    usage = decode_message(effect).token_usage
    return Usage(usage.input_tokens, usage.output_tokens) if usage else Usage()
