"""A reader of what a child process wrote of a variable, for plain JSON values alone: it makes nothing else.

The bytes were made by model-written code, so no unpickler sees them. Those that stand for a class, a function or a
call are refused unread; what is held twice is refused too, for it would be two things afterwards.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_NODE_CHARS = 8
_PROTOCOL = 5
_SHORT, _INT, _COUNT, _LENGTH, _FLOAT = (struct.Struct(form) for form in ("<H", "<i", "<I", "<Q", ">d"))


class NotPlainError(ValueError):
    """Why the bytes are not those of a plain value."""


class Budget:
    """How much all that is read may come to, in characters: a text may be named again and again in few bytes."""

    def __init__(self, chars: int) -> None:
        self._left = chars

    def spend(self, chars: int) -> None:
        self._left -= chars
        if self._left < 0:
            raise NotPlainError("is too large for an export")


def read_plain(data: bytes, budget: Budget) -> Any:
    """Give the value. Raises `NotPlainError` for whatever is wrong with the bytes."""
    try:
        return _Machine(data, budget).value()
    except (IndexError, struct.error, TypeError):
        raise NotPlainError("cannot be read") from None
    except UnicodeDecodeError:
        raise NotPlainError("holds half a character") from None


class _Machine:
    """Every list and dict is on the stack once and goes from there into one other: what comes out is a tree."""

    def __init__(self, data: bytes, budget: Budget) -> None:
        self._data = data
        self._at = 0
        self._budget = budget
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: list[Any] = []

    def value(self) -> Any:
        while (code := self.byte()) != _STOP:
            step = _STEPS.get(code)
            if step is None:
                raise NotPlainError(_REFUSED.get(code, "is or holds a function, a class or an object"))
            self._budget.spend(_NODE_CHARS)
            step(self)
        if len(self._stack) != 1 or self._marks or self._at != len(self._data):
            raise NotPlainError("cannot be read")
        return self._stack[0]

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def number(self, form: struct.Struct) -> Any:
        (number,) = form.unpack_from(self._data, self._at)
        self._at += form.size
        return number

    def _bytes(self, length: int) -> bytes:
        self._at += length
        if self._at > len(self._data):
            raise IndexError
        return self._data[self._at - length : self._at]

    def protocol(self) -> None:
        if self.byte() != _PROTOCOL:
            raise NotPlainError("cannot be read")

    def frame(self) -> None:
        self.number(_LENGTH)

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def long_(self, length: int) -> None:
        self.push(int.from_bytes(self._bytes(length), "little", signed=True))

    def text(self, length: int) -> None:
        data = self._bytes(length)
        self._budget.spend(length)
        self.push(data.decode())

    def memoize(self) -> None:
        self._memo.append(self._stack[-1])

    def again(self, index: int) -> None:
        value = self._memo[index]
        if type(value) is not str:
            raise NotPlainError("holds the same list or dict twice")
        self._budget.spend(len(value))
        self.push(value)

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise TypeError
        target += items

    def set_(self, items: list[Any]) -> None:
        target, keys = self._stack[-1], items[::2]
        if type(target) is not dict or len(items) % 2:
            raise TypeError
        if any(type(key) is not str for key in keys):
            raise NotPlainError("has a key that is no text")
        target.update(zip(keys, items[1::2], strict=True))

    def popped(self, count: int) -> list[Any]:
        return self._from(len(self._stack) - count)

    def marked(self) -> list[Any]:
        return self._from(self._marks.pop())

    def _from(self, start: int) -> list[Any]:
        items = self._stack[start:]
        del self._stack[start:]
        return items


_STOP = ord(".")
_STEPS: dict[int, Callable[[_Machine], None]] = {
    0x80: _Machine.protocol,
    0x95: _Machine.frame,
    ord("N"): lambda machine: machine.push(None),
    0x88: lambda machine: machine.push(True),
    0x89: lambda machine: machine.push(False),
    ord("J"): lambda machine: machine.push(machine.number(_INT)),
    ord("K"): lambda machine: machine.push(machine.byte()),
    ord("M"): lambda machine: machine.push(machine.number(_SHORT)),
    0x8A: lambda machine: machine.long_(machine.byte()),
    0x8B: lambda machine: machine.long_(machine.number(_COUNT)),
    ord("G"): lambda machine: machine.push(machine.number(_FLOAT)),
    0x8C: lambda machine: machine.text(machine.byte()),
    ord("X"): lambda machine: machine.text(machine.number(_COUNT)),
    0x8D: lambda machine: machine.text(machine.number(_LENGTH)),
    0x94: _Machine.memoize,
    ord("h"): lambda machine: machine.again(machine.byte()),
    ord("j"): lambda machine: machine.again(machine.number(_COUNT)),
    ord("]"): lambda machine: machine.push([]),
    ord("}"): lambda machine: machine.push({}),
    ord("("): _Machine.mark,
    ord("a"): lambda machine: machine.append(machine.popped(1)),
    ord("e"): lambda machine: machine.append(machine.marked()),
    ord("s"): lambda machine: machine.set_(machine.popped(2)),
    ord("u"): lambda machine: machine.set_(machine.marked()),
}
_REFUSED = {
    **dict.fromkeys([ord(")"), 0x85, 0x86, 0x87, ord("t")], "is or holds a tuple"),
    **dict.fromkeys([0x8F, 0x90, 0x91], "is or holds a set"),
    **dict.fromkeys([ord("B"), ord("C"), 0x8E, 0x96], "is or holds bytes"),
}
