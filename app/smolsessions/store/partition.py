"""Partitions of a store, each with its scripts, sealer, log and channels."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smolsessions.core.records import Ref
    from smolsessions.store.conversation_sealer import ConversationSealer
    from smolsessions.store.scripts.loader import Scripts
    from smolsessions.store.turns.turn_log import TurnLog


@dataclass(frozen=True, eq=False)
class Partition:
    """One partition. `channel` carries the events of turns to this process, `wake` tells workers of ready turns."""

    scripts: Scripts
    sealer: ConversationSealer
    log: TurnLog
    channel: str
    wake: str
    log_ttl_s: int
    id_reuse_s: int
    lease_s: float


class Partitions:
    """All partitions. The partition of a name never changes, in any process."""

    def __init__(self, partitions: Sequence[Partition]) -> None:
        self._partitions = tuple(partitions)

    def of(self, ref: Ref) -> Partition:
        return self.named(str(ref))

    def named(self, name: str) -> Partition:
        count = len(self._partitions)
        return self._partitions[zlib.crc32(name.encode()) % count if count > 1 else 0]

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions)

    def __len__(self) -> int:
        return len(self._partitions)
