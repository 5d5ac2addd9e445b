"""Journal of an open turn, read without its lease."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from smolsessions.core.effects import Journal, JournaledResult
from smolsessions.core.errors import SealBrokenError
from smolsessions.store import codec
from smolsessions.store.partition import Scope
from smolsessions.store.turns.turn_memory import JOURNAL_SENTENCE

LARGE_BYTES = 256 * 1024  # opening more delays the event loop noticeably
MOST_ENTRIES = 10_000
START_BYTES = 16 * 1024  # of a result, which are unpacked to tell how the call ended


async def read_journal(scope: Scope, number: int) -> Journal:
    """Return the keys of a turn's journal with their sizes, of a longer one `MOST_ENTRIES`."""
    length, effects, found = await scope.call("journal", turn=number, most=MOST_ENTRIES)
    sizes = {codec.text(name): size for name, size in zip(found[::2], found[1::2], strict=True)}
    is_whole = length == len(sizes)
    if is_whole and sum(map(bool, sizes.values())) != codec.number(effects):
        raise SealBrokenError(JOURNAL_SENTENCE)
    return Journal(sizes, is_whole)


async def read_results(scope: Scope, number: int, keys: Sequence[str]) -> dict[str, JournaledResult]:
    """Return size and first bytes of journaled results. Those of a turn that ended meanwhile are missing."""
    blobs: list[bytes | None] = await scope.call("effects", *keys, turn=number) if keys else []
    peek = scope.partition.sealer.peek

    def opened() -> dict[str, JournaledResult]:
        return {
            key: JournaledResult(*peek(blob, scope.name, "effect", number, key, most=START_BYTES))
            for key, blob in zip(keys, blobs, strict=True)
            if blob
        }

    is_large = sum(len(blob or b"") for blob in blobs) > LARGE_BYTES
    return await asyncio.to_thread(opened) if is_large else opened()
