"""Chunk of variables: a line of JSON, then a pickle of their values by name.

The line holds the names, the names of the classes that the values need, and `true` for one variable of plain data.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import hashlib
import io
import pickle
import re
import sys
import threading
import types
import uuid
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from smolsessions.agents.sandbox.code_values import PROTOCOL, Pickler, Scope, Unpickler

_SCALARS = frozenset({int, float, complex, bool, type(None), str, bytes})
_ATOMS = _SCALARS | {
    *(tuple, frozenset, range, slice, type(...), re.Pattern, decimal.Decimal, fractions.Fraction, uuid.UUID),
    *(dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone),
    *(types.BuiltinFunctionType, types.MethodType, types.ModuleType),
}
_CONTAINERS = frozenset({list, set, dict, tuple, frozenset})
_PLAIN_HEADER = re.compile(rb'\[\["([^"\\]+)"\],\[\],true\]\n')
_MAX_PASSES = 8
_MAX_DEPTH, _DEEP_STACK_BYTES = 50_000, 256 * 1024 * 1024


class Chunk(NamedTuple):
    """A function's key is its name with `()`."""

    id: str
    keys: tuple[str, ...]
    needs: tuple[str, ...]
    data: bytes
    digest: bytes


def pickle_chunk(
    values: dict[str, Any], class_names: Mapping[int, str], scope: Scope, max_bytes: int
) -> tuple[Chunk, list[Any]]:
    """Return the values' chunk and those objects in it that a variable of another chunk could share."""

    def write() -> Pickler:
        pickler = Pickler(_BoundedFile(max_bytes), scope, class_names)
        pickle.Pickler.dump(pickler, values)
        return pickler

    try:
        pickler = write()
    except RecursionError:  # a thread with a larger stack recurses as deep as the value is nested
        limit, size = sys.getrecursionlimit(), threading.stack_size(_DEEP_STACK_BYTES)
        sys.setrecursionlimit(_MAX_DEPTH)
        try:
            with ThreadPoolExecutor(1) as thread:
                pickler = thread.submit(write).result()
        finally:
            threading.stack_size(size)
            sys.setrecursionlimit(limit)
    is_plain = pickler.is_plain and len(values) == 1
    chunk = _chunk(tuple(values), sorted(pickler.needs), pickler.file.getvalue(), is_plain=is_plain)
    value = next(iter(values.values()))
    if len(values) == 1 and type(value) in _CONTAINERS:
        parts = [*value, *value.values()] if type(value) is dict else value
        if _SCALARS.issuperset(map(type, parts)):
            return chunk, [value]  # a copy of the memo of a million texts needs more memory than they
    numpy = sys.modules.get("numpy")
    shared = []
    for _, obj in pickler.memo.copy().values():  # those of which a change could be seen through another variable
        kind = type(obj)
        if kind is types.FunctionType or issubclass(kind, type):
            is_shared = id(obj) in pickler.made_here
        else:
            is_shared = not issubclass(kind, enum.Enum) and not (numpy and issubclass(kind, numpy.dtype))
        if is_shared and kind not in _ATOMS and obj is not values:
            shared.append(obj)
    return chunk, shared


class SharedObjects:
    """Union-find of keys whose values reach a common object."""

    def __init__(self) -> None:
        self.joined: set[str] = set()
        self._parent: dict[str, str] = {}
        self._first: dict[int, str] = {}
        self._alive: list[list[Any]] = []  # keeps each id unique

    def add(self, key: str, objects: list[Any]) -> None:
        self._parent[key] = key
        self._alive.append(objects)
        for known in map(id, objects):
            first = self._first.setdefault(known, key)
            if first != key:
                self._join(key, first)

    def join_needed_classes(self, classes: set[str], needs: Mapping[str, Collection[str]]) -> None:
        """Join keys that share an object with a class to all classes that they need: their chunk names none."""
        before = -1
        while len(self.joined) != before:
            before = len(self.joined)
            whole = {self._root(key) for key in classes}
            for key in needs.keys() & self.joined:
                for name in needs[key] if self._root(key) in whole else ():
                    self._join(key, name)

    def groups(self) -> list[tuple[str, ...]]:
        """Return the groups of more than one key."""
        groups: dict[str, list[str]] = {}
        for key in sorted(self.joined):
            groups.setdefault(self._root(key), []).append(key)
        return [tuple(keys) for keys in groups.values()]

    def _join(self, key: str, other: str) -> None:
        self._parent[self._root(key)] = self._root(other)
        self.joined |= {key, other}

    def _root(self, key: str) -> str:
        while self._parent[key] != key:
            self._parent[key] = key = self._parent[self._parent[key]]
        return key


