"""Which partitions a worker asks for work, and in which order: where somebody waits for longest comes first."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from app.stores.partition import Partition

LOOK_S = 2.0  # wake-ups are hints: all partitions are due again after this time
FIRST, UNKNOWN = -1.0, 0.0  # in the place of a time


class Rounds:
    """The partitions that are due, each with the time since when the oldest conversation there has been ready."""

    def __init__(self, partitions: Iterable[Partition]) -> None:
        self._partitions = tuple(partitions)
        self._due = dict.fromkeys(self._partitions, UNKNOWN)
        self._all_due_at = time.monotonic() + LOOK_S

    def next(self) -> list[Partition]:
        """Give what is due in its order, or all where nothing is."""
        if time.monotonic() > self._all_due_at:  # also for one that always has enough to do
            self.all_due()
        return sorted(self._due, key=self._due.__getitem__) or list(self._partitions)

    def all_due(self) -> None:
        """Nobody knows what is ready where."""
        self._due = dict.fromkeys(self._partitions, UNKNOWN) | self._due
        self._all_due_at = time.monotonic() + LOOK_S

    def due(self, partition: Partition, since: float = UNKNOWN) -> None:
        """Something is, or may be, ready here; `since` is a time of the store's clock, or `FIRST`."""
        self._due[partition] = since

    def woken(self, partition: Partition) -> None:
        """Something has just become ready here: it is the youngest."""
        self._due.setdefault(partition, time.time())

    def asked(self, partition: Partition) -> None:
        """What is due here is being asked for."""
        self._due.pop(partition, None)
