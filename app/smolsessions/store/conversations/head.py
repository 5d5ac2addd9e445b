"""Head of a conversation, sealed over its steps and variables, and the data that it covers."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from smolsessions.core.errors import DAMAGED, ConversationNotFoundError, SealBrokenError
from smolsessions.core.media import StepFile, StepImage
from smolsessions.core.memories import Head, StoredStep
from smolsessions.core.records import EntryType, Outcome, StepType, Turn
from smolsessions.store import codec
from smolsessions.store.partition import Scope
from smolsessions.store.seal import tag_of

T = TypeVar("T", "Turn", "Outcome")

HASH_BYTES = 16
STEPS_AT_ONCE = 500
IMAGES_AT_ONCE = 4
PAGE_BYTES = 4 * 1024 * 1024  # of the steps in one reply, and in one page
COUNT_SENTENCE = "The stored steps of this conversation are not those that its head was sealed over."
VARIABLES_SENTENCE = "The stored variables of this conversation are not those that its head was sealed over."


def open_head(scope: Scope, generation: bytes, head: bytes | None) -> Head:
    """Open a conversation's head. Before the first commit it is empty."""
    opened = codec.decode_head(scope.open(head, "head")) if head else Head(codec.number(generation))
    if codec.number(generation) != opened.generation:
        raise SealBrokenError(DAMAGED)
    return opened


def check_count(head: Head, stored: int, *, may_be_more: bool) -> None:
    """Compare the number of stored steps with the head. Only a running or waiting turn has steps behind it."""
    if stored < head.count or (stored > head.count and not may_be_more):
        raise SealBrokenError(COUNT_SENTENCE)


def open_chunk_list(scope: Scope, head: Head, sealed: bytes) -> dict[str, bytes]:
    """Open the list of the variables' chunks. Raises unless the head was sealed over it."""
    if tag_of(sealed) != head.variables:
        raise SealBrokenError(VARIABLES_SENTENCE)
    return codec.decode_chunk_list(scope.open(sealed, "variables", head.generation)) if sealed else {}


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
        if not found[3]:
            raise SealBrokenError(COUNT_SENTENCE)
        running = None if running is None else extend_hash(running, found[3])
        kept = [(index, blob) for index, blob in enumerate(found[3], start) if not without >> index & 1]
        opened = scope.open_all(kept, "step", head.generation)
        steps += [codec.decode_step(data, index, head) for (index, _), data in zip(kept, opened, strict=True)]
        start += len(found[3])
    if running not in {None, head.hash}:
        raise SealBrokenError(COUNT_SENTENCE)
    return steps


def open_step(scope: Scope, head: Head, index: int, blob: bytes) -> StoredStep:
    return codec.decode_step(scope.open(blob, "step", head.generation, index), index, head)


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


def extended(head: Head, steps: Sequence[tuple[EntryType, bytes]]) -> Head:
    """Return the head after more sealed steps, of which at least the tags are needed."""
    counts, running = head.step_counts, head.hash
    for kind, blob in steps:
        counts, running = counted(counts, kind, 1), extend_hash(running, [blob])
    return replace(head, count=head.count + len(steps), hash=running, step_counts=counts)


def counted(counts: dict[StepType, int], kind: EntryType, more: int) -> dict[StepType, int]:
    """Return the counts with `more` steps of a kind. Edits are not counted."""
    return counts if kind == "edit" else {**counts, kind: counts.get(kind, 0) + more}


def extend_hash(running: bytes, blobs: Iterable[bytes]) -> bytes:
    for blob in blobs:
        running = hashlib.sha256(running + tag_of(blob)).digest()[:HASH_BYTES]
    return running
