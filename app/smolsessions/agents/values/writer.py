"""Encoder of values. It compares classes by identity, because their `==` may be hostile."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable
from typing import Any

from smolsessions.agents.values.classes import StoredClasses, class_name, is_in, member_name, mro_of, state_of
from smolsessions.agents.values.kinds import kind_of, parts_of
from smolsessions.agents.values.parts import MAX_DEPTH, MAX_INT_BITS, MAX_NODES, SET_WEIGHT, Parts

_ONLY = "only data can: numbers, texts, lists, dicts, dates, images, arrays and the classes that the agent declares"
_COUNT, _INT, _FLOAT, _COMPLEX = (struct.Struct(form) for form in ("<I", "<q", "<d", "<dd"))
_FEW = 8  # lists of more numbers than this go as one block


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
    """Append nodes to a buffer. Classes are looked up by identity, because their `hash()` may be hostile."""

    def __init__(self, carried: StoredClasses, *, in_order: bool, max_bytes: int) -> None:
        self._carried = carried
        self._in_order = in_order
        self._max_bytes = max_bytes
        self._out = bytearray()
        self._left = MAX_NODES
        self._above: list[int] = []
        self._hashed = False

    def whole(self, value: Any) -> bytes:
        self.value(value)
        if len(self._out) > self._max_bytes:
            raise RefusalError(value, f"it is larger than {self._max_bytes:,} bytes")
        return bytes(self._out)

    def value(self, value: Any) -> None:
        kind = type(value)
        write = _WRITERS.get(id(kind))
        if write is not None:
            write(self, value)
        elif id(kind) in self._carried.names:
            self._carry(value, kind)
        else:
            self._other(value, kind)

    def _other(self, value: Any, kind: type) -> None:
        try:
            parts = parts_of(value)
        except Exception as error:  # noqa: BLE001 - numpy, pandas and Pillow raise errors of their own
            raise RefusalError(value, _reason(error)) from None
        if parts is not None:
            self.parts_(parts, value)
            return
        for known in mro_of(kind):
            if id(known) in _BASES:
                self._as_base(value, id(known))
                return
        raise RefusalError(value, _ONLY)

    def _as_base(self, value: Any, base: int) -> None:
        if base in _READ_AS_THEY_ARE:
            _WRITERS[base](self, value)
            return
        self._enter(value, 0)  # each copy is a new object, so cycles are found by the original
        _WRITERS[base](self, _BASES[base](value))
        self._above.pop()

    def _carry(self, value: Any, kind: type) -> None:
        name = self._carried.names[id(kind)]
        try:
            found = member_name(value, kind)
            parts = (
                Parts("instance", (name, state_of(value, kind))) if found is None else Parts("member", (name, found))
            )
        except ValueError as error:
            raise RefusalError(value, _reason(error)) from None
        self.parts_(parts, value)

    def parts_(self, parts: Parts, value: Any = None) -> None:
        kind, name = kind_of(parts.kind), parts.kind.encode()
        value = parts if value is None else value
        self._enter(value, len(parts.parts) + kind.weight, hashable=kind.hashable)
        self._out += b"P%c%c" % (len(name), len(parts.parts)) + name
        hashed, self._hashed = self._hashed, False
        for part in parts.parts:
            self.value(part)
        self._hashed = hashed
        self._above.pop()

    def _enter(self, value: Any, count: int, *, hashable: bool = True) -> None:
        if self._hashed and not hashable:
            raise RefusalError(value, "it is a key or in a set, where only what never changes can be")
        if id(value) in self._above:
            raise RefusalError(value, "it holds itself")
        if len(self._above) >= MAX_DEPTH:
            raise RefusalError(value, f"it lies more than {MAX_DEPTH} levels deep")
        if count > self._left:
            raise RefusalError(value, f"the whole has more than {MAX_NODES:,} parts; an array could hold them")
        self._left -= count
        self._above.append(id(value))

    def _sized(self, tag: bytes, data: bytes | bytearray, value: Any) -> None:
        if len(self._out) + len(data) > self._max_bytes:
            raise RefusalError(value, f"the whole is larger than {self._max_bytes:,} bytes")
        self._out += tag + _COUNT.pack(len(data))
        self._out += data

    def constant_(self, value: Any) -> None:
        self._out += b"N" if value is None else b"T" if value else b"F"

    def int_(self, value: int) -> None:
        if value.bit_length() < _INT.size * 8:
            self._out += b"i" + _INT.pack(value)
        elif value.bit_length() <= MAX_INT_BITS:
            self._sized(b"I", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True), value)
        else:
            raise RefusalError(value, "it has more than 4,299 digits")

    def float_(self, value: float) -> None:
        self._out += b"f" + _FLOAT.pack(value)

    def complex_(self, value: complex) -> None:
        self._out += b"c" + _COMPLEX.pack(value.real, value.imag)

    def str_(self, value: str) -> None:
        if len(value) > self._max_bytes:
            raise RefusalError(value, f"it is larger than {self._max_bytes:,} bytes")
        self._sized(b"s", value.encode("utf-8", "surrogatepass"), value)

    def bytes_(self, value: bytes) -> None:
        self._sized(b"b", value, value)

    def bytearray_(self, value: bytearray) -> None:
        self._enter(value, 0, hashable=False)
        self._sized(b"B", value, value)
        self._above.pop()

    def list_(self, value: list[Any]) -> None:
        self._enter(value, len(value), hashable=False)
        kinds = set(map(id, map(type, value))) if len(value) > _FEW else ()
        if kinds == {id(float)}:
            self._sized(b"x", struct.pack(f"<{len(value)}d", *value), value)
        elif kinds != {id(int)} or not self._ints(value):
            self._items(b"l", value)
        self._above.pop()

    def _ints(self, value: list[int]) -> bool:
        try:
            self._sized(b"y", struct.pack(f"<{len(value)}q", *value), value)
        except struct.error:
            return False
        return True

    def tuple_(self, value: tuple[Any, ...]) -> None:
        self._enter(value, len(value))
        self._items(b"t", value)
        self._above.pop()

    def _items(self, tag: bytes, items: Collection[Any]) -> None:
        count, index = len(items), 0
        self._out += tag + _COUNT.pack(count)
        try:
            for item in items:
                self.value(item)
                index += 1
        except RefusalError as refusal:
            refusal.path.append(f"[{index}]")
            raise
        if index != count:
            raise RefusalError(items, "it was changed meanwhile")

    def set_(self, value: set[Any] | frozenset[Any]) -> None:
        kind: Any = frozenset if is_in(type(value), (frozenset,)) else set
        self._enter(value, kind.__len__(value) + SET_WEIGHT, hashable=kind is frozenset)
        start = len(self._out)
        chunks = sorted({self._chunk(item, None, hashed=True) for item in kind.__iter__(value)})
        tag = b"Z" if kind is set else b"z"
        self._out[start:] = tag + _COUNT.pack(len(chunks)) + b"".join(chunks)
        self._above.pop()

    def _chunk(self, item: Any, key: Any, *, hashed: bool) -> bytes:
        start, outer, self._hashed = len(self._out), self._hashed, hashed
        try:
            self.value(item)
        except RefusalError as refusal:
            refusal.path.append(" in a set or as a key" if hashed else _step(key))
            raise
        self._hashed = outer
        return bytes(self._out[start:])

    def dict_(self, value: dict[Any, Any]) -> None:
        pairs = list(dict.items(value))
        self._enter(value, 2 * len(pairs), hashable=False)
        if self._in_order or any(type(key) is not str for key, _ in pairs):
            self._pairs(value, pairs)
        else:
            self._out += b"d" + _COUNT.pack(len(pairs))
            key = ""
            try:
                for key, item in pairs:
                    self.str_(key)
                    self.value(item)
            except RefusalError as refusal:
                refusal.path.append(_step(key))
                raise
        self._above.pop()

    def _pairs(self, value: dict[Any, Any], pairs: Iterable[tuple[Any, Any]]) -> None:
        start = len(self._out)
        chunks: dict[bytes, bytes] = {}
        for key, item in pairs:
            chunk = self._chunk(key, key, hashed=True)
            if chunk in chunks:
                raise RefusalError(value, f"two of its keys would be one: {_step(key)}")
            chunks[chunk] = self._chunk(item, key, hashed=False)
        ordered = sorted(chunks.items()) if self._in_order else chunks.items()
        self._out[start:] = b"d" + _COUNT.pack(len(chunks)) + b"".join(map(b"".join, ordered))


def _reason(error: Exception) -> str:
    return str(error) if type(error) is ValueError else f"reading it failed with {class_name(type(error))}"


def _step(key: Any) -> str:
    kind = type(key)
    if kind is str or kind is bytes:
        return f"[{key[:40]!r}]"
    if id(kind) not in _SHOWN or (kind is int and key.bit_length() > _INT.size * 8):
        return f"[{class_name(kind)}]"
    return f"[{key!r}]"


_WRITERS: dict[int, Callable[[Writer, Any], None]] = {
    **{id(kind): Writer.constant_ for kind in (type(None), bool)},
    **{id(kind): Writer.set_ for kind in (set, frozenset)},
    id(int): Writer.int_,
    id(float): Writer.float_,
    id(complex): Writer.complex_,
    id(str): Writer.str_,
    id(bytes): Writer.bytes_,
    id(bytearray): Writer.bytearray_,
    id(list): Writer.list_,
    id(tuple): Writer.tuple_,
    id(Parts): Writer.parts_,
    id(dict): Writer.dict_,
}
_SHOWN = frozenset(map(id, (type(None), bool, int, float, str, bytes)))
_READ_AS_THEY_ARE = frozenset(map(id, (set, frozenset, dict)))  # by the methods of their base in any case
# Functions that read an instance of a subclass with the methods of its base.
_BASES: dict[int, Callable[[Any], Any]] = {
    id(int): int.__int__,
    id(float): float.__float__,
    id(complex): complex.__complex__,
    id(str): str.__str__,
    id(bytes): bytes.__bytes__,
    id(bytearray): bytearray.copy,
    id(list): list.copy,
    id(tuple): lambda value: tuple.__getitem__(value, slice(None)),
    **{base: lambda value: value for base in _READ_AS_THEY_ARE},
}
