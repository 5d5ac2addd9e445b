"""Values ⇄ bytes, between this process and a hostile one: data only; no code of a value's class runs on either side.

What comes back is of the value's own kind, except: an instance of a subclass of str, int, list, dict and their like
whose class is not carried comes back as that basic kind (an OrderedDict as a dict, a named tuple as a tuple, AgentText
as str); what is held twice comes back as two; an image comes back as a plain one, by its pixels; a path as a path.
Carried are plain classes, dataclasses, pydantic models and enums, by their fields and without their methods: only
the `__hash__` and `__eq__` of a carried class run, and only where its instances are keys or in a set. Nothing checks
that the fields of such an instance hold what its class expects: to a tool they are input like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smolsessions.agents.values.classes import Carried
from smolsessions.agents.values.json_forms import json_form
from smolsessions.agents.values.parts import MAX_BYTES
from smolsessions.agents.values.reader import Reader
from smolsessions.agents.values.writer import RefusalError, Writer

if TYPE_CHECKING:
    from collections.abc import Collection


class CodecError(TypeError):
    """What cannot be handed over and where in the value it is; or why what was handed over cannot be read."""


def dumps(value: Any, carries: Collection[type] = (), *, labels: bool = False, max_bytes: int = MAX_BYTES) -> bytes:
    """Make a value's bytes. With `labels`, what cannot cross becomes its label, for which its class is asked."""
    return _written(value, Writer(Carried(carries), labels=labels, in_order=False, max_bytes=max_bytes))


def canonical(value: Any, carries: Collection[type] = (), *, max_bytes: int = MAX_BYTES) -> bytes:
    """Make bytes to take a hash of: those of `dumps`, but the same whatever the order of a dict's keys."""
    return _written(value, Writer(Carried(carries), labels=False, in_order=True, max_bytes=max_bytes))


def loads(data: bytes, carries: Collection[type] = (), *, max_bytes: int = MAX_BYTES) -> Any:
    """Make the value again. The bytes may be anybody's: whatever is wrong with them is a CannotCrossError."""
    if len(data) > max_bytes:
        raise CodecError(f"what was handed over is larger than {max_bytes:,} bytes")
    try:
        return Reader(bytes(data), Carried(carries)).whole()
    except Exception as error:
        raise CodecError(f"what was handed over cannot be read: {error}"[:500]) from error


def _written(value: Any, writer: Writer) -> bytes:
    try:
        return writer.whole(value)
    except RefusalError as refusal:
        raise CodecError(str(refusal)) from None
    except Exception as error:
        raise CodecError(f"it cannot be handed over; {type(error).__name__}") from error


def dumps_lossy(value: Any, carries: Collection[type] = (), *, max_bytes: int = MAX_BYTES) -> bytes:
    """Make a value's bytes; of one that cannot cross those of its JSON form, or of its label where it has none.

    The value's class is asked for that form: call this where its code may run.
    """
    try:
        return dumps(value, carries, max_bytes=max_bytes)
    except CodecError:
        return dumps(json_form(value), max_bytes=max_bytes)
