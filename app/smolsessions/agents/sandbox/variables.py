"""Variables of model-written code as chunks of bytes. Runs in the child process only.

Variables that share an object are in one chunk, so that aliases stay aliases. No two chunks share an object. A variable
of plain data is therefore loaded when code first uses its name, and keeps its chunk until then. Of 1,000 variables, a
block that uses one loads and pickles one, which saves 30 ms.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from smolagents.local_python_executor import InterpreterError, LocalPythonExecutor

from smolsessions.agents.sandbox import variable_chunks
from smolsessions.agents.sandbox.classes import is_named_class
from smolsessions.agents.sandbox.code_values import COUNTED, PRINTED, Scope

INTERNAL_NAMES = frozenset({"__name__", PRINTED, COUNTED})


class InterpreterState(dict[str, Any]):
    """The interpreter's names. A dropped one raises an error, since smolagents would look up a similar name."""

    dropped: frozenset[str] = frozenset()
    functions: Collection[str] = ()
    late: Mapping[str, tuple[str, bytes]] = MappingProxyType({})
    """Ids and data of the chunks of variables that are loaded when code uses them."""

    def __init__(self, names: Mapping[str, Any], loaded: dict[str, tuple[Any, bytes]] | None = None) -> None:
        super().__init__(names)
        self.loaded = {} if loaded is None else loaded
        """Late variables that code has used, for all scopes, with the digests that their chunks had then."""

    def __contains__(self, name: object) -> bool:
        if dict.__contains__(self, name) or name in self.late:
            return True
        if name in self.dropped and name not in self.functions:
            raise InterpreterError(_gone(name))
        return False

    def __missing__(self, name: str) -> Any:
        if name not in self.loaded:
            digest = b""
            try:
                value = variable_chunks.load_plain(name, self.late[name][1])
            except (MemoryError, RecursionError):
                raise
            except Exception:  # noqa: BLE001 - code has forged the chunk
                raise InterpreterError(_gone(name)) from None
            with contextlib.suppress(Exception):  # near the limit of recursion: then it is saved as a new value
                digest = variable_chunks.plain_chunk(name, value).digest
            self.loaded[name] = value, digest
        value = self[name] = self.loaded[name][0]
        return value

    def __delitem__(self, name: str) -> None:
        self.pop(name, None)
        self.late = {other: chunk for other, chunk in self.late.items() if other != name}

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self.late else super().get(name, default)

    def keys(self) -> Any:
        return super().keys() | self.late.keys()

    def copy(self) -> InterpreterState:
        """Copy the names for a function's own scope."""
        state = InterpreterState(self, self.loaded)
        state.dropped, state.functions, state.late = self.dropped, self.functions, self.late
        return state


def _gone(name: object) -> str:
    return f"The variable `{name}` is gone: its value could not be kept. Define it again."


