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
MAX_DEPTH = 100
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
    """Give a value's JSON form, or its label. Never raises, whatever the value's class does."""
    return _plain(value, MAX_DEPTH)


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
        text = str(value)
    except BaseException as error:  # noqa: BLE001 - a foreign class may fail in any way, and leave, too
        text = f"without text: {type(error).__name__}"
    if len(text) > MAX_LABEL_CHARS:
        text = f"{text[:MAX_LABEL_CHARS]}… ({len(text)} characters)"
    return text_of(f"[{kind.__module__}.{kind.__qualname__}] {text}")


def _plain(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is str:
        return text_of(value)
    if kind in {int, bool, type(None)} or (kind is float and math.isfinite(value)):
        return value
    if depth > 0 and kind is dict:
        return {_key(key): _plain(item, depth - 1) for key, item in value.items()}
    if depth > 0 and kind in {list, tuple, set, frozenset}:
        return [_plain(item, depth - 1) for item in value]
    if kind is float:
        return str(value)
    return _foreign(value, depth - 1) if depth > 0 else labelled(value)


def _foreign(value: Any, depth: int) -> Any:
    kind = type(value)
    try:
        if kind.__module__ == "numpy" and hasattr(kind, "tolist"):
            return _plain(value.tolist(), depth)
        if issubclass(kind, _WITH_JSON_FORM) or dataclasses.is_dataclass(kind):
            form = to_jsonable_python(value, fallback=labelled, bytes_mode="base64", inf_nan_mode="strings")
            return _plain(form, depth)
    except BaseException:  # noqa: BLE001 - see labelled
        return labelled(value)
    return labelled(value)


def _key(key: Any) -> str:
    return text_of(key) if type(key) is str else str(plain(key))