def restore(chunks: Mapping[str, bytes], scope: Scope) -> list[str]:
    """Load chunks and return the ids of those that fail.

    Code that runs while a chunk loads, such as a `__hash__`, may need another chunk. Without it smolagents looks up a
    similar name instead. Chunks that failed or ran code are therefore loaded again after the others.
    """
    operations = scope.begin_loading()
    failed = waiting = sorted(chunks, key=lambda chunk: len(read_header(chunks[chunk])[1]))
    for _ in range(_MAX_PASSES):
        before, failed_before, failed, again = operations["counter"], len(failed), [], []
        for chunk in waiting:
            is_loaded = load(chunks[chunk], scope)
            if not is_loaded:
                failed.append(chunk)
            if not is_loaded or operations["counter"] != before:
                again.append(chunk)
            before = operations["counter"]
        if not again or (len(failed) == failed_before and waiting == again):
            break
        waiting = again
    return failed


def load(data: bytes, scope: Scope) -> bool:
    """Bind a chunk's values in the scope. Returns False if that fails."""
    try:
        values = Unpickler(data.partition(b"\n")[2], scope).load()
        for key, value in values.items():
            names = scope.functions if key.endswith("()") else scope.state
            names[key.removesuffix("()")] = value
    except BaseException:  # noqa: BLE001 - a model's class may raise anything while it loads
        return False
    return True


def chunk_id(keys: tuple[str, ...]) -> str:
    return hashlib.blake2b("\n".join(keys).encode(), digest_size=8).hexdigest()


def chunk_names(chunk: str, data: bytes) -> list[str]:
    """Return the names of the variables in a chunk, or its id if it has no valid header."""
    return [key.removesuffix("()") for key in read_header(data)[0]] or [chunk]


def plain_chunk(name: str, value: Any) -> Chunk:
    return _chunk((name,), [], pickle.dumps({name: value}, PROTOCOL), is_plain=True)


def plain_name(data: bytes) -> str:
    """Return the name of the variable in a plain chunk, or an empty text. Code may have forged the line."""
    header = _PLAIN_HEADER.match(data)
    name = header[1].decode(errors="replace") if header else ""
    return name if name.isidentifier() else ""


def load_plain(name: str, data: bytes) -> Any:
    """Return the value of a plain chunk. Raises any error if code has forged it."""
    return pickle.loads(data.partition(b"\n")[2])[name]  # noqa: S301 - in the process of the code that wrote it


def read_header(data: bytes) -> tuple[list[str], list[str]]:
    """Return names and needed classes. Code may have forged the line: an invalid one is empty."""
    try:
        keys, needs, *_ = from_json(data[: data.find(b"\n")])
        return [*map(str, keys)], [*map(str, needs)]
    except (ValueError, TypeError):
        return [], []


def _chunk(keys: tuple[str, ...], needs: list[str], pickled: bytes, *, is_plain: bool) -> Chunk:
    data = to_json([keys, needs, True] if is_plain else [keys, needs]) + b"\n" + pickled
    return Chunk(chunk_id(keys), keys, tuple(needs), data, hashlib.blake2b(data, digest_size=16).digest())


class _BoundedFile(io.BytesIO):
    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > self._max_bytes:
            raise ValueError("larger than all variables together may be")
        return super().write(data)
