"""Clocks of model-written code: each reading is recorded, so that a replay of its block reads the same times.

The process that runs the code reads the real clocks. It sends its new readings with each tool call, and they are
journaled before the call. A replay of the block reads these first, in their order, and the real clocks after them.
A reading is a whole number of nanoseconds.
"""

from __future__ import annotations

import ctypes
import gc
import struct
import time
from collections.abc import Callable
from datetime import date, datetime, tzinfo
from typing import Any, Protocol, cast

from smolagents import local_python_executor as interpreter

from smolsessions.agents.sandbox.channel import MisbehavedError
from smolsessions.agents.values import dumps, loads

MAX_READINGS = 10_000
"""Readings of a block that are recorded. Later ones are real in a replay too."""
WALL = "time"
SINCE_BOOT = ("monotonic", "perf_counter")
_CLOCKS: dict[str, Callable[[], int]] = {
    WALL: time.time_ns,
    "monotonic": time.monotonic_ns,
    "perf_counter": time.perf_counter_ns,
    "process_time": time.process_time_ns,
    "thread_time": time.thread_time_ns,
}
_IDS = {
    getattr(time, name): clock
    for name, clock in {
        "CLOCK_REALTIME": WALL,
        "CLOCK_MONOTONIC": "monotonic",
        "CLOCK_PROCESS_CPUTIME_ID": "process_time",
        "CLOCK_THREAD_CPUTIME_ID": "thread_time",
    }.items()
    if hasattr(time, name)
}
SECOND = 1_000_000_000
READING_BYTES = 8