def use_state(executor: LocalPythonExecutor) -> InterpreterState:
    """Replace the names of an executor that has run nothing."""
    state = InterpreterState(executor.state)
    state.functions = executor.custom_tools
    vars(executor)["state"] = state
    return state


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
        """Of all chunks except those of late variables."""
        self._late = self._state.late

    def exclude(self, names: Iterable[str]) -> None:
        """Leave out these names while they have their present values, which the parent has just sent."""
        self._excluded.update({name: self._state[name] for name in names if name in self._state})

    def load(self, chunks: Mapping[str, bytes]) -> list[str]:
        """Bind the variables of the chunks. Returns the names that could not be restored."""
        late: dict[str, tuple[str, bytes]] = {}
        rest: dict[str, bytes] = {}
        for chunk, data in chunks.items():
            name = variable_chunks.plain_name(data)
            if name and name not in INTERNAL_NAMES and name not in late:
                late[name] = chunk, data
            else:
                rest[chunk] = data
        for name in dict.keys(self._state) & late.keys():
            self._state.pop(name)
        self._late = self._state.late = late
        failed = variable_chunks.restore(rest, self._scope)
        now = self._pickle(set())
        self._digests = {name: now[name].digest if name in now else b"" for name in (*rest, *self._digests)}
        return sorted({name for chunk in failed for name in variable_chunks.chunk_names(chunk, chunks[chunk])})

    def save(self) -> SavedVariables:
        """Pickle the variables. A value that cannot be pickled is dropped and never raises."""
        dropped = set[str]()
        chunks = self._pickle(dropped)
        while bad := self._unreadable(chunks) or self._too_large(chunks):
            dropped |= bad
            chunks = self._pickle(dropped)
        changed = {name: chunk.data for name, chunk in self._new(chunks).items()}
        removed = [name for name in self._digests if name not in chunks]
        self._digests = {name: chunk.digest for name, chunk in chunks.items()}
        return SavedVariables(changed, removed, sorted({key.removesuffix("()") for key in dropped}))

    def _own(self) -> dict[str, Any]:
        own = {
            name: value
            for name, value in list(self._state.items())
            if type(name) is str
            and name not in INTERNAL_NAMES
            and not (name in self._excluded and self._excluded[name] is value)
        }
        return own | {f"{name}()": value for name, value in self._executor.custom_tools.items()}

    def _pickle(self, dropped: set[str]) -> dict[str, variable_chunks.Chunk]:
        """Pickle the present variables into chunks by id. Keys that fail are added to `dropped`.

        A chunk with classes contains all that they need. Others refer to classes by name and load after them.
        """
        state, loaded = self._state, len(self._state.loaded)
        used = state.late.keys() & {*state.loaded, *dict.keys(state)}
        for name in used & state.loaded.keys():
            state.setdefault(name, state.loaded[name][0])
        if used:
            state.late = {name: chunk for name, chunk in state.late.items() if name not in used}
        if state.late is not self._late:  # late variables that code has used, deleted or bound anew are as the others
            for name in self._late.keys() - state.late.keys():
                _, self._digests[self._late[name][0]] = state.loaded.get(name, (None, b""))
            self._late = state.late
        own = {key: value for key, value in self._own().items() if key not in dropped}
        classes = {key for key, value in own.items() if is_named_class(key, value)}
        class_names: dict[int, str] = {}
        alone: dict[str, variable_chunks.Chunk] = {}
        shared = variable_chunks.SharedObjects()
        for key in sorted(own, key=lambda key: key not in classes):
            try:
                alone[key], objects = self._chunk({key: own[key]}, {} if key in classes else class_names)
            except BaseException:  # noqa: BLE001 - a model's value may raise anything
                dropped.add(key)
                continue
            shared.add(key, objects)
            if key in classes:
                class_names[id(own[key])] = key
        needs = {key: chunk.needs for key, chunk in alone.items() if chunk.needs}
        shared.join_needed_classes(classes & alone.keys(), needs)
        chunks = {chunk.id: chunk for key, chunk in alone.items() if key not in shared.joined}
        for keys in shared.groups():
            known = {} if classes & set(keys) else class_names
            try:
                chunk, _ = self._chunk({key: own[key] for key in keys}, known)
            except BaseException:  # noqa: BLE001 - as above
                dropped.update(keys)
                return self._pickle(dropped)
            chunks[chunk.id] = chunk
        # A closure may have captured a late variable and loaded it: the two share an object.
        return chunks if len(state.loaded) == loaded else self._pickle(dropped)

    def _chunk(self, values: dict[str, Any], class_names: Mapping[int, str]) -> tuple[variable_chunks.Chunk, list[Any]]:
        return variable_chunks.pickle_chunk(values, class_names, self._scope, self._max_bytes)

    def _new(self, chunks: Mapping[str, variable_chunks.Chunk]) -> dict[str, variable_chunks.Chunk]:
        return {name: chunk for name, chunk in chunks.items() if self._digests.get(name) != chunk.digest}

    def _unreadable(self, chunks: Mapping[str, variable_chunks.Chunk]) -> set[str]:
        """Load the new chunks into a scratch scope and return the keys that make one fail."""
        new = self._new(chunks)
        needs = {name for chunk in new.values() for name in chunk.needs}
        tried = {name: chunk.data for name, chunk in chunks.items() if name in new or not needs.isdisjoint(chunk.keys)}
        if not variable_chunks.restore(tried, self._scope.scratch()):
            return set()
        everything, values = self._scope.scratch(), self._own()
        present = {chunk.id: chunk.data for chunk in chunks.values()}
        failed = variable_chunks.restore(dict(self._state.late.values()) | present, everything)
        culprits: set[str] = set()
        for keys in (chunks[name].keys for name in failed if name in new):
            broken = set(keys)
            for key in keys:
                with contextlib.suppress(BaseException):  # as above
                    chunk, _ = self._chunk({key: values[key]}, {})
                    if variable_chunks.load(chunk.data, everything):
                        broken.discard(key)
            culprits |= broken or set(keys)
        return culprits

    def _too_large(self, chunks: Mapping[str, variable_chunks.Chunk]) -> set[str]:
        """Return the keys of the largest chunks if all together exceed the limit."""
        late = self._state.late
        total = sum(len(chunk.data) for chunk in chunks.values()) + sum(len(data) for _, data in late.values())
        if total <= self._max_bytes:
            return set()
        sizes = {chunk.keys: len(chunk.data) for chunk in chunks.values()}
        sizes |= {(name,): len(data) for name, (_, data) in late.items()}
        dropped: set[str] = set()
        for keys in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if total <= self._max_bytes:
                break
            total -= sizes[keys]
            dropped.update(keys)
        for name in dropped & late.keys():  # it stays usable here
            try:
                self._state.get(name)
            except InterpreterError:
                del self._state[name]
        return dropped
