"""Staged keys: values of an import, fork, prune or rollback, written in pieces, which its last script puts in place.

Keys of a killed process stay invisible and expire.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from redis.exceptions import ResponseError

from smolsessions.core.errors import HistoryGoneError, StoreUnavailableError
from smolsessions.store.partition import Partition, Scope
from smolsessions.store.scripts.loader import Argument, flattened

PIECE_VALUES, PIECE_BYTES = 1000, 1024 * 1024  # of one script: more would delay others
STAGED = ("turns", "heads", "logs", "steps", "images", "old", "oldest", "variables")


def pieces(values: Sequence[Argument]) -> Iterator[tuple[int, list[Argument]]]:
    """Yield parts of bounded size, each an even number of values, with the number of values before."""
    start = size = 0
    for index in range(0, len(values), 2):
        size += size_of(values[index : index + 2])
        if size > PIECE_BYTES or index + 2 - start >= PIECE_VALUES:
            yield start, [*values[start : index + 2]]
            start, size = index + 2, 0
    if start < len(values):
        yield start, [*values[start:]]


def size_of(values: Iterable[Argument]) -> int:
    return sum([len(value) if isinstance(value, bytes) else len(str(value)) for value in values])


@asynccontextmanager
async def staged_keys(partition: Partition) -> AsyncIterator[str]:
    """Yield a name for staged keys. Those that no script has renamed are deleted."""
    staged = secrets.token_hex(12)
    try:
        yield staged
    finally:
        with suppress(StoreUnavailableError, ResponseError):  # staged keys expire
            await partition.ask("UNLINK", *(f"{partition.name}:staged:{staged}:{kind}" for kind in STAGED))


async def stage_copy(scope: Scope, staged: str, kind: str, last: int | str, *, gone: Sequence[int] = ()) -> None:
    """Copy one kind of a conversation's values, up to the turn or step `last`. Of steps `gone` copy the tags."""
    cursor = 0
    while True:
        near = gone[bisect_left(gone, cursor) : bisect_left(gone, cursor + PIECE_VALUES)]
        cursor = int(await scope.call("stage_copy", *near, staged=staged, kind=kind, last=last, cursor=cursor))
        if not cursor:
            return


async def stage_chunks(scope: Scope, staged: str, chunks: Mapping[str, bytes]) -> None:
    """Copy chunks of a conversation's variables. Raises `HistoryGoneError` if one is not kept."""
    left = flattened(chunks.items())
    while left:
        taken = await scope.call("stage_chunks", *left[:PIECE_VALUES], staged=staged)
        if taken == b"gone":
            raise HistoryGoneError
        del left[:taken]


async def keep_chunks(scope: Scope, names: list[str]) -> None:
    """Keep present chunks of a conversation's variables for rollbacks, before others replace them."""
    while names:
        del names[: await scope.call("keep_chunks", *names[:PIECE_VALUES])]