class Choices(Protocol):
    """Values by name that a turn's journal keeps for its replays."""

    def chosen(self, name: str) -> bytes | None:
        """Return the value that an earlier attempt wrote."""

    def once(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return the value under this name. The first attempt makes and writes it."""


class ClockLog:
    """Readings of one block in the journal of its turn."""

    def __init__(self, journal: Choices, call_id: str) -> None:
        """`call_id` is that of the block."""
        self._journal = journal
        self._name = f"clock:{call_id}:"
        self._readings: dict[str, bytes] = {}
        self._boot = 0
        self._entries = 0
        while entry := journal.chosen(f"{self._name}{self._entries + 1}"):
            boot, readings = loads(entry)
            self._append(boot, readings)

    def request(self) -> dict[str, Any]:
        """Return the readings of earlier attempts for the process that runs the block, and the time of their boot."""
        return {"boot": self._boot, "readings": self._readings} if self._readings else {}

    def add(self, readings: Any) -> None:
        """Journal new readings. Raises `MisbehavedError`, since model-written code may have forged them."""
        is_valid = type(readings) is dict and all(
            clock in _CLOCKS and type(data) is bytes and data and len(data) % READING_BYTES == 0
            for clock, data in readings.items()
        )
        if not is_valid or _bytes_of(self._readings) + _bytes_of(readings) > MAX_READINGS * READING_BYTES:
            raise MisbehavedError("readings of clocks are invalid")
        boot = self._boot or _boot()
        self._append(boot, readings)
        self._journal.once(f"{self._name}{self._entries}", lambda: dumps([boot, readings]))

    def _append(self, boot: int, readings: dict[str, bytes]) -> None:
        self._entries += 1
        self._boot = boot
        for clock, data in readings.items():
            self._readings[clock] = self._readings.get(clock, b"") + data


class Clocks:
    """The clocks of a process that runs model-written code."""

    def __init__(self) -> None:
        self._records = False
        self.begin_block({})

    def begin_block(self, request: dict[str, Any]) -> None:
        """Begin to record. `request` is that of the block's `ClockLog`."""
        known: dict[str, tuple[int, ...]] = {
            clock: struct.unpack(f"<{len(data) // READING_BYTES}q", data)
            for clock, data in request.get("readings", {}).items()
        }
        self._known = {clock: iter(known.get(clock, ())) for clock in _CLOCKS}
        self._floors = {clock: max(readings) for clock, readings in known.items() if clock != WALL}
        # Monotonic clocks of two machines differ by the times of their boots.
        self._shift = _boot() - request["boot"] if request else 0
        self._room = MAX_READINGS - sum(map(len, known.values()))
        self._new: dict[str, list[int]] = {}
        self._records = True

    def end_block(self) -> None:
        self._records = False
        self._new = {}

    def take(self) -> dict[str, bytes]:
        """Return the new readings since the last call."""
        new, self._new = self._new, {}
        return {clock: struct.pack(f"<{len(readings)}q", *readings) for clock, readings in new.items()}

    def read(self, clock: str) -> int:
        if not self._records:
            return _CLOCKS[clock]()
        if (known := next(self._known[clock], None)) is not None:
            return known
        reading = _CLOCKS[clock]()
        if floor := self._floors.get(clock):
            reading = max(floor, reading + self._shift if clock in SINCE_BOOT else reading)
        if self._room > 0:
            self._room -= 1
            self._new.setdefault(clock, []).append(reading)
        return reading

    def unrecorded(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def acted(*args: Any) -> Any:
            recorded, self._records = self._records, False
            try:
                return act(*args)
            finally:
                self._records = recorded

        return acted

    def install(self) -> None:
        """Replace the functions and methods of this process that read a clock."""
        read = self.read
        real_gettime, real_gettime_ns = time.clock_gettime, time.clock_gettime_ns

        def replace(name: str, function: Callable[..., Any]) -> None:
            _name(function, "time", name)
            setattr(time, name, function)

        def of_seconds(real: Callable[[float], Any]) -> Callable[..., Any]:
            return lambda seconds=None, /: real(read(WALL) // SECOND if seconds is None else seconds)

        def of_moment(real: Callable[..., str], before: int) -> Callable[..., str]:
            return lambda *given: real(*given) if len(given) > before else real(*given, time.localtime())

        def in_unit(clock: str, unit: int) -> Callable[[], float]:
            return lambda: read(clock) if unit == 1 else read(clock) / unit

        for clock in _CLOCKS:
            replace(clock, in_unit(clock, SECOND))
            replace(f"{clock}_ns", in_unit(clock, 1))
        for name in ("localtime", "gmtime", "ctime"):
            replace(name, of_seconds(getattr(time, name)))
        replace("asctime", of_moment(time.asctime, 0))
        replace("strftime", of_moment(time.strftime, 1))
        replace("clock_gettime", lambda id, /: read(_IDS[id]) / SECOND if id in _IDS else real_gettime(id))  # noqa: A006
        replace("clock_gettime_ns", lambda id, /: read(_IDS[id]) if id in _IDS else real_gettime_ns(id))  # noqa: A006

        def now(kind: type[datetime], tz: tzinfo | None = None) -> datetime:
            return cast("datetime", _FROM_TIMESTAMP.__get__(None, kind)(self._seconds(), tz))

        def utcnow(kind: type[datetime]) -> datetime:
            return cast("datetime", _FROM_UTC_TIMESTAMP.__get__(None, kind)(self._seconds()))

        def today(kind: type[date]) -> date:
            return kind.fromtimestamp(self._seconds())

        _replace_method(datetime, now)
        _replace_method(datetime, utcnow)
        _replace_method(date, today)
        # An import reads clocks (numpy, pandas), unless this process has imported the module before.
        interpreter.evaluate_import = self.unrecorded(interpreter.evaluate_import)

    def _seconds(self) -> float:
        """Return the time in whole microseconds, rounded down as Python does."""
        return self.read(WALL) // 1000 / 1_000_000


CLOCKS = Clocks()
_FROM_TIMESTAMP, _FROM_UTC_TIMESTAMP = (vars(datetime)[name] for name in ("fromtimestamp", "utcfromtimestamp"))


def is_method(method: Any) -> bool:
    """Return whether a bound method replaces one of `datetime` or `date`."""
    return getattr(method, "__module__", None) == datetime.__module__


def _replace_method(kind: type, method: Callable[..., Any]) -> None:
    """Replace a class method of a built-in class, whose dictionary only its garbage collection reaches.

    A subclass in its place would not do: values are pickled by their class, and code asks for `type(value)`.
    """

    def replaced(kind: type, *args: Any, **kwargs: Any) -> Any:
        return method(kind, *args, **kwargs)

    _name(replaced, kind.__module__, f"{kind.__name__}.{method.__name__}")
    (names,) = gc.get_referents(vars(kind))
    names[method.__name__] = classmethod(replaced)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _name(function: Any, module: str, name: str) -> None:
    """Set a function's name to that of the replaced one, by which it is pickled."""
    function.__module__, function.__qualname__, function.__name__ = module, name, name.rpartition(".")[2]


def _boot() -> int:
    """Return the wall-clock time at which the monotonic clock was zero."""
    return _CLOCKS[WALL]() - _CLOCKS["monotonic"]()


def _bytes_of(readings: dict[str, bytes]) -> int:
    return sum(map(len, readings.values()))
