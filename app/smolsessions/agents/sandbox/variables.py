"""Variables of model-written code as chunks of bytes. Runs in the child process only.

Variables that share an object are in one chunk, so that aliases stay aliases. No two chunks share an object. A variable
with plain data is therefore loaded when code uses its name: until then it cannot have changed.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from smolagents.local_python_executor import InterpreterError, LocalPythonExecutor

from smolsessions.agents.sandbox.classes import binds
from smolsessions.agents.sandbox.code_values import COUNTED, PRINTED, Scope, is_settled
from smolsessions.agents.sandbox.variable_chunks import (
    SCALARS,
    Chunk,
    ChunkPickler,
    SharedObjects,
    chunk_names,
    load,
    plain_chunk,
    plain_name,
    restore,
)

INTERNAL_NAMES = frozenset({"__name__", PRINTED, COUNTED})


class UsedVariable(NamedTuple):
    """Variable with plain data that code has used. All scopes that use it get the same object."""

    value: Any
    chunk: Chunk | None
    """The chunk that the value had when it was loaded. None if code has forged the chunk."""


class InterpreterState(dict[str, Any]):
    """The interpreter's names. A dropped one raises an error, since smolagents would look up a similar name."""

    dropped: frozenset[str] = frozenset()
    functions: Collection[str] = ()
    unloaded: Mapping[str, tuple[str, bytes]] = MappingProxyType({})
    """Ids and data of the chunks of variables that the dictionary itself does not hold until they are used."""

    def __init__(self, names: dict[str, Any], used: dict[str, UsedVariable] | None = None) -> None:
        super().__init__(names)
        self.used = {} if used is None else used

    def __contains__(self, name: object) -> bool:
        if dict.__contains__(self, name) or name in self.unloaded:
            return True
        if name in self.dropped and name not in self.functions:
            raise InterpreterError(gone_sentence(name))
        return False

    def __missing__(self, name: str) -> Any:
        chunk = self.unloaded[name]
        if name not in self.used:
            self.used[name] = _load_plain(name, *chunk)
        value, found = self.used[name]
        if not found:
            raise InterpreterError(gone_sentence(name))
        self[name] = value
        return value

    def __delitem__(self, name: str) -> None:
        self.pop(name, None)
        self.unloaded = {other: chunk for other, chunk in self.unloaded.items() if other != name}

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self.unloaded else super().get(name, default)

    def keys(self) -> Any:
        return super().keys() | self.unloaded.keys()

    def copy(self) -> InterpreterState:
        """Copy the names for a function's own scope."""
        state = InterpreterState(self, self.used)
        state.dropped, state.functions, state.unloaded = self.dropped, self.functions, self.unloaded
        return state


def use_state(executor: LocalPythonExecutor) -> InterpreterState:
    """Replace the names of an executor that has run nothing."""
    state = InterpreterState(executor.state)
    state.functions = executor.custom_tools
    vars(executor)["state"] = state
    return state


def _load_plain(name: str, chunk_id: str, data: bytes) -> UsedVariable:
    try:
        value = pickle.loads(data.partition(b"\n")[2])[name]  # noqa: S301 - see restore
    except (MemoryError, RecursionError):
        raise
    except Exception:  # noqa: BLE001 - code has forged the chunk
        return UsedVariable(None, None)
    with contextlib.suppress(Exception):  # near the limit of recursion: `save` then pickles it as a new value
        return UsedVariable(value, plain_chunk(name, value))
    return UsedVariable(value, Chunk(chunk_id, (name,), (), data, b""))


def gone_sentence(name: object) -> str:
    return f"The variable `{name}` is gone: its value could not be kept. Define it again."


@dataclass(frozen=True, slots=True)
class SavedVariables:
    """Chunks that changed or were removed since the last `save()` or `load()`, and all names without a chunk now."""

    changed: dict[str, bytes]
    removed: list[str]
    dropped: list[str]


