"""Head of a conversation, sealed over its steps and variables, and the images of its steps."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from smolsessions.core.errors import DAMAGED, SealBrokenError
from smolsessions.core.records import Head
from smolsessions.store import codec
from smolsessions.store.seal import tag_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from smolsessions.core.records import EntryType, StepType, StoredStep, Turn
    from smolsessions.store.conversation_sealer import ConversationSealer
    from smolsessions.store.partition import Partition
    from smolsessions.store.scripts.loader import Scripts

HASH_BYTES = 16
IMAGES_AT_ONCE = 4
COUNT_SENTENCE = "The stored steps of this conversation are not those that its head was sealed over."
VARIABLES_SENTENCE = "The stored variables of this conversation are not those that its head was sealed over."


def open_head(sealer: ConversationSealer, scope: str, generation: bytes, head: bytes) -> Head:
    """Open a conversation's head. Before the first commit it is empty."""
    opened = codec.decode_head(sealer.open(head, scope, "head")) if head else Head(codec.number(generation))
    if codec.number(generation) != opened.generation:
        raise SealBrokenError(DAMAGED)
    return opened


def check_count(head: Head, stored: int, queued: int) -> None:
    """Compare the stored steps with the head. Only a running or waiting turn has steps behind it."""
    if stored < head.count or (stored > head.count and not queued):
        raise SealBrokenError(COUNT_SENTENCE)


def open_chunk_list(sealer: ConversationSealer, scope: str, head: Head, sealed: bytes) -> dict[str, bytes]:
    """Open the list of the variables' chunks. Raises unless the head was sealed over it."""
    if (tag_of(sealed) if sealed else b"") != head.variables:
        raise SealBrokenError(VARIABLES_SENTENCE)
    if not sealed:
        return {}
    return codec.decode_chunk_list(sealer.open(sealed, scope, "variables", head.generation))


async def load_images(partition: Partition, scope: str, steps: Iterable[StoredStep]) -> dict[str, bytes]:
    """Load the attachments of these steps, a few at a time, as they may be large."""
    wanted = sorted({name for step in steps for name in step.attachments})
    opened = {}
    for start in range(0, len(wanted), IMAGES_AT_ONCE):
        names = wanted[start : start + IMAGES_AT_ONCE]
        for name, blob in zip(names, await image_blobs(partition, scope, names), strict=True):
            opened[name] = await asyncio.to_thread(partition.sealer.open, blob or b"", scope, "image", name)
    return opened


async def image_blobs(partition: Partition, scope: str, names: Sequence[str]) -> list[bytes | None]:
    """Load sealed attachments. None stands for a missing one."""
    terms, blobs = await partition.scripts.call("images", *names, ref=scope)
    partition.sealer.terms(scope, terms)
    found: list[bytes | None] = blobs
    return found


async def with_stored_images(scripts: Scripts, turn: Turn) -> Turn:
    """Return a turn without the images that the store does not hold yet, or no longer holds."""
    answer = turn.outcome.images if turn.outcome else ()
    names = list(dict.fromkeys(image.name for image in (*turn.images, *answer)))
    if not names:
        return turn
    flags = await scripts.call("has_images", *names, ref=str(turn.ref))
    stored = {name for name, is_there in zip(names, flags, strict=True) if is_there}
    if len(stored) == len(names):
        return turn
    turn = replace(turn, images=tuple(image for image in turn.images if image.name in stored))
    kept = tuple(image for image in answer if image.name in stored)
    return replace(turn, outcome=replace(turn.outcome, images=kept)) if turn.outcome else turn


def extended(head: Head, kind: EntryType, blob: bytes) -> Head:
    """Return the head after one more sealed step."""
    counts = counted(head.step_counts, kind, 1)
    return replace(head, count=head.count + 1, hash=extend_hash(head.hash, blob), step_counts=counts)


def counted(counts: dict[StepType, int], kind: EntryType, more: int) -> dict[StepType, int]:
    """Return the counts with `more` steps of a kind. Edits are not counted."""
    return counts if kind == "edit" else {**counts, kind: counts.get(kind, 0) + more}


def extend_hash(running: bytes, blob: bytes) -> bytes:
    """Return the running hash after one more sealed step."""
    return hashlib.sha256(running + tag_of(blob)).digest()[:HASH_BYTES]


def hidden_so_far(head: Head) -> Head:
    """Return the head with all steps so far hidden from the model."""
    return replace(head, shown_from=head.count, shown_hash=head.hash)
