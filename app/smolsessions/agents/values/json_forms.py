"""JSON forms of any values, a check for values that JSON keeps exactly, and short forms for events.

One set of limits holds for all of them: depth, parts, characters, and the length of a number.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import os
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import PIL.Image
from pydantic import BaseModel
from pydantic_core import to_jsonable_python
from smolagents.agent_types import AgentImage

from smolsessions.agents.values.classes import class_name
from smolsessions.agents.values.parts import MAX_DEPTH, MAX_NODES
from smolsessions.core.attachments import File
from smolsessions.core.json_data import json_pointer

T = TypeVar("T")

MAX_BITS = 8192  # of a number: readers of JSON refuse longer ones
MAX_CHARS = 1_000_000  # of all texts in a value's JSON form
MAX_LABEL_CHARS = MAX_EVENT_CHARS = 2000
_MAX_EVENT_MEMBERS = 100
_MAX_EVENT_JSON_CHARS = 64 * 1024  # of a value that was cut
_NODE_CHARS = 10  # budget of anything except a text
json_text = json.JSONEncoder(ensure_ascii=False).encode
"""Returns JSON data as text. Unlike `json.dumps`, it makes no encoder for each call."""
_COLLECTIONS = (list, tuple, set, frozenset, deque, Mapping)
MEDIA = (PIL.Image.Image, File)  # a person sees their content, and JSON has a label
_MOMENTS = (dt.date, dt.time, dt.timedelta)
_WITH_JSON_FORM = (str, int, float, bytes, enum.Enum, os.PathLike, decimal.Decimal, uuid.UUID, *_MOMENTS)


def json_form(value: Any) -> Any:
    """Return a value's JSON form, or its label. Never raises and stays bounded, whatever the value's class does."""
    is_short_text = type(value) is str and len(value) <= MAX_CHARS
    return utf8_text(value) if is_short_text else _Walk().form(value, MAX_DEPTH)


def shown_form(value: Any) -> tuple[bool, int]:
    """Return whether the JSON form of a value is whole, and the number of images and files that it has labels for.

    Other labels, bounds and two keys of one text leave parts of the value out.
    """
    walk = _Walk()
    walk.form(value, MAX_DEPTH)
    return walk.is_whole, walk.media


def json_key(key: Any) -> str:
    return _Walk().key(key)


def utf8_text(text: str) -> str:
    """Replace lone surrogates, which models produce by cutting characters and UTF-8 cannot encode."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def label_of(value: Any) -> str:
    """Return a text that names a value's class and shows its text, in place of a value without a JSON form."""
    kind, name = type(value), "object"
    try:
        name = class_name(kind)
        if issubclass(kind, PIL.Image.Image):
            image = value.to_raw() if issubclass(kind, AgentImage) else value  # smolagents' own has no size
            return f"[image {image.width}x{image.height}]"
        if issubclass(kind, File):
            return utf8_text(File.__repr__(value))
        # The text of a collection has no bound if it holds the same value many times.
        text = f"of {len(value)}" if issubclass(kind, _COLLECTIONS) else str(value)
    except BaseException as error:  # noqa: BLE001 - a foreign class may fail in any way, and exit, too
        text = f"without text: {type(error).__name__}"
    return utf8_text(f"[{name if '.' in name else f'builtins.{name}'}] {cut_text(text, MAX_LABEL_CHARS)}")


def truncated(text: str) -> str:
    """Cut a text for an event, with a mark. The steps hold the whole text."""
    return text if len(text) <= MAX_EVENT_CHARS and text.isascii() else utf8_text(cut_text(text, MAX_EVENT_CHARS))


def cut_text(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[:max_chars]}… ({len(text)} characters)"


def truncate_json(value: Any) -> Any:
    """Cut the texts in JSON data for an event. A large list or object becomes one text."""
    cut = _cut_texts(value)
    is_large = isinstance(cut, dict | list) and len(json_text(cut)) > _MAX_EVENT_JSON_CHARS
    return truncated(json_text(value)) if is_large else cut


def _cut_texts(value: Any) -> Any:
    if isinstance(value, str):
        return truncated(value)
    if isinstance(value, dict) and len(value) <= _MAX_EVENT_MEMBERS:
        return {truncated(name): _cut_texts(member) for name, member in value.items()}
    if isinstance(value, list) and len(value) <= _MAX_EVENT_MEMBERS:
        return [_cut_texts(member) for member in value]
    return truncated(json_text(value)) if isinstance(value, dict | list) else value


def joined_text(parts: Any) -> str | None:
    """Return the texts of a message's parts, one per line. Returns None if a part is no text."""
    if isinstance(parts, list) and parts and all(isinstance(part, dict) and "text" in part for part in parts):
        return "\n".join(str(part["text"]) for part in parts)
    return None


def json_flaw(value: Any, *, max_chars: int | None = None, is_tree: bool = False) -> str | None:
    """Return which part JSON does not keep exactly, and why. With `is_tree`, nothing may occur twice."""
    if type(value) is not dict and type(value) is not list:
        return _flaw_of_scalar(value)
    nodes_left = MAX_NODES
    seen: set[int] = set()
    # A place is the one around it, and the part of that. Pointers of all would take gigabytes.
    levels: list[tuple[Any, Any, int]] = [((), value, 0)]
    while levels:
        place, node, depth = levels.pop()
        nodes_left -= len(node)
        if depth == MAX_DEPTH or nodes_left < 0:
            is_large = nodes_left < 0
            return _flaw_at(place, "has too many parts" if is_large else f"lies more than {MAX_DEPTH} levels deep")
        if is_tree and id(node) in seen:
            return _flaw_at(place, "holds the same list or dict twice")
        seen.add(id(node))
        is_dict = type(node) is dict
        for key in node if is_dict else ():
            if type(key) is not str:
                return _flaw_at(place, "has a key that is no text")
            if not key.isascii() and utf8_text(key) is not key:
                return _flaw_at(place, "has a key with half a character")
        for part, inner in node.items() if is_dict else enumerate(node):
            kind = type(inner)
            if kind is dict or kind is list:
                levels.append(((place, part), inner, depth + 1))
            elif reason := _flaw_of_scalar(inner):
                return _flaw_at((place, part), reason)
        if max_chars is not None:
            texts = (*node, *node.values()) if is_dict else node
            max_chars -= sum(len(each) if type(each) is str else 1 for each in texts)
            if max_chars < 0:
                return _flaw_at(place, "is too large")
    return None


def _flaw_at(place: Any, reason: str) -> str:
    parts = []
    while place:
        place, part = place
        parts.append(part)
    return f"{reason} (at {json_pointer(*reversed(parts))} in it)" if parts else reason


def _flaw_of_scalar(value: Any) -> str | None:
    kind = type(value)
    if kind is str:
        return None if value.isascii() or utf8_text(value) is value else "is a text with half a character"
    if kind is int:
        return None if value.bit_length() <= MAX_BITS else "is a number of too many digits"
    if kind is float:
        return None if math.isfinite(value) else "is no number of JSON"
    return None if value is None or kind is bool else f"is a {kind.__name__}, which JSON does not have"


class _Walk:
    """Walk through a value. Parts beyond the bounds become labels."""

    def __init__(self) -> None:
        self._left = MAX_CHARS
        self.is_whole = True
        self.media = 0

    def form(self, value: Any, depth: int) -> Any:
        kind = type(value)
        self._left -= len(value) if kind is str else _NODE_CHARS
        if self._left >= 0 and depth > 0:
            try:
                if kind is str:
                    return utf8_text(value)
                if kind is dict:
                    return self._members(value, depth)
                return value if _flaw_of_scalar(value) is None else self._form(value, depth)
            except BaseException:  # noqa: BLE001, S110 - see label_of
                pass
        label = label_of(value)
        try:  # a person sees less of a value behind a label, unless it is a medium
            is_medium = issubclass(kind, MEDIA)
            self.is_whole &= self._left >= 0 and is_medium
            self.media += is_medium
        except BaseException:  # noqa: BLE001 - see label_of
            self.is_whole = False
        self._left -= len(label)
        return label

    def key(self, key: Any) -> str:
        return utf8_text(key) if type(key) is str else str(self.form(key, 1))

    def _form(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if issubclass(kind, str):
            return utf8_text(str.__str__(value))
        if kind is float:
            return str(value)
        if issubclass(kind, BaseModel):
            value, kind = dict(value), dict
        elif dataclasses.is_dataclass(kind) and not issubclass(kind, (Mapping, File)):
            value, kind = {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}, dict
        if issubclass(kind, Mapping):
            return self._members(value, depth)
        if issubclass(kind, _COLLECTIONS):
            return [self.form(item, depth - 1) for item in self._bounded(value)]
        if kind.__module__ == "numpy" and hasattr(kind, "tolist") and getattr(value, "size", 0) <= MAX_NODES:
            return self.form(value.tolist(), depth - 1)
        if type(zone := getattr(value, "tzinfo", None)) is ZoneInfo:
            return f"{value.isoformat()}[{zone.key}]"  # RFC 9557: at another time the zone may have another offset
        if kind is int or not issubclass(kind, _WITH_JSON_FORM):
            raise TypeError(kind)
        return self.form(to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="strings"), depth - 1)

    def _members(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for key, item in self._bounded(value.items()):
            name = self.key(key)
            self.is_whole &= name not in members
            members[name] = self.form(item, depth - 1)
        return members

    def _bounded(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            if self._left < 0:
                self.is_whole = False
                return
            yield item
