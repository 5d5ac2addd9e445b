"""What a call gave, as the journal keeps it: a value, an error, or that neither could be kept.

A value is used only as it comes out of its bytes again, in a first run too, so that a replay cannot differ from it.
"""

from __future__ import annotations

import builtins
import json
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json
from smolagents.agent_types import AgentImage, AgentText

from smolsessions.agents.values import CodecError, dumps, dumps_lossy, loads
from smolsessions.agents.values.json_forms import json_form, utf8_text

if TYPE_CHECKING:
    from collections.abc import Collection
    from dataclasses import dataclass
else:
    from smolsessions.core.frozen import dataclass

MAX_BYTES = 64 * 1024 * 1024
_SCALARS = frozenset({int, bool, type(None)})
_AS: dict[str, Any] = {kind.__name__: kind for kind in (AgentImage, AgentText)}


class ValueWithText:
    """A value whose text is not that of what could be kept of it: the model is shown the text."""

    def __init__(self, value: Any, text: str) -> None:
        self.value = value
        self._text = text

    def __str__(self) -> str:
        return self._text


def without_text(value: Any) -> Any:
    """Give the value behind a text."""
    return value.value if type(value) is ValueWithText else value


def as_text(value: Any) -> str:
    """Return a text unchanged, and any other value as the text of its JSON form."""
    value = json_form(without_text(value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Effect:
    """How one call went. Neither `returned` nor `raised` is an opaque one: what it gave cannot be carried.

    `form` says what `returned` is: `text`, `json`, or a value that `crossed`. `kind` names smolagents' class around the
    value, `text` is for one that reads otherwise when it comes back. `raised` is class name, built-in base and text.
    `kept` is what the call changed that lasts, by the names of its pieces.
    """

    returned: bytes | None = None
    form: str = "crossed"
    kind: str = ""
    text: str | None = None
    raised: tuple[str, str, str] | None = None
    duration_ms: float = 0.0
    repeated: bool = False
    kept: dict[str, bytes] = field(default_factory=dict)

    @property
    def is_opaque(self) -> bool:
        return self.returned is None and self.raised is None

    def to_bytes(self) -> bytes:
        """Give a line of JSON, and what was returned behind it."""
        head: dict[str, Any] = {"duration_ms": self.duration_ms}
        if self.raised:
            head["raised"] = self.raised
        if self.returned is not None:
            head["form"] = self.form
        if self.kept:
            head["kept"] = {name: data.hex() for name, data in self.kept.items()}
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
        if "kept" in head:
            head["kept"] = {name: bytes.fromhex(data) for name, data in head["kept"].items()}
        return cls(returned if "form" in head else None, **head)

    def outcome(self, carries: Collection[type]) -> Any:
        """Give the value, or raise the error."""
        if self.raised:
            raise error_of(*self.raised)
        value = self._value(carries)
        if self.kind:
            value = _AS[self.kind](value)
        return value if self.text is None else ValueWithText(value, self.text)

    def _value(self, carries: Collection[type]) -> Any:
        assert self.returned is not None, "an opaque effect has no outcome"
        if self.form == "text":
            return self.returned.decode()
        return from_json(self.returned) if self.form == "json" else loads(self.returned, carries, max_bytes=MAX_BYTES)


def returned(value: Any, carries: Collection[type], *, as_plain: bool) -> tuple[Effect, Any]:
    """Keep a value, and give it as it comes back; what cannot be kept (an opaque effect) comes back as it is.

    `as_plain`: for code, which is given the JSON form or the label of what cannot cross to it.
    """
    kind = type(value).__name__ if type(value) in _AS.values() else ""
    bare = without_kind(value)
    if type(bare) is str and (data := _utf8(bare)) is not None:
        return Effect(data, "text", kind), value
    if type(bare) in _SCALARS:
        return Effect(to_json(bare), "json"), value
    try:
        data = (dumps_lossy if as_plain else dumps)(bare, carries, max_bytes=MAX_BYTES)
        effect = Effect(data, kind=kind)
        again = effect.outcome(carries)
    except CodecError:
        return Effect(), value
    if as_plain or type(again) is type(value):
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


def raised(error: Exception) -> Effect:
    """Keep an error."""
    base = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
    return Effect(raised=(type(error).__name__, base, error_text(error)))


def error_of(name: str, base: str, text: str) -> Exception:
    """Make an error again: of a class of its name on the nearest built-in one, with its very words."""
    nearest: Any = getattr(builtins, base, Exception)
    if issubclass(nearest, BaseExceptionGroup):  # is made of others, which are not kept
        nearest = Exception
    kind: Any = type(name, (nearest,), {"__str__": lambda _self: text})
    error: Exception = kind.__new__(kind, text)  # some constructors want more than words
    error.args = (text,)
    return error


def error_text(error: BaseException) -> str:
    """Give an error's own text."""
    try:
        return utf8_text(str(error))
    except Exception:  # noqa: BLE001 - a foreign exception's text may be code that fails
        return type(error).__name__


def without_kind(value: Any) -> Any:
    """Give what smolagents' class around a value holds."""
    if type(value) is AgentImage:
        return value.to_raw()
    return value.to_string() if type(value) is AgentText else value
