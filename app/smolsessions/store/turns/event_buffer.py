"""Events of one claim on their way to the turn's log."""

from __future__ import annotations

from collections.abc import Sequence

from smolsessions.core.events import Event, TurnQueued
from smolsessions.store import codec

MOST_PACKED_BYTES = 256 * 1024  # sealing more delays the event loop noticeably


class EventBuffer:
    """Events of one claim, counted, and kept while they are small, so that the commit can pack the log.

    A turn without a reader then seals its log once. One by one, its events cost 9 % more instructions of a turn.
    `stored` is the length of the log once all emitted events are written. `last_seq` counts held events, too.
    """

    def __init__(self, logged: int) -> None:
        """`logged` is the length of the log at the claim. A log that an earlier attempt began is not packed."""
        self.stored = self.last_seq = logged
        self._is_small = logged == 1
        self._events: list[tuple[str, bytes]] = [(TurnQueued.type, codec.encode_event(TurnQueued()))]
        self._bytes = 0

    def add(self, event: Event) -> bytes:
        """Count an event that is written, and return it encoded. None follows a held one."""
        data = codec.encode_event(event)
        self.stored += 1
        self.last_seq += 1
        self._bytes += len(data)
        self._is_small &= self._bytes <= MOST_PACKED_BYTES
        if self._is_small:
            self._events.append((event.type, data))
        else:
            self._events.clear()
        return data

    def hold(self, events: Sequence[Event]) -> bool:
        """Keep events for the packed log alone. Returns False if they must be written one by one."""
        encoded = [(event.type, codec.encode_event(event)) for event in events]
        size = self._bytes + sum([len(data) for _, data in encoded])
        if not self._is_small or size > MOST_PACKED_BYTES:
            return False
        self._events += encoded
        self._bytes = size
        self.last_seq += len(encoded)
        return True

    def packed(self) -> bytes:
        """Return the log as one record, or nothing if it is large or was begun by an earlier attempt."""
        return codec.pack_events(self._events) if self._is_small else b""
