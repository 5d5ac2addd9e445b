"""Values that JSON gives back as they were, and why others are none."""

from __future__ import annotations

import math
from typing import Any

from smolsessions.agents.values.json_forms import MAX_BITS, MAX_DEPTH, utf8_text

MOST_NODES = 1_000_000
MOST_COUNT = 2**53 - 1  # what every reader of JSON takes for a whole number
_MOST_POINTER_CHARS = 200
_HALF = "is a text with half a character"


def json_flaw(value: Any) -> tuple[str, str] | None:
    """Say where (as a JSON pointer) and why a value would not come back from JSON as itself; None where it would."""
    left = MOST_NODES
    levels: list[tuple[str, Any, int]] = [("", value, 0)]
    while levels:
        pointer, node, depth = levels.pop()
        kind = type(node)
        if kind is dict or kind is list:
            left -= len(node)
            if depth == MAX_DEPTH or left < 0:
                return pointer, f"lies more than {MAX_DEPTH} levels deep" if left >= 0 else "has too many parts"
            for part, inner in node.items() if kind is dict else enumerate(node):
                if kind is dict and (reason := _flaw_of_key(part)):
                    return pointer, reason
                scalar = type(inner)
                if scalar is dict or scalar is list:
                    levels.append((json_pointer(pointer, part), inner, depth + 1))
                elif reason := _flaw_of_scalar(inner):
                    return json_pointer(pointer, part), reason
        elif reason := _flaw_of_scalar(node):
            return pointer, reason
    return None


def json_pointer(pointer: str, *parts: object) -> str:
    """Add parts to a JSON pointer (RFC 6901), each cut where it is long, and in characters that can be told."""
    for part in parts:
        shown = utf8_text(str(part)[:_MOST_POINTER_CHARS]).replace("~", "~0").replace("/", "~1")
        pointer += f"/{shown}"
    return pointer


def is_utf8(text: str) -> bool:
    """Tell whether UTF-8 can say a text."""
    return text.isascii() or utf8_text(text) is text


def _flaw_of_key(key: Any) -> str | None:
    if type(key) is not str:
        return "has a key that is no text"
    return None if is_utf8(key) else "has a key with half a character"


def _flaw_of_scalar(value: Any) -> str | None:
    kind = type(value)
    if kind is str:
        return None if is_utf8(value) else _HALF
    if kind is int:
        return None if value.bit_length() <= MAX_BITS else "is a number of too many digits"
    if kind is float:
        return None if math.isfinite(value) else "is no number of JSON"
    return None if value is None or kind is bool else f"is of {kind.__name__}, which JSON does not have"
