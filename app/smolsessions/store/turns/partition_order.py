"""Order in which a worker asks the partitions for work: by owner, then by the longest wait.

The owner that this worker served least recently comes first. Each partition orders only its own owners.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable

from smolsessions.store.partition import Partition

CHECK_ALL_S = 2.0  # wake-ups may be lost: after this time all partitions are due
FIRST, UNKNOWN = -1.0, 0.0  # in place of a time
UNKNOWN_OWNER = ("", UNKNOWN)
MOST_SERVED = 1000


class PartitionOrder:
    """Partitions that are due, each with its next owner and the time of its oldest ready conversation."""

    def __init__(self, partitions: Iterable[Partition]) -> None:
        self._partitions = tuple(partitions)
        self._served: OrderedDict[str, float] = OrderedDict()
        self._due: dict[Partition, tuple[str, float]] = {}
        self.all_due()

    def next(self) -> list[Partition]:
        """Return the due partitions in their order, or all if none is due."""
        if time.monotonic() > self._all_due_at:
            self.all_due()

        def rank(partition: Partition) -> tuple[float, float]:
            owner, since = self._due[partition]
            return (self._served.get(owner, 0) if since > UNKNOWN else UNKNOWN, since)

        return sorted(self._due, key=rank) or list(self._partitions)

    @property
    def is_empty(self) -> bool:
        return not self._due

    def all_due(self) -> None:
        self._due = dict.fromkeys(self._partitions, UNKNOWN_OWNER) | self._due
        self._all_due_at = time.monotonic() + CHECK_ALL_S

    def due(self, partition: Partition, since: float = UNKNOWN, owner: str = "") -> None:
        """Mark a partition as due. `since` is a time of the store's clock, or `FIRST`."""
        self._due[partition] = (owner, since)

    def woken(self, partition: Partition, owner: str) -> None:
        """Note a new ready conversation of `owner`. It is the youngest, but `owner` may be next."""
        known, since = self._due.setdefault(partition, (owner, time.time()))
        if self._served.get(owner, 0) < self._served.get(known, 0):
            self._due[partition] = (owner, since)

    def served(self, owner: str) -> None:
        self._served[owner] = time.monotonic()
        self._served.move_to_end(owner)
        if len(self._served) > MOST_SERVED:
            self._served.popitem(last=False)

    def asked(self, partition: Partition) -> None:
        self._due.pop(partition, None)
