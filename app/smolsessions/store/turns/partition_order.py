"""Order in which a worker asks the partitions for work: by owner, then by the longest wait.

The owner that this worker served least recently comes first. Each partition orders only its own owners.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smolsessions.store.partition import Partition

LOOK_S = 2.0  # wake-ups are hints: all partitions are due again after this time
FIRST, UNKNOWN = -1.0, 0.0  # in the place of a time
NOBODY = ("", UNKNOWN)
MOST_SERVED = 1000  # owners that a worker remembers


class PartitionOrder:
    """The partitions that are due, each with the next owner there and the time of its oldest ready conversation."""

    def __init__(self, partitions: Iterable[Partition]) -> None:
        self._partitions = tuple(partitions)
        self._due = dict.fromkeys(self._partitions, NOBODY)
        self._served: OrderedDict[str, float] = OrderedDict()
        self._all_due_at = time.monotonic() + LOOK_S

    def next(self) -> list[Partition]:
        """Give what is due in its order, or all where nothing is."""
        if time.monotonic() > self._all_due_at:  # also for one that always has enough to do
            self.all_due()
        return sorted(self._due, key=self._rank) or list(self._partitions)

    def all_due(self) -> None:
        """Nobody knows what is ready where."""
        self._due = dict.fromkeys(self._partitions, NOBODY) | self._due
        self._all_due_at = time.monotonic() + LOOK_S

    def due(self, partition: Partition, since: float = UNKNOWN, owner: str = "") -> None:
        """Something is, or may be, ready here; `since` is a time of the store's clock, or `FIRST`."""
        self._due[partition] = (owner, since)

    def woken(self, partition: Partition, owner: str) -> None:
        """A conversation of `owner` has just become ready here. It is the youngest, but may be the next owner's."""
        known, since = self._due.setdefault(partition, (owner, time.time()))
        if self._served.get(owner, 0) < self._served.get(known, 0):
            self._due[partition] = (owner, since)

    def served(self, owner: str) -> None:
        """Note that a turn of `owner` was claimed."""
        self._served[owner] = time.monotonic()
        self._served.move_to_end(owner)
        if len(self._served) > MOST_SERVED:
            self._served.popitem(last=False)

    def _rank(self, partition: Partition) -> tuple[float, float]:
        owner, since = self._due[partition]
        return (self._served.get(owner, 0) if since > UNKNOWN else UNKNOWN, since)

    def asked(self, partition: Partition) -> None:
        """What is due here is being asked for."""
        self._due.pop(partition, None)
