"""Effects: results of calls as the journal stores them.

A first run also uses the value that was decoded from the stored bytes, so that a replay cannot differ.
"""

from __future__ import annotations

import builtins
import json
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json
from smolagents.agent_types import AgentImage, AgentText
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import TokenUsage

from smolsessions.agents.run.failures import error_marks
from smolsessions.agents.values import CodecError, dumps, dumps_lossy, loads
from smolsessions.agents.values.json_forms import json_form, utf8_text
from smolsessions.core.records import Usage

if TYPE_CHECKING:
    from collections.abc import Collection
    from dataclasses import dataclass
else:
    from smolsessions.core.frozen import dataclass

MODEL_KEY = "model:"
"""Prefix of the journal keys of model calls."""
MAX_BYTES = 64 * 1024 * 1024
_SCALARS = frozenset({int, bool, type(None)})
_AS: dict[str, Any] = {kind.__name__: kind for kind in (AgentImage, AgentText)}


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
    value = json_form(without_text(value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Effect:
    """Result of one call. It is opaque, without `returned` and `raised`, if the result cannot be stored.

    `form` is the encoding of `returned`: `text`, `json` or `crossed`. `kind` is smolagents' class around the value.
    `text` is the original text of a value whose decoded form reads differently. `raised` is class name, built-in base
    and text. `changes` holds the changes of state that the call made, by the names of their pieces.
    """

    returned: bytes | None = None
    form: str = "crossed"
    kind: str = ""
    text: str | None = None
    raised: tuple[str, str, str] | None = None
    duration_ms: float = 0.0
    repeated: bool = False
    changes: dict[str, bytes] = field(default_factory=dict)

    @property
    def is_opaque(self) -> bool:
        return self.returned is None and self.raised is None

    def to_bytes(self) -> bytes:
        """Return a line of JSON, followed by the returned bytes."""
        head: dict[str, Any] = {"duration_ms": self.duration_ms}
        if self.raised:
            head["raised"] = self.raised
        if self.returned is not None:
            head["form"] = self.form
        if self.changes:
            head["changes"] = {name: data.hex() for name, data in self.changes.items()}
        for name in ("kind", "text", "repeated"):
            if value := getattr(self, name):
                head[name] = value
        return to_json(head) + b"\n" + (self.returned or b"")

    @classmethod
    def from_bytes(cls, data: bytes) -> Effect:
        line, _, returned = data.partition(b"\n")
        head = from_json(line)
        if "raised" in head:
            head["raised"] = tuple(head["raised"])
        if "changes" in head:
            head["changes"] = {name: bytes.fromhex(data) for name, data in head["changes"].items()}
        return cls(returned if "form" in head else None, **head)

    def outcome(self, carries: Collection[type]) -> Any:
        """Return the value, or raise the error."""
        if self.raised:
            raise rebuild_error(*self.raised)
        value = self._value(carries)
        if self.kind:
            value = _AS[self.kind](value)
        return value if self.text is None else ValueWithText(value, self.text)

    def _value(self, carries: Collection[type]) -> Any:
        assert self.returned is not None, "an opaque effect has no outcome"
        if self.form == "text":
            return self.returned.decode()
        return from_json(self.returned) if self.form == "json" else loads(self.returned, carries, max_bytes=MAX_BYTES)


def encode_returned(value: Any, carries: Collection[type], *, is_lossy: bool) -> tuple[Effect, Any]:
    """Encode a value, and return it decoded again. A value that cannot be stored is returned unchanged.

    `is_lossy` replaces parts that cannot be encoded by their JSON form or a label: code gets the same.
    """
    kind = type(value).__name__ if type(value) in _AS.values() else ""
    bare = without_kind(value)
    if type(bare) is str and (data := _utf8(bare)) is not None:
        return Effect(data, "text", kind), value
    if type(bare) in _SCALARS:
        return Effect(to_json(bare), "json"), value
    try:
        data = (dumps_lossy if is_lossy else dumps)(bare, carries, max_bytes=MAX_BYTES)
        effect = Effect(data, kind=kind)
        again = effect.outcome(carries)
    except CodecError:
        return Effect(), value
    if is_lossy or type(again) is type(value):
        return effect, again
    try:
        text = utf8_text(str(value))
    except Exception:  # noqa: BLE001 - a foreign class's text may be code that fails
        return Effect(), value
    return replace(effect, text=text), ValueWithText(again, text)


def _utf8(text: str) -> bytes | None:
    try:
        return text.encode() if len(text) <= MAX_BYTES // 4 else None
    except UnicodeEncodeError:  # half a character
        return None


def encode_raised(error: Exception) -> Effect:
    """Encode an exception."""
    base = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
    return Effect(raised=(type(error).__name__, base, error_text(error)))


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
    """Return the text of an exception."""
    try:
        return utf8_text(str(error))
    except Exception:  # noqa: BLE001 - a foreign exception's text may be code that fails
        return type(error).__name__


def without_kind(value: Any) -> Any:
    """Unwrap a value of smolagents' own classes."""
    if type(value) is AgentImage:
        return value.to_raw()
    return value.to_string() if type(value) is AgentText else value


def encode_message(message: ChatMessage) -> tuple[Effect, ChatMessage]:
    """Encode a model's message, and return it decoded again, without the provider's object."""
    usage = message.token_usage
    calls = [_call_parts(call) for call in message.tool_calls] if message.tool_calls is not None else None
    fields = {
        "role": str(getattr(message.role, "value", message.role)),
        "content": message.content,
        "calls": calls,
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


def encode_error(error: Exception) -> Effect:
    """Encode a model's exception with the marks of its kind."""
    marks = {name: str(value).encode() for name, value in error_marks(error).items()}
    return replace(encode_raised(error), changes=marks)


def decode_message(effect: Effect) -> ChatMessage:
    """Return the message, or raise the error."""
    if effect.raised:
        error: Any = rebuild_error(*effect.raised)
        for name, value in effect.changes.items():
            setattr(error, name, value.decode())
        raise error
    return _message(effect.outcome(()))


def usage_of(data: bytes) -> Usage:
    """Return the tokens of a journaled model call. A failed call has none."""
    effect = Effect.from_bytes(data)
    if effect.raised or effect.is_opaque:
        return Usage()
    usage = decode_message(effect).token_usage
    return Usage(usage.input_tokens, usage.output_tokens) if usage else Usage()


def _message(fields: dict[str, Any]) -> ChatMessage:
    usage = TokenUsage(*fields["usage"]) if fields["usage"] else None
    calls = [_call(*parts) for parts in fields["calls"]] if fields["calls"] is not None else None
    return ChatMessage(MessageRole(fields["role"]), fields["content"], calls, token_usage=usage)


def _call_parts(call: ChatMessageToolCall) -> list[Any]:
    function = call.function
    return [function.name, function.arguments, function.description, call.id, call.type]


def _call(name: str, arguments: Any, description: str | None, call_id: str, kind: str) -> ChatMessageToolCall:
    function = ChatMessageToolCallFunction(name=name, arguments=arguments, description=description)
    return ChatMessageToolCall(function=function, id=call_id, type=kind)
