"""Encode and decode values between this process and a hostile one.

The encoder trusts its value, whose class may run code. The decoder trusts nothing and runs no code of a class.

A decoded value has the class of the original, with these exceptions:
- An instance of a subclass of str, int, list, dict and the like becomes that base (a named tuple becomes a tuple).
- A value that occurs twice becomes two values.
- An image becomes a plain image of the same pixels. A mode that PNG lacks is converted.

An agent declares the classes whose instances it stores: plain classes, dataclasses, pydantic models and enums.
Their instances are encoded by their fields. Of their methods only `__hash__` and `__eq__` run in the decoder, if an
instance is a key or in a set. The fields are not validated: a tool must treat them as input.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from smolsessions.agents.values.json_forms import json_form
from smolsessions.agents.values.parts import MAX_BYTES
from smolsessions.agents.values.reader import Reader
from smolsessions.agents.values.writer import RefusalError, Writer


class CodecError(TypeError):
    """A value cannot be encoded, or data cannot be decoded. The message names the part and the reason."""


def dumps(
    value: Any, stored_classes: Collection[type] = (), *, in_order: bool = False, max_bytes: int = MAX_BYTES
) -> bytes:
    """Encode a value. With `in_order`, the bytes are independent of the order of a dict's keys."""
    try:
        return Writer(stored_classes, in_order=in_order, max_bytes=max_bytes).whole(value)
    except RefusalError as refusal:
        raise CodecError(str(refusal)) from None
    except Exception as error:  # of code of the value's class
        raise CodecError(f"it cannot be handed over; {type(error).__name__}") from error


def loads(data: bytes, stored_classes: Collection[type] = (), *, max_bytes: int = MAX_BYTES) -> Any:
    """Decode a value. The data may be hostile: any fault in it raises `CodecError`."""
    if len(data) > max_bytes:
        raise CodecError(f"what was handed over is larger than {max_bytes:,} bytes")
    try:
        return Reader(bytes(data), stored_classes).whole()
    except Exception as error:  # hostile data fails in any library
        raise CodecError(f"what was handed over cannot be read: {error}"[:500]) from error


def dumps_lossy(value: Any, stored_classes: Collection[type] = (), *, max_bytes: int = MAX_BYTES) -> bytes:
    """Encode a value, or its JSON form or label if it has no encoding.

    The JSON form calls code of the value's class.
    """
    try:
        return dumps(value, stored_classes, max_bytes=max_bytes)
    except CodecError:
        return dumps(json_form(value), max_bytes=max_bytes)
