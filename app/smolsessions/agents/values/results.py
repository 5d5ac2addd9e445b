"""Results of calls that differ from their original: a value whose text reads differently, and a rebuilt exception."""

from __future__ import annotations

import builtins
from typing import Any

from smolsessions.agents.models.keys import without_secrets
from smolsessions.agents.values.json_forms import utf8_text


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


def raised_parts(error: BaseException) -> tuple[str, str, str]:
    """Return class name, nearest built-in class and text of an exception. The text shows no key."""
    base = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
    return type(error).__name__, base, without_secrets(error_text(error))


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
