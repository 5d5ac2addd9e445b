"""A chunk: a line of JSON with names and the classes that it needs, and a pickle of the names' values."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import hashlib
import io
import json
import re
import sys
import threading
import types
import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from smolsessions.agents.sandbox.code_values import Pickler, Scope, Unpickler

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

SCALARS = frozenset({int, float, complex, bool, type(None), str, bytes})
_ATOMS = SCALARS | {
    *(tuple, frozenset, range, slice, type(...), re.Pattern, decimal.Decimal, fractions.Fraction, uuid.UUID),
    *(dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone),
    *(types.BuiltinFunctionType, types.MethodType, types.ModuleType),
}
_PASSES = 8
_DEEP, _DEEP_STACK_BYTES = 50_000, 256 * 1024 * 1024
_CONTAINERS = frozenset({list, set, dict, tuple, frozenset})


@dataclass(frozen=True, slots=True)
class Chunk:
    keys: tuple[str, ...]
    needs: tuple[str, ...]
    data: bytes
    digest: bytes


class ChunkPickler:
    """One pickler used again and again: making one costs more than most values."""

    def __init__(self, scope: Scope, max_bytes: int) -> None:
        self._scope = scope
        self._max_bytes = max_bytes
        self._begin()

    def _begin(self) -> None:
        self._file = _Bounded(self._max_bytes)
        self._pickler = Pickler(self._file, self._scope)

    def dump(self, values: dict[str, Any], bound: Mapping[int, str]) -> tuple[Chunk, list[Any]]:
        """Make the values' chunk, and give those objects in it whose identity matters."""
        try:
            try:
                self._pickler.write(values, bound)
            except RecursionError:
                self._begin()
                on_a_deep_stack(lambda: self._pickler.write(values, bound))
            chunk = _chunk(tuple(values), sorted(self._pickler.needs), self._file.taken())
            return chunk, self._shared(values)
        except BaseException:
            self._begin()
            raise
        finally:
            self._pickler.clear_memo()

    def _shared(self, values: dict[str, Any]) -> list[Any]:
        (value,) = values.values() if len(values) == 1 else (None,)
        if _is_plain(value):
            return [value]
        made_here = self._pickler.made_here
        seen = self._pickler.memo.copy().values()
        return [obj for _, obj in seen if type(obj) not in _ATOMS and obj is not values and _is_shared(obj, made_here)]


def on_a_deep_stack(write: Callable[[], None]) -> None:
    """Run what recurses as deep as a model's value is nested."""
    failures: list[BaseException] = []

    def run() -> None:
        sys.setrecursionlimit(_DEEP)
        try:
            write()
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            failures.append(error)

    limit, size = sys.getrecursionlimit(), threading.stack_size(_DEEP_STACK_BYTES)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(size)
        sys.setrecursionlimit(limit)
    if failures:
        raise failures[0]


class _Bounded(io.BytesIO):
    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > self._max_bytes:
            raise ValueError("larger than all variables together may be")
        return super().write(data)

    def taken(self) -> bytes:
        data = self.getvalue()
        self.seek(0)
        self.truncate()
        return data


class SharedObjects:
    """Which keys reach a common object."""

    def __init__(self) -> None:
        self.joined: set[str] = set()
        self._parent: dict[str, str] = {}
        self._first: dict[int, str] = {}
        self._alive: list[list[Any]] = []  # so that an id stays its object's own

    def add(self, key: str, objects: list[Any]) -> None:
        self._parent[key] = key
        self._alive.append(objects)
        for known in map(id, objects):
            first = self._first.setdefault(known, key)
            if first != key:
                self._join(key, first)

    def _join(self, key: str, other: str) -> None:
        self._parent[self._root(key)] = self._root(other)
        self.joined |= {key, other}

    def gather(self, classes: set[str], needs: Mapping[str, Collection[str]]) -> None:
        """Join to the keys that share with a class the other classes that they need, since their chunk is whole."""
        before = -1
        while len(self.joined) != before:
            before = len(self.joined)
            whole = {self._root(key) for key in classes}
            for key in needs.keys() & self.joined:
                for name in needs[key] if self._root(key) in whole else ():
                    self._join(key, name)

    def several(self) -> list[tuple[str, ...]]:
        groups: dict[str, list[str]] = {}
        for key in sorted(self.joined):
            groups.setdefault(self._root(key), []).append(key)
        return [tuple(keys) for keys in groups.values()]

    def _root(self, key: str) -> str:
        while self._parent[key] != key:
            self._parent[key] = key = self._parent[self._parent[key]]
        return key


def restore(chunks: Mapping[str, bytes], scope: Scope) -> list[str]:
    """Load chunks and give those that cannot be.

    A `__hash__` may need what another chunk holds, and where that is not there yet smolagents takes a similar
    name instead:
    so what failed or ran code is loaded again when the others are there.
    """
    operations = scope.quiet()
    failed = waiting = sorted(chunks, key=lambda name: len(_header(chunks[name])[1]))
    for _ in range(_PASSES):
        before, failed_before, failed, again = operations["counter"], len(failed), [], []
        for name in waiting:
            done = bind(chunks[name], scope)
            failed += [] if done else [name]
            again += [name] if not done or operations["counter"] != before else []
            before = operations["counter"]
        if not again or (len(failed) == failed_before and waiting == again):
            break
        waiting = again
    return failed


def bind(chunk: bytes, scope: Scope) -> bool:
    try:
        values = Unpickler(io.BytesIO(chunk.partition(b"\n")[2]), scope).load()
        for key, value in values.items():
            where = scope.functions if key.endswith("()") else scope.state
            where[key.removesuffix("()")] = value
    except BaseException:  # noqa: BLE001 - what a model's class does when it is loaded is its own affair
        return False
    return True


def _chunk(keys: tuple[str, ...], needs: list[str], pickled: bytes) -> Chunk:
    data = json.dumps([keys, needs]).encode() + b"\n" + pickled
    return Chunk(keys, tuple(needs), data, hashlib.blake2b(data, digest_size=16).digest())


@lru_cache(maxsize=10_000)
def chunk_id(keys: tuple[str, ...]) -> str:
    return hashlib.blake2b("\n".join(keys).encode(), digest_size=8).hexdigest()


def chunk_names(chunk: str, data: bytes) -> list[str]:
    keys, _ = _header(data)
    return [key.removesuffix("()") for key in keys] or [chunk]


def _header(data: bytes) -> tuple[list[str], list[str]]:
    try:
        keys, needs = json.loads(data.partition(b"\n")[0])
        return list(map(str, keys)), list(map(str, needs))
    except (ValueError, TypeError, RecursionError):
        return [], []


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is dict:
        return SCALARS.issuperset(map(type, value.values())) and SCALARS.issuperset(map(type, value))
    return kind in _CONTAINERS and SCALARS.issuperset(map(type, value))


def _is_shared(obj: Any, made_here: set[int]) -> bool:
    """Tell an object that a variable may see change through another from one that is as good as its copy."""
    kind = type(obj)
    if kind in _CONTAINERS:
        return True
    if kind is types.FunctionType or issubclass(kind, type):
        return id(obj) in made_here
    return not issubclass(kind, (enum.Enum, _numpy_dtype()))


def _numpy_dtype() -> type:
    numpy = sys.modules.get("numpy")
    return numpy.dtype if numpy is not None else enum.Enum
