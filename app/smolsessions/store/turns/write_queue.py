"""Queue of one claim's writes, which are kept until the store has acknowledged them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from smolsessions.core.events import Event
from smolsessions.store.conversations.staging import PIECE_BYTES, PIECE_VALUES, size_of
from smolsessions.store.scripts.loader import Argument


class Write(NamedTuple):
    """One write. `at` is its time on the monotonic clock."""

    serial: int
    at: float
    arguments: list[Argument]
    events: Sequence[Event]
    is_effect: bool


class WriteQueue:
    """Writes that are not acknowledged, in order. They are numbered from 1 on, and the store ignores those it has.

    `made` counts all writes of the claim. Those at the end that are `unsent` go with the next batch.
    """

    def __init__(self) -> None:
        self.made = self._unsent = 0
        self._writes: list[Write] = []  # an empty deque takes 0.7 KB
        self._callbacks: list[tuple[int, Callable[[], object]]] = []

    def __len__(self) -> int:
        return len(self._writes)

    @property
    def oldest(self) -> Write | None:
        return next(iter(self._writes), None)

    @property
    def has_events(self) -> bool:
        return any(write.events for write in self._writes)

    def add(
        self, parts: str, arguments: list[Argument], events: Sequence[Event] = (), *, is_effect: bool = False
    ) -> None:
        """Add a write. `parts` has a letter for each part that its arguments hold (prelude.lua)."""
        self.made += 1
        self._unsent += 1
        self._writes.append(Write(self.made, time.monotonic(), [parts, *arguments], events, is_effect))

    def take_unsent(self) -> list[list[Write]]:
        """Return the unsent writes in batches that one script takes without delaying others."""
        batches, count, size = list[list[Write]](), 0, 0
        for write in self._writes[len(self._writes) - self._unsent :]:
            own_count, own_size = len(write.arguments), size_of(write.arguments)
            count, size = count + own_count, size + own_size
            if not batches or count > PIECE_VALUES or size > PIECE_BYTES:
                batches.append([])
                count, size = own_count, own_size
            batches[-1].append(write)
        self._unsent = 0
        return batches

    def resend(self) -> None:
        """Let the next batch begin with the oldest write: the store may have none of them."""
        self._unsent = len(self._writes)

    def acknowledge(self, serial: int) -> None:
        """Drop the writes up to this one: the store has them."""
        while self._writes and self._writes[0].serial <= serial:
            self._writes.pop(0)
        self._unsent = min(self._unsent, len(self._writes))
        while self._callbacks and self._callbacks[0][0] <= serial:
            self._callbacks.pop(0)[1]()

    def clear(self) -> None:
        """Drop all writes: they are acknowledged or given up."""
        self.acknowledge(self.made)

    def when_written(self, call: Callable[[], object]) -> None:
        """Call once all writes so far are acknowledged or given up."""
        if self._writes:
            self._callbacks.append((self.made, call))
        else:
            call()
