"""Staged keys: large values of an import or a fork, written in pieces, which its last script puts in place.

Keys of a killed process stay invisible and expire.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from smolsessions.core.errors import StoreUnavailableError
from smolsessions.store.partition import Partition, Scope
from smolsessions.store.scripts.loader import Argument

PIECE_VALUES, PIECE_BYTES = 1000, 1024 * 1024  # of one script: more would delay others
STAGED = ("turns", "heads", "logs", "steps", "images", "old", "oldest", "variables")


def pieces(values: Sequence[Argument]) -> Iterator[tuple[int, list[Argument]]]:
    """Yield parts of bounded size, each an even number of values, with the number of values before."""
    start = size = 0
    for index in range(0, len(values), 2):
        size += sum(len(value) if isinstance(value, bytes) else len(str(value)) for value in values[index : index + 2])
        if size > PIECE_BYTES or index + 2 - start >= PIECE_VALUES:
            yield start, [*values[start : index + 2]]
            start, size = index + 2, 0
    if start < len(values):
        yield start, [*values[start:]]


@asynccontextmanager
async def staged_keys(partition: Partition) -> AsyncIterator[str]:
    """Yield a name for staged keys. Those that no script has renamed are deleted."""
    staged = secrets.token_hex(12)
    try:
        yield staged
    finally:
        with suppress(StoreUnavailableError):
            await partition.ask("UNLINK", *(f"{partition.name}:staged:{staged}:{kind}" for kind in STAGED))


async def stage_copy(scope: Scope, generation: int, staged: str, kind: str, last: int | str) -> None:
    """Copy one kind of a conversation's values, up to the turn or step `last`."""
    part, cursor = generation if kind == "steps" else "", b"0"
    call = partial(scope.call, "stage_copy", staged=staged, kind=kind, part=part, last=last)
    while (cursor := await call(cursor=cursor)) != b"0":
        pass
