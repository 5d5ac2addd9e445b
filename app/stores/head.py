"""The head of a conversation: what its steps are, sealed; and the attachments beside them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from app.records import Head
from app.seal import tag_of
from app.stores import codec

if TYPE_CHECKING:
    from app.records import StepType
    from app.seal import Sealer

HASH_BYTES = 16


def open_head(sealer: Sealer, scope: str, generation: bytes, head: bytes) -> Head:
    """Open a conversation's head; before its first commit it has none."""
    return codec.head_from_bytes(sealer.open(head, scope, "head")) if head else Head(int(generation))


def open_images(sealer: Sealer, scope: str, pairs: list[bytes]) -> dict[str, bytes]:
    """Open attachments, given as name and blob in turn."""
    named = zip(pairs[::2], pairs[1::2], strict=True)
    return {name.decode(): sealer.open(blob, scope, "image", name.decode()) for name, blob in named}


def extended(head: Head, kind: StepType, blob: bytes) -> Head:
    """Take one more sealed step under the head."""
    counts = {**head.step_counts, kind: head.step_counts.get(kind, 0) + 1}
    return replace(head, count=head.count + 1, hash=extend_hash(head.hash, blob), step_counts=counts)


def extend_hash(running: bytes, blob: bytes) -> bytes:
    """Carry the running hash over one more sealed step."""
    return hashlib.sha256(running + tag_of(blob)).digest()[:HASH_BYTES]


def hidden_so_far(head: Head) -> Head:
    """Hide all steps so far from the model."""
    return replace(head, shown_from=head.count, shown_hash=head.hash)
