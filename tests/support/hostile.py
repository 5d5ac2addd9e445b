"""Values that try to run code when they are read, to lie about their type, or to fill the memory."""

import collections
import ctypes
import datetime as dt
import decimal
import enum
import fractions
import itertools
import re
import sys
import threading
import types
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import PIL.Image
from smolagents.agent_types import AgentImage

from tests.support.agents import nested

MARKS: list[str] = []
"""Traces of hostile code that ran."""

REFUSED = object()
"""Stands for a value that does not cross to the other side."""

_METHODS = """
    abs add aenter aiter and await bool buffer bytes call ceil complex contains copy deepcopy del delattr delitem dir
    dict divmod enter eq exit float floordiv format ge get getattr getattribute getitem getnewargs getnewargs_ex
    getstate gt hash iadd index int invert iter le len length_hint lt missing mod mul ne neg next or pos pow radd reduce
    reduce_ex repr reversed round set setattr setitem setstate sizeof str sub truediv trunc xor array fspath
    array_interface dataframe arrow_c_array arrow_c_stream
""".split()


def marking(name: str) -> Callable[..., Any]:
    def method(*_: Any, **__: Any) -> Any:
        MARKS.append(name)
        raise RuntimeError(name)

    return method


def body(*names: str) -> dict[str, Any]:
    return {f"__{name}__": marking(name) for name in names}


# A subclass keeps the methods that it needs to be created, and to be deleted without an error.
_ALL = body(*(name for name in _METHODS if name not in {"del", "getattribute", "setattr", "get", "set"}))
_PUBLIC = """
    __class__ items keys values get copy append pop encode decode to_bytes bit_length isoformat utcoffset tzinfo
    year fold days numerator denominator as_tuple adjusted maxlen mode size tobytes load hex real imag
""".split()


def subclass(base: type, **more: Any) -> Any:
    own = {name: property(marking(name)) for name in _PUBLIC if name != "load"}
    return type(f"Bad{base.__name__}", (base,), {**_ALL, **own, "__getattribute__": marking("getattribute"), **more})


class LyingMeta(type):
    """A metaclass that answers for its classes, with code of its own."""

    __instancecheck__ = __subclasscheck__ = __getattribute__ = __getattr__ = __call__ = marking("meta")
    __hash__ = __eq__ = __repr__ = __str__ = __len__ = __iter__ = __bool__ = __or__ = marking("meta")
    __prepare__ = classmethod(lambda *_, **__: {})


class OddName:
    """Value of a class's `__module__` that cannot be shown."""

    __str__ = __repr__ = __format__ = __len__ = __eq__ = __hash__ = marking("name")


class ArmedKey(str):
    """Behaves as a str until it is armed."""

    __slots__ = ()
    armed = False

    def __hash__(self) -> int:
        if ArmedKey.armed:
            MARKS.append("key hash")
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        if ArmedKey.armed:
            MARKS.append("key eq")
        return str.__eq__(self, other)


class ArmedItem:
    __slots__ = ()

    def __hash__(self) -> int:
        if ArmedKey.armed:
            MARKS.append("item hash")
        return 1

    def __eq__(self, other: object) -> bool:
        if ArmedKey.armed:
            MARKS.append("item eq")
        return self is other


class Level(enum.IntEnum):
    HIGH = 3


class Word(str, enum.Enum):  # noqa: UP042 - as authors write it
    HI = "hi"


class Plain(enum.Enum):
    ONE = 1


@dataclass
class Record:
    x: int = 1


def _generator() -> Any:
    yield 1


def _wide() -> list[Any]:
    value: list[Any] = [0] * 1000
    for _ in range(40):
        value = [value] * 1000
    return value


def _circle(make: Callable[[], Any], add: Callable[[Any, Any], Any]) -> Any:
    value = make()
    add(value, value)
    return value


def _lying_class() -> Any:
    return LyingMeta("Odd", (), {})


