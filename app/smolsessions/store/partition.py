"""The partitions of a store, and what its parts work with at each: scripts, seal, log, names of this process."""

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
    """One of them. `channel` is where this process hears of its turns, `wake` where workers hear of work."""

    scripts: Scripts
    sealer: ConversationSealer
    log: TurnLog
    channel: str
    wake: str
    log_ttl_s: int
    id_reuse_s: int
    lease_s: float


class Partitions:
    """All partitions. Which one a name belongs to never changes, for any process on the store."""

    def __init__(self, partitions: Sequence[Partition]) -> None:
        self._partitions = tuple(partitions)

    def of(self, ref: Ref) -> Partition:
        """Give the partition of a conversation."""
        return self.named(str(ref))

    def named(self, name: str) -> Partition:
        """Give the partition of whatever goes by a name of its own."""
        return (
            self._partitions[zlib.crc32(name.encode()) % len(self._partitions)]
            if len(self._partitions) > 1
            else self._partitions[0]
        )

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions)

    def __len__(self) -> int:
        return len(self._partitions)
