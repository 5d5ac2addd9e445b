"""What tools and models return, as plain JSON data, or as a text with a label where it has no JSON form."""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Mapping
from typing import Any

import PIL.Image
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

MAX_LABEL_CHARS = 2000
_JSON_TYPES = (str, int, float, list, tuple, dict, set, frozenset, enum.Enum, os.PathLike, Mapping, BaseModel)


def plain(value: Any) -> Any:
    """Give a value's JSON form, or its label. Never raises, whatever the value's class does."""
    try:
        return _json_form(value)
    except Exception:  # noqa: BLE001 - a foreign class may fail in any way
        return labelled(value)


def labelled(value: Any) -> str:
    """Give a text that says what it stands for."""
    kind = type(value)
    try:
        if issubclass(kind, PIL.Image.Image):
            return f"[image {value.width}x{value.height}]"
        text = str(value)
    except Exception as error:  # noqa: BLE001 - see plain
        text = f"without text: {type(error).__name__}"
    if len(text) > MAX_LABEL_CHARS:
        text = f"{text[:MAX_LABEL_CHARS]}… ({len(text)} characters)"
    return f"[{kind.__module__}.{kind.__qualname__}] {text}"


def _json_form(value: Any) -> Any:
    kind = type(value)
    if kind in {str, int, float, bool, type(None)}:
        return value
    if kind.__module__ == "numpy" and hasattr(kind, "tolist"):
        return value.tolist()
    if issubclass(kind, PIL.Image.Image) or not (issubclass(kind, _JSON_TYPES) or dataclasses.is_dataclass(kind)):
        return labelled(value)
    return to_jsonable_python(
        value, fallback=labelled, bytes_mode="base64", inf_nan_mode="strings", timedelta_mode="float"
    )
