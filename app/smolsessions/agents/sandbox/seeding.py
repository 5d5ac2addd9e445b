"""Seeding of random generators, so that a replay draws the same numbers.

Each block seeds every generator from a secret of the turn. A block that runs again therefore asks tools for the same.
A generator that code has seeded itself keeps its state, also in later processes. `clock.py` repeats the times. Tools
draw in the service's process. A new `random.Random()` without a seed draws from the kernel and is not covered.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import struct
import sys
import uuid
from typing import Any

from smolsessions.agents.sandbox.variable_chunks import chunk_id
from smolsessions.agents.values import dumps, loads

RANDOM_CHUNK = chunk_id(())
"""Id of the chunk with the states of generators that code has seeded. It belongs to no variable."""
_WORDS = struct.Struct("<624I")  # of a Mersenne Twister


class RandomGenerators:
    """Generators of this process: those of `random`, numpy's global one, and the system's.

    `os.urandom`, `secrets`, `uuid4` and numpy's `default_rng()` draw from the system's.
    """

    def __init__(self, saved: bytes = b"") -> None:
        """`saved` is the chunk of an earlier process. Code may have forged it."""
        self._saved = saved
        self._seeded: dict[str, list[Any]] = {}
        self._fresh: dict[str, bytes] = {}
        with contextlib.suppress(TypeError, ValueError):
            self._seeded = dict(loads(saved)) if saved else {}

    def begin_block(self, seed: bytes) -> None:
        """Seed the generators, except those that code has seeded."""
        source = random.Random(b"system" + seed)  # noqa: S311 - as secret as its seed
        random._urandom = source.randbytes  # type: ignore[attr-defined]  # noqa: SLF001 - `SystemRandom`, and so `secrets`
        os.urandom = source.randbytes
        # `uuid1` would also use the machine's address and its own last time, beside the clock and `random`.
        node = int.from_bytes(seed[:6], "big") | 1 << 40  # the bit that marks a random node
        last = [name for name in vars(uuid) if name.startswith("_last_timestamp")]
        vars(uuid).update({"_generate_time_safe": None, "_node": node} | dict.fromkeys(last))
        random.seed(seed)
        random.getrandbits(32)  # generates the 624 words, which the next 623 draws leave alone
        if "numpy" in self._seeded:
            with contextlib.suppress(ImportError):
                importlib.import_module("numpy")
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(int.from_bytes(seed[:4], "big"))
            numpy.random.bytes(4)
        self._fresh = {name: state[0] for name, state in _states().items()}
        for name, state in self._seeded.items():
            with contextlib.suppress(Exception):  # a forged state fails in many ways
                words, position, normal, *rest = state
                if name == "random":
                    random.setstate((3, (*_WORDS.unpack(words), position), normal))
                else:
                    array = sys.modules["numpy"].frombuffer(words, "<u4")
                    sys.modules["numpy"].random.set_state(("MT19937", array, position, normal, *rest))

    def end_block(self) -> dict[str, bytes]:
        """Return the chunk if the block changed it. New words mean that code seeded the generator or drew a lot."""
        for name, state in _states().items():
            if name in self._seeded or state[0] != self._fresh.get(name):
                self._seeded[name] = state
        data = dumps(self._seeded) if self._seeded else b""
        if data == self._saved:
            return {}
        self._saved = data
        return {RANDOM_CHUNK: data}


def _states() -> dict[str, list[Any]]:
    """Return each generator's words, its position in them, and the second of a pair of normal numbers."""
    _, (*words, position), normal = random.getstate()
    states: dict[str, list[Any]] = {"random": [_WORDS.pack(*words), position, normal]}
    if numpy := sys.modules.get("numpy"):
        kind, array, *rest = numpy.random.get_state()
        if kind == "MT19937":  # code may have replaced it
            states["numpy"] = [array.astype("<u4").tobytes(), *rest]
    return states
