"""Head of a conversation, sealed over its steps and variables."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from smolsessions.core.errors import SealBrokenError
from smolsessions.core.memories import Head
from smolsessions.core.records import EntryType, StepType
from smolsessions.store import codec
from smolsessions.store.partition import Scope
from smolsessions.store.seal import tag_of

HASH_BYTES = 16
COUNT_SENTENCE = "The stored steps of this conversation are not those that its head was sealed over."
VARIABLES_SENTENCE = "The stored variables of this conversation are not those that its head was sealed over."


def open_head(scope: Scope, head: bytes | None) -> Head:
    """Open a conversation's head. Before the first commit it is empty."""
    return codec.decode_head(scope.open(head, "head")) if head else Head()


def check_count(head: Head, stored: int, *, may_be_more: bool) -> None:
    """Compare the number of stored steps with the head. Only a running or waiting turn has steps behind it."""
    if stored < head.count or (stored > head.count and not may_be_more):
        raise SealBrokenError(COUNT_SENTENCE)


def open_chunk_list(scope: Scope, head: Head, sealed: bytes) -> dict[str, bytes]:
    """Open the list of the variables' chunks. Raises unless the head was sealed over it."""
    if tag_of(sealed) != head.variables:
        raise SealBrokenError(VARIABLES_SENTENCE)
    return codec.decode_chunk_list(scope.open(sealed, "variables", 0)) if sealed else {}


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
