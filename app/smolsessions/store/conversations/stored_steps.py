"""Steps, images and files of a conversation, read back and checked against its head."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from smolsessions.core.errors import ConversationNotFoundError, SealBrokenError
from smolsessions.core.media import StepFile, StepImage
from smolsessions.core.memories import Head, StoredStep
from smolsessions.core.records import Outcome, Turn
from smolsessions.store import codec
from smolsessions.store.conversations.head import COUNT_SENTENCE, extend_hash
from smolsessions.store.partition import Scope

T = TypeVar("T", "Turn", "Outcome")

STEPS_AT_ONCE = 500
IMAGES_AT_ONCE = 4
PAGE_BYTES = 4 * 1024 * 1024  # of the steps in one reply, and in one page


async def load_steps(
    scope: Scope, head: Head, first: int = 0, end: int | None = None, *, without: int | None = None
) -> list[StoredStep]:
    """Load steps except `without` (None: the destroyed). Raises `SealBrokenError` if one is missing or swapped."""
    without = head.destroyed if without is None else without
    end = head.count if end is None else min(end, head.count)
    # A read from elsewhere has no hash to begin with.
    running = {0: b"", head.shown_from: head.shown_hash}.get(first) if end == head.count else None
    steps: list[StoredStep] = []
    start = first
    while start < end:
        last = min(end, start + STEPS_AT_ONCE) - 1
        found = await scope.call("steps", first=start, last=last, max_bytes=PAGE_BYTES)
        if not found:
            raise ConversationNotFoundError
        if not found[2]:
            raise SealBrokenError(COUNT_SENTENCE)
        running = None if running is None else extend_hash(running, found[2])
        kept = [(index, blob) for index, blob in enumerate(found[2], start) if not without >> index & 1]
        opened = scope.open_all(kept, "step", 0)
        steps += [codec.decode_step(data, index, head) for (index, _), data in zip(kept, opened, strict=True)]
        start += len(found[2])
    if running not in {None, head.hash}:
        raise SealBrokenError(COUNT_SENTENCE)
    return steps


def open_step(scope: Scope, head: Head, index: int, blob: bytes) -> StoredStep:
    return codec.decode_step(scope.open(blob, "step", 0, index), index, head)


async def load_images(scope: Scope, attachments: Iterable[Sequence[str]]) -> dict[str, bytes]:
    """Load the attachments of steps, a few at a time, as they may be large."""
    wanted = sorted(set().union(*attachments))
    opened = {}
    for start in range(0, len(wanted), IMAGES_AT_ONCE):
        names = wanted[start : start + IMAGES_AT_ONCE]
        for name, blob in zip(names, await image_blobs(scope, names), strict=True):
            opened[name] = await asyncio.to_thread(scope.open, blob or b"", "image", name)
    return opened


async def image_blobs(scope: Scope, names: Sequence[str]) -> list[bytes | None]:
    """Load sealed attachments. None stands for a missing one."""
    settings, blobs = await scope.call("images", *names)
    scope.settings(settings)
    found: list[bytes | None] = blobs
    return found


async def with_stored_images(scope: Scope, turn: Turn) -> Turn:
    """Return a turn without the images and files that the store does not hold yet, or no longer holds."""
    parts: list[StepImage | StepFile] = [*turn.images, *turn.files]
    if turn.outcome:
        parts += (*turn.outcome.images, *turn.outcome.files)
    names = list(dict.fromkeys(part.name for part in parts))
    if not names:
        return turn
    flags = await scope.call("has_images", *names)
    stored = {name for name, is_there in zip(names, flags, strict=True) if is_there}

    def with_stored(owner: T) -> T:
        images = tuple(one for one in owner.images if one.name in stored)
        return replace(owner, images=images, files=tuple(one for one in owner.files if one.name in stored))

    turn = with_stored(turn)
    return replace(turn, outcome=with_stored(turn.outcome)) if turn.outcome else turn
