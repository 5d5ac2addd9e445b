"""Values that users' tools may return, from plain to hostile, and an agent whose tool returns them."""

import collections
import datetime as dt
import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pydantic
from smolagents import CodeAgent, ToolCallingAgent
from smolagents.agent_types import AgentAudio

import smolsessions
from tests.support import agents
from tests.support.tools import tool

EXECUTED: list[str] = []
"""Traces of user code that must not run."""


@dataclass
class Point:
    x: int
    y: float


class City(pydantic.BaseModel):
    name: str
    founded: dt.date


class Colour(enum.Enum):
    RED = "red"


class Marks(enum.Flag):
    BOLD = 1
    WIDE = 2


class Array:
    def tolist(self) -> list[list[int]]:
        return [[1, 2], [3, 4]]


Array.__module__ = "numpy"


class Hostile:
    """Claims to be a str, and fails in most of its methods."""

    def _fail(self, *_: object) -> NoReturn:
        EXECUTED.append("method")
        raise RuntimeError("leave me alone")

    __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __len__ = __iter__ = _fail
    __getattr__ = __deepcopy__ = __getstate__ = __format__ = _fail
    __class__ = property(lambda _: str)

    def __reduce_ex__(self, _: object) -> tuple[Callable[..., None], tuple[str]]:
        return EXECUTED.append, ("loaded",)


class Reducing:
    """Would run code where it is loaded."""

    def __str__(self) -> str:
        return "reducing"

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return EXECUTED.append, ("loaded",)


class Leaving:
    """Exits the interpreter when its text is requested."""

    def __str__(self) -> str:
        raise SystemExit(3)


def audio() -> AgentAudio:
    """Make one without its constructor, which wants torch."""
    return AgentAudio.__new__(AgentAudio, "/tmp/sound.wav")


def recursive() -> list[Any]:
    value: list[Any] = [1]
    value.append(value)
    return value


PLAIN: dict[str, tuple[Callable[[], Any], Any]] = {
    "dataclass": (lambda: Point(1, 2.5), {"x": 1, "y": 2.5}),
    "pydantic model": (
        lambda: City(name="Kyōto", founded=dt.date(794, 11, 17)),
        {"name": "Kyōto", "founded": "0794-11-17"},
    ),
    "enum": (lambda: Colour.RED, "red"),
    "array": (Array, [[1, 2], [3, 4]]),
    "bytes": (lambda: b"\x00\xff", b"\x00\xff"),
    "set": (lambda: {1, "two", (3,)}, {1, "two", (3,)}),
    "half a character": (lambda: "a\ud83d", "a\ud83d"),
    "ordered dict": (lambda: collections.OrderedDict(a=Point(1, 2)), {"a": {"x": 1, "y": 2}}),
    "data in data": (
        lambda: {"all": [Point(1, 2), (Colour.RED, {Path("x")})]},
        {"all": [{"x": 1, "y": 2}, ("red", {Path("x")})]},
    ),
}
"""Values that return as data: their factory, and the resulting value."""

LABELLED: dict[str, tuple[Callable[[], Any], str]] = {
    "generator": (lambda: (number for number in range(3)), "[builtins.generator] <generator"),
    "class": (lambda: Point, "[builtins.type] <class"),
    "lock": (threading.Lock, "[_thread.lock] <unlocked"),
    "exception": (lambda: ValueError("text"), "[builtins.ValueError] text"),
    "audio": (audio, "[smolagents.agent_types.AgentAudio] "),
    "reducing": (Reducing, "[tests.support.odd.Reducing] reducing"),
    "hostile": (Hostile, "[tests.support.odd.Hostile] without text: RuntimeError"),
    "leaving": (Leaving, "[tests.support.odd.Leaving] "),
}
"""Values that return as a text: their factory, and the beginning of the text."""

DEEP: dict[str, tuple[Callable[[], Any], None]] = {"deep": (lambda: agents.nested(5000), None)}


@tool
def odd(what: str) -> Any:
    """Make an odd value."""
    return (PLAIN | LABELLED | DEEP)[what][0]()


@tool
def coloured() -> Any:
    """Make a value that holds members of enums."""
    return [Colour.RED, Marks.BOLD | Marks.WIDE]


class Counting:
    """Has a text at the first request, and exits the interpreter at the next one."""

    def __init__(self) -> None:
        self.shown = 0

    def __str__(self) -> str:
        self.shown += 1
        if self.shown > 1:
            raise SystemExit(3)
        return "shown once"


@tool
def counting() -> Any:
    """Make a value that can be shown once."""
    return Counting()


def make_odd() -> CodeAgent:
    agent = agents.make_code()
    agent.tools |= {"odd": odd, "counting": counting}
    return smolsessions.options(agent, executor="thread")  # its code is handed live objects


def make_coloured() -> ToolCallingAgent:
    agent = agents.make_scripted()
    agent.tools["coloured"] = coloured
    return smolsessions.options(agent, stored_classes=(Colour, Marks))
