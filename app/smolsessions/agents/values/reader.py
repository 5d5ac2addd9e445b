"""Decoder of values. It checks every length before use, and bounds its work."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sized
from typing import Any

from smolsessions.agents.values.classes import StoredClasses, instance, member
from smolsessions.agents.values.kinds import kind_of, put_together
from smolsessions.agents.values.parts import MAX_DEPTH, MAX_INT_BITS, MAX_NODES, SET_WEIGHT, Declared, check_keys

_COUNT, _INT, _FLOAT, _COMPLEX = (struct.Struct(form) for form in ("<I", "<q", "<d", "<dd"))


class Reader:
    def __init__(self, data: bytes, carried: StoredClasses) -> None:
        self._data = data
        self._carried = carried
        self._at = 0
        self._left = MAX_NODES
        self._depth = 0

    def whole(self) -> Any:
        value = self.value()
        if self._at != len(self._data):
            raise ValueError("more bytes than its value has")
        return value

    def value(self) -> Any:
        at = self._at
        if at >= len(self._data):
            raise ValueError("it ends too early")
        read = _READERS.get(self._data[at])
        if read is None:
            raise ValueError("an unknown tag")
        self._at = at + 1
        return read(self)

    def _take(self, size: int) -> bytes:
        at = self._at
        self._at = end = at + size
        if end > len(self._data):
            raise ValueError("it ends too early")
        return self._data[at:end]

    def _enter(self, count: int) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} levels")
        self._spend(count)

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise ValueError(f"more than {MAX_NODES:,} parts")

    def _many(self, per_item: int = 1) -> list[Any]:
        (count,) = _COUNT.unpack(self._take(4))
        count *= per_item
        self._enter(count)
        items = [self.value() for _ in range(count)]
        self._depth -= 1
        return items

    def sized(self) -> bytes:
        (size,) = _COUNT.unpack(self._take(4))
        return self._take(size)

    def int_(self) -> int:
        number: int = _INT.unpack(self._take(8))[0]
        return number

    def long_(self) -> int:
        data = self.sized()
        if len(data) > MAX_INT_BITS // 8 + 1:
            raise ValueError("a number of too many digits")
        return int.from_bytes(data, "little", signed=True)

    def float_(self) -> float:
        number: float = _FLOAT.unpack(self._take(8))[0]
        return number

    def complex_(self) -> complex:
        return complex(*_COMPLEX.unpack(self._take(16)))

    def str_(self) -> str:
        return self.sized().decode("utf-8", "surrogatepass")

    def bytearray_(self) -> bytearray:
        self._spend(1)
        return bytearray(self.sized())

    def numbers(self, form: str) -> list[Any]:
        data = self.sized()
        self._spend(len(data) // 8)
        return list(struct.unpack(f"<{len(data) // 8}{form}", data))

    def list_(self) -> list[Any]:
        return self._many()

    def tuple_(self) -> tuple[Any, ...]:
        return tuple(self._many())

    def set_(self) -> set[Any]:
        self._spend(SET_WEIGHT)
        items = self._many()
        check_keys(items)
        value = set(items)
        _check_all_of(items, value)
        return value

    def frozenset_(self) -> frozenset[Any]:
        return frozenset(self.set_())

    def dict_(self) -> dict[Any, Any]:
        items = self._many(per_item=2)
        keys = items[::2]
        check_keys(keys)
        value = dict(zip(keys, items[1::2], strict=True))
        _check_all_of(keys, value)
        return value

    def parts(self) -> Any:
        length, count = self._take(2)
        kind = self._take(length).decode()
        self._enter(count + kind_of(kind).weight)
        parts = tuple([self.value() for _ in range(count)])
        self._depth -= 1
        value = put_together(kind, parts)
        return self._carry(value) if type(value) is Declared else value

    def _carry(self, declared: Declared) -> Any:
        kind = self._carried.kinds.get(declared.name)
        if kind is None:
            raise ValueError(f"{declared.name!r:.80} is not carried")
        content = declared.content
        return member(kind, content) if isinstance(content, str) else instance(kind, content)


def _check_all_of(keys: list[Any], made: Sized) -> None:
    if len(made) != len(keys):
        raise ValueError("two keys that are equal")


_BY_TAG: dict[bytes, Callable[[Reader], Any]] = {
    b"N": lambda _: None,
    b"T": lambda _: True,
    b"F": lambda _: False,
    b"i": Reader.int_,
    b"I": Reader.long_,
    b"f": Reader.float_,
    b"c": Reader.complex_,
    b"s": Reader.str_,
    b"b": Reader.sized,
    b"B": Reader.bytearray_,
    b"x": lambda reader: reader.numbers("d"),
    b"y": lambda reader: reader.numbers("q"),
    b"l": Reader.list_,
    b"t": Reader.tuple_,
    b"Z": Reader.set_,
    b"z": Reader.frozenset_,
    b"d": Reader.dict_,
    b"P": Reader.parts,
}
_READERS = {tag[0]: read for tag, read in _BY_TAG.items()}
