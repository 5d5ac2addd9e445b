"""What the store's parts work with at each partition: scripts, seal, log and the names that this process goes by."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from app.records import Ref
    from app.stores.log import Log
    from app.stores.script import Scripts
    from app.stores.seals import Seals


@dataclass(frozen=True, eq=False)
class Desk:
    """One partition. `channel` is where this process hears of its turns, `wake` where workers hear of work."""

    scripts: Scripts
    sealer: Seals
    log: Log
    channel: str
    wake: str
    log_ttl_s: int
    lease_s: float


class Desks:
    """All partitions. Which one a name belongs to never changes, for any process on the store."""

    def __init__(self, desks: Sequence[Desk]) -> None:
        self._desks = tuple(desks)

    def of(self, ref: Ref) -> Desk:
        """Give the partition of a conversation."""
        return self.named(str(ref))

    def named(self, name: str) -> Desk:
        """Give the partition of whatever goes by a name of its own."""
        return self._desks[zlib.crc32(name.encode()) % len(self._desks)] if len(self._desks) > 1 else self._desks[0]

    def __iter__(self) -> Iterator[Desk]:
        return iter(self._desks)

    def __len__(self) -> int:
        return len(self._desks)
