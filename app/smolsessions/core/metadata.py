"""Metadata of conversations: bounded JSON, changed by merge patches."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic_core import from_json, to_json

from smolsessions.core.errors import TooLargeError

T = TypeVar("T")

MAX_METADATA_BYTES = 64 * 1024
MAX_OBJECT_BYTES = 1024 * 1024
_AROUND = 8  # levels that records and pages put around what a client sends


def bounded(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata. Raises `TooLargeError`, as lists of conversations hold it."""
    if len(json.dumps(metadata)) > MAX_METADATA_BYTES:
        raise TooLargeError(f"The metadata is larger than {MAX_METADATA_BYTES} bytes.")
    return metadata


def storable(value: T, most_bytes: int | None = None) -> T:
    """Return a value that is strict JSON. Raises `ValueError` for others, and `TooLargeError` above `most_bytes`."""
    wrapped: Any = value
    for _ in range(_AROUND):
        wrapped = [wrapped]
    try:
        data = to_json(wrapped)
        if most_bytes is not None and len(data) - 2 * _AROUND > most_bytes:
            raise TooLargeError(f"additional_args or metadata is larger than {most_bytes} bytes; send less.")
        from_json(data, allow_inf_nan=False)
    except ValueError:
        raise ValueError("holds what is no JSON: NaN, half a character, or too many levels") from None
    return value


def merge(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch: null deletes a member, objects merge, other values replace."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged
