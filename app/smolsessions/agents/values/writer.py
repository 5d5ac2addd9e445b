"""Encoder of values. Code of a value's class may run, since the process that encodes a value trusts it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from itertools import pairwise
from typing import Any

from smolsessions.agents.values.classes import class_name, fields_of, member_name
from smolsessions.agents.values.kinds import kind_of, split
from smolsessions.agents.values.parts import MAX_DEPTH, MAX_INT_BITS, MAX_NODES, SET_WEIGHT, Composite

_ONLY = "only data can: numbers, texts, lists, dicts, dates, images, arrays and the classes that the agent declares"
_COUNT, _INT, _FLOAT, _COMPLEX = (struct.Struct(form) for form in ("<I", "<q", "<d", "<dd"))
_AS_KEY = object()


class RefusalError(Exception):
    """A value has no encoding. Each level that it passes adds its place to the path."""

    def __init__(self, value: Any, reason: str) -> None:
        name = class_name(type(value))
        self.what = f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
        self.reason = reason
        self.path: list[str] = []  # innermost first

    def __str__(self) -> str:
        where = f" at {''.join(reversed(self.path))}" if self.path else ""
        return f"{self.what}{where} cannot be handed over; {self.reason}"


class Writer:
    """Append nodes to a buffer, within the limits of the reader."""

    def __init__(self, declared: Collection[type], *, in_order: bool, max_bytes: int) -> None:
        self._declared = frozenset(declared)
        self._in_order = in_order
        self._max_bytes = max_bytes
        self._out = bytearray()
        self._left = MAX_NODES
        self._above: list[int] = []
        self._keys_above = 0

    def whole(self, value: Any) -> bytes:
        self._write(value)
        return bytes(self._out)

    def _write(self, value: Any) -> None:
        kind = type(value)
        if encode := _SCALARS.get(kind):
            self._append(value, encode(value))
        elif kind in _TAGS:
            self._write_collection(value, kind)
        elif parts := self._parts_of(value, kind):
            name = parts.kind.encode()
            self._enter(value, len(parts.parts) + kind_of(parts.kind).weight)
            self._append(value, b"P%c%c" % (len(name), len(parts.parts)) + name)
            for part in parts.parts:
                self._write(part)
            self._above.pop()
        elif base := next((base for base in kind.__mro__ if base in _AS_BASE), None):
            if self._keys_above and base in _UNHASHABLE:
                raise RefusalError(value, f"it is a key or in a set, which a {base.__name__} cannot be")
            self._enter(value, 0)  # each copy is a new object, so cycles are found by the original
            self._write(_AS_BASE[base](value))
            self._above.pop()
        else:
            raise RefusalError(value, _ONLY)

    def _parts_of(self, value: Any, kind: type) -> Composite | None:
        try:
            if kind is Composite or kind not in self._declared:
                return value if kind is Composite else split(value)
            if member := member_name(value):
                return Composite("member", (class_name(kind), member))
            return Composite("instance", (class_name(kind), fields_of(value, kind)))
        except Exception as error:  # noqa: BLE001 - numpy, pandas and Pillow raise errors of their own
            is_reason = type(error) is ValueError
            reason = str(error) if is_reason else f"reading it failed with {class_name(type(error))}"
            raise RefusalError(value, reason) from None

    def _append(self, value: Any, data: bytes) -> None:
        if len(self._out) + len(data) > self._max_bytes:
            raise RefusalError(value, f"the whole is larger than {self._max_bytes:,} bytes")
        self._out += data

    def _enter(self, value: Any, count: int) -> None:
        if id(value) in self._above:
            raise RefusalError(value, "it holds itself")
        if len(self._above) >= MAX_DEPTH:
            raise RefusalError(value, f"it lies more than {MAX_DEPTH} levels deep")
        if count > self._left:
            raise RefusalError(value, f"the whole has more than {MAX_NODES:,} parts; an array could hold them")
        self._left -= count
        self._above.append(id(value))

    def _write_collection(self, value: Any, kind: type) -> None:
        count, is_set = len(value), kind is set or kind is frozenset
        self._enter(value, 2 * count if kind is dict else count + SET_WEIGHT * is_set)
        self._append(value, _TAGS[kind] + _COUNT.pack(count))
        starts: list[int] = []
        place: Any = _AS_KEY
        try:
            for index, item in enumerate(value.items() if kind is dict else value):
                starts.append(len(self._out))
                place = _AS_KEY if is_set or kind is dict else index
                self._keys_above += place is _AS_KEY
                self._write(item[0] if kind is dict else item)
                self._keys_above -= place is _AS_KEY
                if kind is dict:
                    place = item[0]
                    self._write(item[1])
        except RefusalError as refusal:
            refusal.path.append(" in a set or as a key" if place is _AS_KEY else f"[{repr(place)[:42]}]")
            raise
        if len(starts) != count:
            raise RefusalError(value, "it was changed meanwhile")
        if starts and (is_set or (kind is dict and self._in_order)):
            chunks = [bytes(self._out[start:end]) for start, end in pairwise([*starts, len(self._out)])]
            self._out[starts[0] :] = b"".join(sorted(chunks))
        self._above.pop()


def _int(value: int) -> bytes:
    if value.bit_length() < _INT.size * 8:
        return b"i" + _INT.pack(value)
    if value.bit_length() > MAX_INT_BITS:
        raise RefusalError(value, "it has more than 4,299 digits")
    return _sized(b"I", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _sized(tag: bytes, data: bytes | bytearray) -> bytes:
    return tag + _COUNT.pack(len(data)) + data


_SCALARS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"N",
    bool: lambda value: b"T" if value else b"F",
    int: _int,
    float: lambda value: b"f" + _FLOAT.pack(value),
    complex: lambda value: b"c" + _COMPLEX.pack(value.real, value.imag),
    str: lambda value: _sized(b"s", value.encode("utf-8", "surrogatepass")),
    bytes: lambda value: _sized(b"b", value),
    bytearray: lambda value: _sized(b"B", value),
}
_TAGS: dict[type, bytes] = {list: b"l", tuple: b"t", dict: b"d", set: b"Z", frozenset: b"z"}
_UNHASHABLE = frozenset({list, dict, set, bytearray})
_AS_BASE: dict[type, Callable[[Any], Any]] = {
    **{kind: kind for kind in _TAGS},
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: bytes.__bytes__,
    bytearray: bytearray,
}
"""Functions that read an instance of a subclass as one of its built-in base."""
