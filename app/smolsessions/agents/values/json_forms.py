"""What tools and models return, as plain JSON data, or as a text with a label where it has no JSON form."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import math
import os
import uuid
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import PIL.Image
from pydantic import BaseModel
from pydantic_core import to_jsonable_python
from smolagents.agent_types import AgentImage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")

MAX_LABEL_CHARS = 2000
NODE_CHARS = 10  # what anything else counts
_COLLECTIONS = (list, tuple, set, frozenset, deque, Mapping)
MAX_DEPTH = 100
MAX_BITS = 8192  # of a number: readers of JSON refuse very long ones
MAX_CHARS = 1_000_000  # of all texts in a value
_MOMENTS = (dt.date, dt.time, dt.timedelta)
_WITH_JSON_FORM = (str, int, float, bytes, enum.Enum, os.PathLike, decimal.Decimal, uuid.UUID, *_MOMENTS)


def json_form(value: Any) -> Any:
    """Give a value's JSON form, or its label. Never raises, whatever the value's class does, and stays bounded."""
    return _Walk().plain(value, MAX_DEPTH)


def utf8_text(text: str) -> str:
    """Give a text that UTF-8 can say: half a surrogate pair, as models cut them, becomes a replacement character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def label_of(value: Any) -> str:
    """Give a text that says what it stands for."""
    kind = type(value)
    try:
        if issubclass(kind, PIL.Image.Image):
            image = value.to_raw() if issubclass(kind, AgentImage) else value  # smolagents' own has no size
            return f"[image {image.width}x{image.height}]"
        # The text of a collection can be endless, where it holds the same thing many times.
        text = f"of {len(value)}" if issubclass(kind, _COLLECTIONS) else str(value)
    except BaseException as error:  # noqa: BLE001 - a foreign class may fail in any way, and leave, too
        text = f"without text: {type(error).__name__}"
    if len(text) > MAX_LABEL_CHARS:
        text = f"{text[:MAX_LABEL_CHARS]}… ({len(text)} characters)"
    return utf8_text(f"[{kind.__module__}.{kind.__qualname__}] {text}")


class _Walk:
    """Goes through a value; what is deeper, or more in all, than the bounds becomes a label."""

    def __init__(self) -> None:
        self._left = MAX_CHARS

    def plain(self, value: Any, depth: int) -> Any:
        kind = type(value)
        self._left -= len(value) if kind is str else NODE_CHARS
        if self._left < 0 or depth == 0:
            return label_of(value)
        if kind is str:
            return utf8_text(value)
        if kind in {int, bool, type(None)} or (kind is float and math.isfinite(value)):
            return value if kind is not int or value.bit_length() <= MAX_BITS else label_of(value)
        if kind is float:
            return str(value)
        try:
            return self._collection(value, depth) if issubclass(kind, _COLLECTIONS) else self._foreign(value, depth)
        except BaseException:  # noqa: BLE001 - see labelled
            return label_of(value)

    def _collection(self, value: Any, depth: int) -> Any:
        if issubclass(type(value), Mapping):
            return {self._key(key): self.plain(item, depth - 1) for key, item in self._bounded(value.items())}
        return [self.plain(item, depth - 1) for item in self._bounded(value)]

    def _bounded(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            if self._left < 0:
                return
            yield item

    def _foreign(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind.__module__ == "numpy" and hasattr(kind, "tolist"):
            return self.plain(value.tolist(), depth - 1)
        if issubclass(kind, BaseModel):
            return self._collection(dict(value), depth)
        if dataclasses.is_dataclass(kind):
            names = [field.name for field in dataclasses.fields(kind)]
            return self._collection({name: getattr(value, name) for name in names}, depth)
        if issubclass(kind, _WITH_JSON_FORM):
            return self.plain(to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="strings"), depth - 1)
        return label_of(value)

    def _key(self, key: Any) -> str:
        return utf8_text(key) if type(key) is str else str(self.plain(key, 1))
