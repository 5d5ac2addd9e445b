"""Chance that a replay meets again: a block that runs a second time draws the same random numbers.

So what it asks tools for is what it asked for the first time, and is given from the journal. The seed is a secret of
the turn. Not covered are the clock, and generators that a block keeps in a variable.
"""

from __future__ import annotations

import os
import random
import sys


def draw_from(seed: bytes) -> None:
    """Seed every source of randomness of this process: `random`, `secrets`, `uuid4` and numpy's global one."""
    random.seed(seed)
    source = random.Random(b"system" + seed)  # noqa: S311 - as secret as its seed
    random._urandom = source.randbytes  # type: ignore[attr-defined]  # noqa: SLF001 - `SystemRandom`, and so `secrets`
    os.urandom = source.randbytes
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(int.from_bytes(seed[:4], "big"))