def _refused() -> dict[str, Any]:
    lying = type("Lying", (), {"__class__": property(marking("class"))})
    posing = type("Posing", (), {"__class__": str})
    made: dict[str, Any] = {f"an object with __{name}__": type(name, (), body(name))() for name in _METHODS}
    made |= {
        "an object of all marks": type("All", (), {**_ALL, "__getattribute__": marking("getattribute")})(),
        "a __class__ property": lying(),
        "a __class__ that says str": posing(),
        "a class of a lying metaclass": LyingMeta("Odd", (), {}),
        "an instance of a lying metaclass": object.__new__(_lying_class()),
        "an odd __module__": type("Odd", (), {"__module__": OddName()})(),
        "an odd __qualname__": type("Odd", (), {"__qualname__": type("Name", (str,), body("format", "str"))("q")})(),
        "a descriptor for its dict": type("Odd", (), {"__dict__": property(marking("dict"))})(),
        "an exception": ValueError("x"),
        "an exception of marks": type("BadError", (Exception,), {**_ALL, "args": property(marking("args"))})(),
        "an uncarried dataclass": Record(),
        "an uncarried enum": Plain.ONE,
        "a dict of an unknown class's keys": {ArmedItem(): 1},
        "a set of an unknown class": {ArmedItem(), ArmedItem()},
        "a generator": _generator(),
        "an iterator": iter([1]),
        "an endless iterator": itertools.count(),
        "a lock": threading.Lock(),
        "a thread": threading.current_thread(),
        "a standard file": sys.__stdout__,
        "a C pointer": ctypes.pointer(ctypes.c_int(1)),
        "a function": _generator,
        "a bound method of marks": type("Odd", (), _ALL)().__init__,
        "a module": sys,
        "a hostile module": subclass(types.ModuleType)("m"),
        "a type": int,
        "a frame": sys._getframe(),  # noqa: SLF001
        "a match": re.match("x", "x"),
        "a property": property(marking("property")),
        "a zone of its own": dt.datetime(
            2020, 1, 1, tzinfo=type("Zone", (dt.tzinfo,), {**_ALL, "utcoffset": marking("zone")})()
        ),
        "an image of its own class": object.__new__(type("BadImage", (PIL.Image.Image,), _ALL)),
        "an image that says it is Pillow's": object.__new__(
            type("Image", (PIL.Image.Image,), {"__module__": "PIL.Image", "mode": property(marking("mode"))})
        ),
        "an agent's image of its own class": object.__new__(type("BadImage", (AgentImage,), _ALL)),
        "a list that holds itself": _circle(list, lambda a, b: a.append(b)),
        "a dict that holds itself": _circle(dict, lambda a, b: a.update(me=b)),
        "a subclass of list that holds itself": _circle(type("L", (list,), {}), list.append),
        "a list in a list, 200 times": nested(200),
        "a list of 1,000 of itself, 40 times": _wide(),
        "a very long list": [None] * 1_000_001,
        "a very long text": "x" * (65 << 20),
        "many long numbers": [1 << 14_000] * 100_000,
        "a very long number": 1 << 1_000_000,
        "a very large fraction": fractions.Fraction(1, 1 << 1_000_000),
        "a very large image": PIL.Image.new("1", (10_000, 10_000)),
        "a very long tuple as a key": {(None,) * 1_000_001: 1},
    }
    return made


def _accepted() -> dict[str, tuple[Any, Any]]:
    """Return values that cross as the type from which they derive."""
    moment = dt.datetime(2020, 1, 2, 3, 4, 5, 6, dt.UTC)
    values = ["text", 17, 1.5, 2j, b"bytes", bytearray(b"array"), [1, [2]], (1, "x"), {"a": 1}, {1, 2}, frozenset({3})]
    values += [moment.date(), dt.time(1, 2, tzinfo=dt.UTC), decimal.Decimal("1.5"), uuid.UUID(int=5)]
    values += [collections.deque([1]), collections.OrderedDict(b=1), collections.Counter("a")]
    moments: Any = type("Moment", (dt.datetime,), {})
    made = {f"a kind of {type(value).__name__}": (_of_subclass(value), value) for value in values}
    return made | {
        "a kind of datetime": (moments.combine(moment.date(), moment.timetz()), moment),
        "a kind of timedelta": (type("Span", (dt.timedelta,), {})(3), dt.timedelta(3)),
        "a kind of defaultdict": (
            type("Kind", (collections.defaultdict,), {})(list, a=[1]),
            collections.defaultdict(list, a=[1]),
        ),
        "a default dict of marks": (collections.defaultdict(marking("factory"), a=1), {"a": 1}),
        "an integer enum": (Level.HIGH, 3),
        "a text of an enum": (Word.HI, "hi"),
        "a hostile key": ({ArmedKey("k"): 1}, {"k": 1}),
        "a hostile item of a set": ({ArmedKey("k")}, {"k"}),
        "a hostile index": (range(subclass(int)(1), 2), range(1, 2)),
        "a long range": (range(10**18), range(10**18)),
        "a list that is there twice": ([[1]] * 3, [[1], [1], [1]]),
    }


def _of_subclass(value: Any) -> Any:
    kind: Any = type(f"Kind{type(value).__name__}", (type(value),), {})
    if isinstance(value, uuid.UUID):
        return kind(int=value.int)
    if isinstance(value, dt.date):
        return kind.fromordinal(value.toordinal())
    return kind.fromisoformat(value.isoformat()) if isinstance(value, dt.time) else kind(value)


REFUSED_VALUES = _refused()
ACCEPTED_VALUES = _accepted()
