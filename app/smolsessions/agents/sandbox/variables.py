"""What a model's code has defined, as chunks of bytes that share nothing with each other.

Runs in the child process only. A chunk is a line of JSON with its names and a pickle of their values; variables that
share an object are in one chunk, so that aliases stay aliases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smolagents.local_python_executor import InterpreterError

from smolsessions.agents.sandbox.classes import binds
from smolsessions.agents.sandbox.code_values import Scope, is_settled
from smolsessions.agents.sandbox.variable_chunks import (
    SCALARS,
    Chunk,
    ChunkPickler,
    SharedObjects,
    bind,
    chunk_id,
    chunk_names,
    restore,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from smolagents.local_python_executor import LocalPythonExecutor

INTERNAL_NAMES = frozenset({"__name__", "_print_outputs", "_operations_count"})


class InterpreterState(dict[str, Any]):
    """The interpreter's names. One whose value could not be kept is an error; smolagents would take a similar one."""

    dropped: frozenset[str] = frozenset()
    functions: Collection[str] = ()

    def __contains__(self, name: object) -> bool:
        if dict.__contains__(self, name):
            return True
        if name in self.dropped and name not in self.functions:
            raise InterpreterError(f"The variable `{name}` is gone: its value could not be kept. Define it again.")
        return False

    def copy(self) -> InterpreterState:
        """Copy for a function's own names."""
        names = InterpreterState(self)
        names.dropped, names.functions = self.dropped, self.functions
        return names


@dataclass(frozen=True, slots=True)
class Saved:
    """What to write and what to remove since the last `save()` or `load()`, and all names that are not carried now."""

    changed: dict[str, bytes]
    removed: list[str]
    dropped: list[str]


class Variables:
    """A model's names and functions in one executor, and what of them the parent has."""

    def __init__(self, executor: LocalPythonExecutor, max_bytes: int, given: Collection[str] = ()) -> None:
        """Take the executor with its tools sent, the bytes of all chunks together, and the names that are not its own.

        A given name is left out while it is bound to the value that it has now.
        """
        self._executor = executor
        self._scope = Scope(executor)
        self._max_bytes = max_bytes
        self._given: dict[str, Any] = {}
        self._kept: dict[str, bytes] = {}
        self._settled: dict[str, tuple[Any, Chunk]] = {}
        self._pickler = ChunkPickler(self._scope, max_bytes)
        self.give(given)

    def give(self, names: Iterable[str]) -> None:
        """Take the present values of these names as not the model's own: the parent has just sent them."""
        state = self._executor.state
        self._given.update({name: state[name] for name in names if name in state})

    def save(self) -> Saved:
        """Never raises because of a value: what cannot be carried is dropped and named."""
        dropped: set[str] = set()
        chunks = self._survey(dropped)
        while bad := self._unreadable(chunks) or self._too_large(chunks):
            dropped |= bad
            chunks = self._survey(dropped)
        changed = {name: chunk.data for name, chunk in chunks.items() if self._kept.get(name) != chunk.digest}
        removed = [name for name in self._kept if name not in chunks]
        self._kept = {name: chunk.digest for name, chunk in chunks.items()}
        return Saved(changed, removed, sorted({key.removesuffix("()") for key in dropped}))

    def load(self, chunks: Mapping[str, bytes]) -> list[str]:
        """Bind what the chunks hold in the executor; give the names that could not be restored."""
        failed = restore(chunks, self._scope)
        now = self._survey(set())
        self._kept = {name: now[name].digest if name in now else b"" for name in chunks}
        return sorted({name for chunk in failed for name in chunk_names(chunk, chunks[chunk])})

    def _own(self) -> Iterator[tuple[str, Any]]:
        for name, value in list(self._executor.state.items()):
            is_given = name in self._given and self._given[name] is value
            if type(name) is str and name not in INTERNAL_NAMES and not is_given:
                yield name, value
        for name, value in list(self._executor.custom_tools.items()):
            yield f"{name}()", value

    def _survey(self, dropped: set[str]) -> dict[str, Chunk]:
        """Make the chunks of what there is now; add to `dropped` what has no bytes.

        A chunk with classes is whole; any other refers to classes by name and has to be loaded after them.
        """
        own = {key: value for key, value in self._own() if key not in dropped}
        classes = {key for key, value in own.items() if binds(key, value)}
        bound: dict[int, str] = {}
        alone: dict[str, Chunk] = {}
        groups = SharedObjects()
        for key in sorted(own, key=lambda key: key not in classes):
            try:
                alone[key], shared = self._alone(key, own[key], {} if key in classes else bound)
            except BaseException:  # noqa: BLE001 - a model's value may fail in any way
                dropped.add(key)
                continue
            groups.add(key, shared)
            if key in classes:
                bound[id(own[key])] = key
        self._settled = {key: known for key, known in self._settled.items() if key in alone}
        groups.gather(classes & alone.keys(), {key: chunk.needs for key, chunk in alone.items() if chunk.needs})
        chunks = {chunk_id((key,)): chunk for key, chunk in alone.items() if key not in groups.joined}
        for keys in groups.several():
            try:
                chunk, _ = self._pickler.dump({key: own[key] for key in keys}, {} if classes & set(keys) else bound)
            except BaseException:  # noqa: BLE001 - as above
                dropped.update(keys)
                return self._survey(dropped)
            chunks[chunk_id(keys)] = chunk
        return chunks

    def _alone(self, key: str, value: Any, bound: Mapping[int, str]) -> tuple[Chunk, list[Any]]:
        is_scalar = type(value) in SCALARS
        if not is_scalar and not is_settled(value, self._scope):
            return self._pickler.dump({key: value}, bound)
        known = self._settled.get(key)
        if known is None or known[0] is not value:
            known = self._settled[key] = value, self._pickler.dump({key: value}, bound)[0]
        return known[1], [] if is_scalar else [value]

    def _unreadable(self, chunks: Mapping[str, Chunk]) -> set[str]:
        """Load what has changed where nothing else sees it, and give the keys that spoil it."""
        new = {name: chunk for name, chunk in chunks.items() if self._kept.get(name) != chunk.digest}
        needs = {name for chunk in new.values() for name in chunk.needs}
        needed = {name: chunk for name, chunk in chunks.items() if not needs.isdisjoint(chunk.keys)}
        if not restore(_data({**needed, **new}), Scope(self._executor, scratch=True)):
            return set()
        everything = Scope(self._executor, scratch=True)
        failed = [name for name in restore(_data(chunks), everything) if name in new]
        return {key for name in failed for key in self._spoilers(chunks[name].keys, everything)}

    def _spoilers(self, keys: tuple[str, ...], scope: Scope) -> tuple[str, ...]:
        values = dict(self._own())
        bad = tuple(key for key in keys if not self._is_carried(key, values[key], scope))
        return bad or keys

    def _is_carried(self, key: str, value: Any, scope: Scope) -> bool:
        try:
            chunk, _ = self._pickler.dump({key: value}, {})
        except BaseException:  # noqa: BLE001 - as above
            return False
        return bind(chunk.data, scope)

    def _too_large(self, chunks: Mapping[str, Chunk]) -> set[str]:
        total = sum(len(chunk.data) for chunk in chunks.values())
        dropped: set[str] = set()
        for chunk in sorted(chunks.values(), key=lambda chunk: len(chunk.data), reverse=True):
            if total <= self._max_bytes:
                break
            total -= len(chunk.data)
            dropped.update(chunk.keys)
        return dropped


def _data(chunks: Mapping[str, Chunk]) -> dict[str, bytes]:
    return {name: chunk.data for name, chunk in chunks.items()}