class Variables:
    """Variables and functions of one executor, and the digests of the chunks that the parent has of them."""

    def __init__(self, executor: LocalPythonExecutor, max_bytes: int) -> None:
        """The executor has its tools and uses an `InterpreterState`. `max_bytes` bounds all chunks together."""
        self._executor = executor
        self._state = cast("InterpreterState", executor.state)
        self._scope = Scope(executor)
        self._max_bytes = max_bytes
        self._excluded: dict[str, Any] = {}
        self._digests: dict[str, bytes] = {}
        """Of all chunks except those of `_unloaded`."""
        self._unloaded = self._state.unloaded
        self._settled: dict[str, tuple[Any, Chunk]] = {}
        self._pickler = ChunkPickler(self._scope, max_bytes)

    def exclude(self, names: Iterable[str]) -> None:
        """Leave out these names while they have their present values, which the parent has just sent."""
        self._excluded.update({name: self._state[name] for name in names if name in self._state})

    def save(self) -> SavedVariables:
        """Pickle the variables. A value that cannot be pickled is dropped and never raises."""
        dropped = set[str]()
        chunks = self._bind_and_pickle(dropped)
        while bad := self._unreadable(chunks) or self._too_large(chunks):
            dropped |= bad
            chunks = self._bind_and_pickle(dropped)
        changed = {name: chunk.data for name, chunk in self._new(chunks).items()}
        removed = [name for name in self._digests if name not in chunks]
        self._digests = {name: chunk.digest for name, chunk in chunks.items()}
        return SavedVariables(changed, removed, sorted({key.removesuffix("()") for key in dropped}))

    def load(self, chunks: Mapping[str, bytes]) -> list[str]:
        """Bind the variables of the chunks. Returns the names that could not be restored."""
        unloaded: dict[str, tuple[str, bytes]] = {}
        rest: dict[str, bytes] = {}
        for chunk, data in chunks.items():
            name = plain_name(data)
            if name and name not in INTERNAL_NAMES and name not in unloaded:
                unloaded[name] = chunk, data
            else:
                rest[chunk] = data
        for name in dict.keys(self._state) & unloaded.keys():
            self._state.pop(name)
        self._unloaded = self._state.unloaded = unloaded
        failed = restore(rest, self._scope)
        now = self._bind_and_pickle(set())
        self._digests = {name: now[name].digest if name in now else b"" for name in (*rest, *self._digests)}
        return sorted({name for chunk in failed for name in chunk_names(chunk, chunks[chunk])})

    def _bind_and_pickle(self, dropped: set[str]) -> dict[str, Chunk]:
        """Return the chunks of all variables except unloaded ones. Keys that fail are added to `dropped`.

        Pickling may load a variable, as a closure's captured names do. The two may share an object, so all are pickled
        again. If the limit is exceeded, every variable is loaded, since each may be the one to drop.
        """
        while True:
            dropped |= self._bind_used()
            chunks = self._pickle(dropped)
            if self._unloaded and self._size(chunks) > self._max_bytes:
                for name in [*self._unloaded]:
                    with contextlib.suppress(InterpreterError):
                        self._state.get(name)
            if self._state.used.keys().isdisjoint(self._unloaded.keys()):
                return chunks

    def _bind_used(self) -> set[str]:
        """Bind the variables that code has used, in whatever scope. Returns the names that could not be loaded."""
        state, broken = self._state, set[str]()
        left = dict(state.unloaded)
        for name in left.keys() & {*state.used, *dict.keys(state)}:
            del left[name]
            if used := state.used.get(name):
                if used.chunk:
                    state.setdefault(name, used.value)
                elif not dict.__contains__(state, name):
                    broken.add(name)
        for name in self._unloaded.keys() - left.keys():
            self._digests[self._unloaded[name][0]] = b""
            if (used := state.used.get(name)) and used.chunk:
                self._digests[used.chunk.id] = used.chunk.digest
        self._unloaded = state.unloaded = left
        return broken

    def _size(self, chunks: Mapping[str, Chunk]) -> int:
        return sum(len(chunk.data) for chunk in chunks.values()) + sum(len(data) for _, data in self._unloaded.values())

    def _own(self) -> Iterator[tuple[str, Any]]:
        for name, value in list(self._state.items()):
            is_excluded = name in self._excluded and self._excluded[name] is value
            if type(name) is str and name not in INTERNAL_NAMES and not is_excluded:
                yield name, value
        for name, value in list(self._executor.custom_tools.items()):
            yield f"{name}()", value

    def _pickle(self, dropped: set[str]) -> dict[str, Chunk]:
        """Pickle the present variables into chunks by id. Keys that fail are added to `dropped`.

        A chunk with classes contains all that they need. Others refer to classes by name and load after them.
        """
        own = {key: value for key, value in self._own() if key not in dropped}
        classes = {key for key, value in own.items() if binds(key, value)}
        class_names: dict[int, str] = {}
        alone: dict[str, Chunk] = {}
        shared = SharedObjects()
        for key in sorted(own, key=lambda key: key not in classes):
            try:
                alone[key], objects = self._pickle_alone(key, own[key], {} if key in classes else class_names)
            except BaseException:  # noqa: BLE001 - a model's value may raise anything
                dropped.add(key)
                continue
            shared.add(key, objects)
            if key in classes:
                class_names[id(own[key])] = key
        self._settled = {key: known for key, known in self._settled.items() if key in alone}
        needs = {key: chunk.needs for key, chunk in alone.items() if chunk.needs}
        shared.join_needed_classes(classes & alone.keys(), needs)
        chunks = {chunk.id: chunk for key, chunk in alone.items() if key not in shared.joined}
        for keys in shared.groups():
            known = {} if classes & set(keys) else class_names
            try:
                chunk, _ = self._pickler.dump({key: own[key] for key in keys}, known)
            except BaseException:  # noqa: BLE001 - as above
                dropped.update(keys)
                return self._pickle(dropped)
            chunks[chunk.id] = chunk
        return chunks

    def _pickle_alone(self, key: str, value: Any, class_names: Mapping[int, str]) -> tuple[Chunk, list[Any]]:
        is_scalar = type(value) in SCALARS
        if not is_scalar and not is_settled(value, self._scope):
            return self._pickler.dump({key: value}, class_names)
        known = self._settled.get(key)
        if known is None or known[0] is not value:
            known = self._settled[key] = value, self._pickler.dump({key: value}, class_names)[0]
        return known[1], [] if is_scalar else [value]

    def _new(self, chunks: Mapping[str, Chunk]) -> dict[str, Chunk]:
        return {name: chunk for name, chunk in chunks.items() if self._digests.get(name) != chunk.digest}

    def _unreadable(self, chunks: Mapping[str, Chunk]) -> set[str]:
        """Load the new chunks into a scratch scope and return the keys that make one fail."""
        new = self._new(chunks)
        needs = {name for chunk in new.values() for name in chunk.needs}
        needed = {name: chunk for name, chunk in chunks.items() if not needs.isdisjoint(chunk.keys)}
        if not restore(_data({**needed, **new}), self._scope.scratch()):
            return set()
        everything = self._scope.scratch()
        failed = [name for name in restore(dict(self._unloaded.values()) | _data(chunks), everything) if name in new]
        values = dict(self._own())
        culprits: set[str] = set()
        for keys in (chunks[name].keys for name in failed):
            culprits.update([key for key in keys if not self._survives(key, values[key], everything)] or keys)
        return culprits

    def _survives(self, key: str, value: Any, scope: Scope) -> bool:
        try:
            chunk, _ = self._pickler.dump({key: value}, {})
        except BaseException:  # noqa: BLE001 - as above
            return False
        return load(chunk.data, scope)

    def _too_large(self, chunks: Mapping[str, Chunk]) -> set[str]:
        """Return the keys of the largest chunks if all together exceed the limit."""
        total = self._size(chunks)
        dropped: set[str] = set()
        for chunk in sorted(chunks.values(), key=lambda chunk: len(chunk.data), reverse=True):
            if total <= self._max_bytes:
                break
            total -= len(chunk.data)
            dropped.update(chunk.keys)
        return dropped


def _data(chunks: Mapping[str, Chunk]) -> dict[str, bytes]:
    return {name: chunk.data for name, chunk in chunks.items()}
