"""What tools and models return, as plain JSON data, or as a text with a label where it has no JSON form."""

from __future__ import annotations

import dataclasses
import enum
import math
import os
from collections.abc import Mapping
from typing import Any

import PIL.Image
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

MAX_LABEL_CHARS = 2000
_COLLECTIONS = (list, tuple, dict, set, frozenset, Mapping)
MAX_DEPTH = 100
MAX_CHARS = 1_000_000  # a text counts its characters, all else counts one
_WITH_JSON_FORM = (
    str,
    int,
    float,
    list,
    tuple,
    dict,
    set,
    frozenset,
    bytes,
    enum.Enum,
    os.PathLike,
    Mapping,
    BaseModel,
)


def plain(value: Any) -> Any:
    """Give a value's JSON form, or its label. Never raises, whatever the value's class does, and stays bounded."""
    return _Walk().plain(value, MAX_DEPTH)


def text_of(text: str) -> str:
    """Give a text that UTF-8 can say: half a surrogate pair, as models cut them, becomes a replacement character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def labelled(value: Any) -> str:
    """Give a text that says what it stands for."""
    kind = type(value)
    try:
        if issubclass(kind, PIL.Image.Image):
            return f"[image {value.width}x{value.height}]"
        # The text of a collection can be endless, where it holds the same thing many times.
        text = f"of {len(value)}" if issubclass(kind, _COLLECTIONS) else str(value)
    except BaseException as error:  # noqa: BLE001 - a foreign class may fail in any way, and leave, too
        text = f"without text: {type(error).__name__}"
    if len(text) > MAX_LABEL_CHARS:
        text = f"{text[:MAX_LABEL_CHARS]}… ({len(text)} characters)"
    return text_of(f"[{kind.__module__}.{kind.__qualname__}] {text}")


class _Walk:
    """Goes through a value; what is deeper, or more in all, than the bounds becomes a label."""

    def __init__(self) -> None:
        self._left = MAX_CHARS

    def plain(self, value: Any, depth: int) -> Any:
        kind = type(value)
        self._left -= len(value) if kind is str else 1
        if self._left < 0 or depth == 0:
            return labelled(value)
        if kind is str:
            return text_of(value)
        if kind in {int, bool, type(None)} or (kind is float and math.isfinite(value)):
            return value
        if kind is dict:
            return {self._key(key): self.plain(item, depth - 1) for key, item in value.items()}
        if kind in {list, tuple, set, frozenset}:
            return [self.plain(item, depth - 1) for item in value]
        return str(value) if kind is float else self._foreign(value, depth)

    def _foreign(self, value: Any, depth: int) -> Any:
        kind = type(value)
        try:
            if kind.__module__ == "numpy" and hasattr(kind, "tolist"):
                return self.plain(value.tolist(), depth - 1)
            if issubclass(kind, _WITH_JSON_FORM) or dataclasses.is_dataclass(kind):
                form = to_jsonable_python(value, fallback=labelled, bytes_mode="base64", inf_nan_mode="strings")
                return self.plain(form, depth - 1)
        except BaseException:  # noqa: BLE001 - see labelled
            return labelled(value)
        return labelled(value)

    def _key(self, key: Any) -> str:
        return text_of(key) if type(key) is str else str(self.plain(key, 1))
