"""Decoder of values. It checks every length before use, and bounds its work."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from typing import Any

from smolsessions.agents.values.classes import class_name, instance, member
from smolsessions.agents.values.kinds import join, kind_of
from smolsessions.agents.values.parts import MAX_DEPTH, MAX_INT_BITS, MAX_NODES, SET_WEIGHT, Declared, check_keys

_COUNT, _INT, _FLOAT, _COMPLEX = (struct.Struct(form) for form in ("<I", "<q", "<d", "<dd"))


class Reader:
    def __init__(self, data: bytes, declared: Collection[type]) -> None:
        self._data = data
        self._declared = {class_name(kind): kind for kind in declared}
        self._at = 0
        self._left = MAX_NODES
        self._depth = 0

    def whole(self) -> Any:
        value = self._value()
        if self._at != len(self._data):
            raise ValueError("more bytes than its value has")
        return value

    def _value(self) -> Any:
        (tag,) = self.take(1)
        read = _READERS.get(tag)
        if read is None:
            raise ValueError("an unknown tag")
        return read(self)

    def take(self, size: int) -> bytes:
        at = self._at
        self._at = end = at + size
        if end > len(self._data):
            raise ValueError("it ends too early")
        return self._data[at:end]

    def sized(self) -> bytes:
        return self.take(*_COUNT.unpack(self.take(4)))

    def int_(self) -> int:
        data = self.sized()
        if len(data) > MAX_INT_BITS // 8 + 1:
            raise ValueError("a number of too many digits")
        return int.from_bytes(data, "little", signed=True)

    def spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise ValueError(f"more than {MAX_NODES:,} parts")

    def items(self, per_item: int = 1) -> list[Any]:
        (count,) = _COUNT.unpack(self.take(4))
        return self._values(count * per_item)

    def _values(self, count: int, weight: int = 0) -> list[Any]:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} levels")
        self.spend(count + weight)
        items = [self._value() for _ in range(count)]
        self._depth -= 1
        return items

    def bytearray_(self) -> bytearray:
        self.spend(1)
        return bytearray(self.sized())

    def set_(self) -> set[Any]:
        self.spend(SET_WEIGHT)
        items = self.items()
        check_keys(items)
        value = set(items)
        if len(value) != len(items):
            raise ValueError("two items that are equal")
        return value

    def dict_(self) -> dict[Any, Any]:
        items = self.items(per_item=2)
        keys = items[::2]
        check_keys(keys)
        value = dict(zip(keys, items[1::2], strict=True))
        if len(value) != len(keys):
            raise ValueError("two keys that are equal")
        return value

    def parts(self) -> Any:
        length, count = self.take(2)
        kind = self.take(length).decode()
        value = join(kind, tuple(self._values(count, kind_of(kind).weight)))
        if type(value) is not Declared:
            return value
        declared = self._declared.get(value.name)
        if declared is None:
            raise ValueError(f"{value.name!r:.80} is not declared")
        content = value.content
        return member(declared, content) if isinstance(content, str) else instance(declared, content)


_READERS: dict[int, Callable[[Reader], Any]] = {
    ord("N"): lambda _: None,
    ord("T"): lambda _: True,
    ord("F"): lambda _: False,
    ord("i"): lambda reader: _INT.unpack(reader.take(8))[0],
    ord("I"): Reader.int_,
    ord("f"): lambda reader: _FLOAT.unpack(reader.take(8))[0],
    ord("c"): lambda reader: complex(*_COMPLEX.unpack(reader.take(16))),
    ord("s"): lambda reader: reader.sized().decode("utf-8", "surrogatepass"),
    ord("b"): Reader.sized,
    ord("B"): Reader.bytearray_,
    ord("l"): Reader.items,
    ord("t"): lambda reader: tuple(reader.items()),
    ord("Z"): Reader.set_,
    ord("z"): lambda reader: frozenset(reader.set_()),
    ord("d"): Reader.dict_,
    ord("P"): Reader.parts,
}
