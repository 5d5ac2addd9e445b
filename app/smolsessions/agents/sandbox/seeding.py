"""Random numbers that a replay draws again, and that go on over processes once code has seeded them.

A generator that code has not seeded is seeded anew for each block, from a secret of the turn, so that a block that runs
a second time asks tools for the same. The clock is not covered, and tools draw in the service's process.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import struct
import sys
from typing import Any

from smolsessions.agents.sandbox.variable_chunks import chunk_id
from smolsessions.agents.values import dumps, loads

RANDOM_CHUNK = chunk_id(())
"""The chunk that holds the states of seeded generators: of no variable."""
_WORDS = struct.Struct("<624I")  # of a Mersenne Twister


class RandomGenerators:
    """The generators of this process: those of `random`, numpy's global one, and the system's (`secrets`, `uuid4`)."""

    def __init__(self, kept: bytes = b"") -> None:
        """`kept` is the chunk of an earlier process; code may have written it."""
        self._kept = kept
        self._seeded: dict[str, list[Any]] = {}
        self._fresh: dict[str, bytes] = {}
        with contextlib.suppress(Exception):
            self._seeded = dict(loads(kept)) if kept else {}

    def begin(self, seed: bytes) -> None:
        """Seed the generators for a block; those that code has seeded go on."""
        source = random.Random(b"system" + seed)  # noqa: S311 - as secret as its seed
        random._urandom = source.randbytes  # type: ignore[attr-defined]  # noqa: SLF001 - `SystemRandom`, and so `secrets`
        os.urandom = source.randbytes
        random.seed(seed)
        random.getrandbits(32)  # makes the words that the next 623 draws leave alone
        if "numpy" in self._seeded:
            with contextlib.suppress(ImportError):
                importlib.import_module("numpy")
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(int.from_bytes(seed[:4], "big"))
            numpy.random.bytes(4)
        self._fresh = {name: state[0] for name, state in _states().items()}
        for name, state in self._seeded.items():
            with contextlib.suppress(Exception):
                _SET[name](*state)

    def end(self) -> dict[str, bytes]:
        """Return the chunk if the block changed it. Words other than the fresh ones: code seeded, or drew a lot."""
        for name, state in _states().items():
            if name in self._seeded or state[0] != self._fresh.get(name):
                self._seeded[name] = state
        data = dumps(self._seeded) if self._seeded else b""
        if data == self._kept:
            return {}
        self._kept = data
        return {RANDOM_CHUNK: data}


def _states() -> dict[str, list[Any]]:
    """Return each generator's words, its place in them, and the second of a pair of normal numbers."""
    _, (*words, place), normal = random.getstate()
    states: dict[str, list[Any]] = {"random": [_WORDS.pack(*words), place, normal]}
    if numpy := sys.modules.get("numpy"):
        kind, array, *rest = numpy.random.get_state()
        if kind == "MT19937":  # else code has exchanged it
            states["numpy"] = [array.astype("<u4").tobytes(), *rest]
    return states


def _set_random(words: bytes, place: int, normal: float | None) -> None:
    random.setstate((3, (*_WORDS.unpack(words), place), normal))


def _set_numpy(words: bytes, *rest: Any) -> None:
    numpy = sys.modules["numpy"]
    numpy.random.set_state(("MT19937", numpy.frombuffer(words, "<u4"), *rest))


_SET = {"random": _set_random, "numpy": _set_numpy}
