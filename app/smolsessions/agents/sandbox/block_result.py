"""Result of a code block as the code process reports it. Model-written code may have forged the message."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeVar

from smolsessions.agents.sandbox.channel import MisbehavedError
from smolsessions.agents.values import loads
from smolsessions.agents.values.json_forms import utf8_text

T = TypeVar("T")

MAX_CHUNKS, MAX_DROPPED, MAX_NAME_CHARS = 10_000, 1000, 200
_CHUNK_ID = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True)
class BlockResult:
    output: Any
    text: str
    logs: str
    final: bool
    error: str | None
    changed: dict[str, bytes]
    removed: list[str]
    dropped: frozenset[str]
    inputs: dict[str, Any]
    """Inputs that the code has changed in place."""
    full: bool
    """True if the process ran out of memory."""

    @classmethod
    def parse(
        cls, message: dict[str, Any], carries: tuple[type, ...], inputs: dict[str, Any], max_input_bytes: int
    ) -> BlockResult:
        """Validate every field. Raises `MisbehavedError`."""
        try:
            return cls(
                output=None if message["output"] is None else loads(message["output"], carries),
                text=utf8_text(_expect(str, message["text"])),
                logs=utf8_text(_expect(str, message["logs"])),
                final=_expect(bool, message["final"]),
                error=None if message["error"] is None else utf8_text(_expect(str, message["error"])),
                changed={
                    _chunk_id(key): _expect(bytes, data) for key, data in _expect(dict, message["changed"]).items()
                },
                removed=[_chunk_id(key) for key in _expect(list, message["removed"])],
                dropped=_names(message["dropped"]),
                inputs=_inputs(_expect(dict, message["inputs"]), carries, inputs, max_input_bytes),
                full=_expect(bool, message["full"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MisbehavedError("a block's result is invalid") from error


def parse_dropped(message: dict[str, Any]) -> frozenset[str]:
    """Return the dropped variables that a new process reports. Raises `MisbehavedError`."""
    try:
        return _names(message.get("dropped"))
    except TypeError as error:
        raise MisbehavedError("the dropped variables are invalid") from error


def _chunk_id(value: Any) -> str:
    if not _CHUNK_ID.fullmatch(_expect(str, value)):
        raise TypeError("a chunk's id is invalid")
    return str(value)


def _names(value: Any) -> frozenset[str]:
    """Return the valid names. Others cannot belong to a variable and are ignored."""
    found = [_expect(str, name) for name in _expect(list, value)[:MAX_DROPPED]]
    return frozenset(name for name in found if len(name) <= MAX_NAME_CHARS and name.isidentifier())


def _inputs(
    changed: dict[Any, Any], carries: tuple[type, ...], known: dict[str, Any], max_bytes: int
) -> dict[str, Any]:
    if not changed.keys() <= known.keys() or sum(len(_expect(bytes, data)) for data in changed.values()) > max_bytes:
        raise TypeError("the inputs are unknown or too large")
    return {name: loads(data, carries) for name, data in changed.items()}


def _expect(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise TypeError(f"a {kind.__name__} is needed")
    return value
