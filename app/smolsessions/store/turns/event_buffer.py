"""The events of a claimed turn: counted, and kept as long as they are few, to be packed into one record at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smolsessions.core.events import TurnQueued
from smolsessions.store import codec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smolsessions.core.events import Event

MOST_PACKED_BYTES = 256 * 1024  # sealing more is felt on the loop


class EventBuffer:
    """What this claim told. A first attempt knows the log from its beginning, so that it can pack it."""

    def __init__(self, logged: int) -> None:
        """`logged` is how many events the log held when the turn was claimed."""
        self._logged = logged
        self._events: list[tuple[str, bytes]] = []
        self._count = self._bytes = 0
        self._held = 0

    @property
    def stored(self) -> int:
        """How many events the log holds when all that was emitted is written."""
        return self._logged + self._count - self._held

    @property
    def last_seq(self) -> int:
        """The number of the last event, also of those that are held back."""
        return self._logged + self._count

    def add(self, name: str, data: bytes) -> None:
        self._count += 1
        self._bytes += len(data)
        self._events.append((name, data))
        if self._bytes > MOST_PACKED_BYTES and not self._held:
            self._events.clear()

    def hold(self, events: Iterable[Event]) -> bool:
        """Keep events for the packed log alone; False where they must be written one by one."""
        written = [(event.type, codec.event_to_bytes(event)) for event in events]
        size = self._bytes + sum(len(data) for _, data in written)
        if self._logged != 1 or size > MOST_PACKED_BYTES:
            return False
        for name, data in written:
            self.add(name, data)
        self._held += len(written)
        return True

    def packed(self) -> bytes:
        """Give the log as one record, a fraction of its entries' size; nothing where it is not known, or large."""
        if self._logged != 1 or (self._bytes > MOST_PACKED_BYTES and not self._held):
            return b""
        return codec.pack_events([(TurnQueued.type, codec.event_to_bytes(TurnQueued())), *self._events])
