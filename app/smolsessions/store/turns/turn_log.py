"""Log of a turn: readers in this process, fed by its own writes and by one subscription."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Self
from weakref import WeakValueDictionary

from smolsessions.core.errors import DAMAGED, SealBrokenError, ServiceError, StoreUnavailableError, TurnNotFoundError
from smolsessions.core.events import FINAL, Event, Logged, TurnEnded, TurnWaiting
from smolsessions.core.records import Ref, Turn
from smolsessions.store import codec
from smolsessions.store.conversations.head import with_stored_images

if TYPE_CHECKING:
    from smolsessions.store.partition import Partition

log = logging.getLogger(__name__)

REREAD_S = 1.5  # messages may be lost: a reader without events reads the log, less and less often
LONGEST_REREAD_S = 12.0
SILENCE_S = 14.0  # proxies cut streams that are idle for longer
NEVER = 2**53  # cursor behind the end of any log
MOST_BUFFERED = 1000
MOST_READ = 500  # reading more events at once delays the event loop noticeably
CUT_SENTENCE = "The log of this turn does not hold the events that its record counts."
_FINAL_NAMES = frozenset(FINAL.values())


class LogPart(NamedTuple):
    """Events that were read from a log, the length of the whole log, and whether the turn waits for a person."""

    events: list[Logged]
    length: int
    waits: bool


class Readers:
    """Readers of one conversation in this process. Held by each reader, and by the lease of a running turn."""

    def __init__(self) -> None:
        self.members: set[LogReader] = set()
        self.following = 0
        """Number of readers that follow all events. Safe to read in any thread."""

    def deliver(self, turn: int, logged: Logged) -> None:
        for reader in self.members:
            reader.push(turn, logged)


class TurnLog:
    """Delivers new events of one partition's turns to the readers of this process."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._readers: WeakValueDictionary[Ref, Readers] = WeakValueDictionary()

    def readers(self, ref: Ref) -> Readers:
        """Return the readers of a conversation, the same object as long as it is in use."""
        readers = self._readers.get(ref)
        if readers is None:
            readers = self._readers[ref] = Readers()
        return readers

    def deliver(self, ref: Ref, turn: int, logged: Logged) -> None:
        if readers := self._readers.get(ref):
            readers.deliver(turn, logged)

    def hear(self, _channel: bytes, payload: bytes) -> None:
        """Deliver an event of another process. One that cannot be decoded makes all readers read the log."""
        try:
            name, turn, seq, event, blob = payload.split(b"\n", 4)
            ref = codec.ref_of(name.decode())
            if (readers := self._readers.get(ref)) and readers.members:
                readers.deliver(int(turn), Logged(int(seq), self.open_event(ref, int(turn), event.decode(), blob)))
        except (ServiceError, ValueError, TypeError):
            log.warning("a message of the store cannot be read", exc_info=True, extra={"action": "message.unreadable"})
            self.on_gap()

    def on_gap(self) -> None:
        """Make every reader read the log: messages may have been lost."""
        for readers in self._readers.values():
            for reader in readers.members:
                reader.look()

    def open_event(self, ref: Ref, turn: int, name: str, blob: bytes) -> Event:
        """Open an event. The blob of a final event is the turn's record. Raises `ValueError` for an unknown one."""
        scope = self._partition.scope(str(ref))
        if name not in _FINAL_NAMES:
            return codec.decode_event(name, scope.open(blob, "event", turn, name))
        result = codec.decode_turn(scope.open(blob, "turn", turn), ref, turn)
        if not result.outcome:
            raise SealBrokenError(DAMAGED)
        return TurnEnded(result)

    async def read(self, ref: Ref, turn: int, after: int) -> LogPart:
        """Read at most `MOST_READ` events after a cursor, and subscribe to later ones.

        A turn that is over always yields its final event, even if the log has expired or the cursor is behind it.
        """
        scope = self._partition.scope(str(ref))
        state, *rest = await scope.call(
            "read_log", turn=turn, after=after, most=MOST_READ, own_channel=self._partition.channel
        )
        if state == b"unknown":
            raise TurnNotFoundError
        record, entries, settings, length = rest
        scope.settings(settings)  # a fork needs its origins to open its first turns
        if state == b"packed":
            events = codec.unpack_events(scope.open(entries[0], "log", turn))
            found = [Logged(seq, event) for seq, event in enumerate(events, 1) if event and seq > after]
            found.append(self._final(ref, turn, record, len(events) + 1))
        else:
            final = self._final(ref, turn, record, after + 1) if state == b"over" else None
            found = self._opened(ref, turn, after, entries, record)
            is_misplaced = any(isinstance(logged.event, TurnEnded) and logged.seq != length for logged in found)
            if is_misplaced or (final and 0 < length < final.seq):
                raise SealBrokenError(CUT_SENTENCE)
            found = [final] if final and not entries else found
            if state == b"waiting" and after == NEVER:
                found = [Logged(length, TurnWaiting(0, ()))]
        if found and isinstance(ended := found[-1].event, TurnEnded):
            found[-1] = Logged(found[-1].seq, TurnEnded(await with_stored_images(scope, ended.result)))
        return LogPart(found, length, state == b"waiting")

    def _final(self, ref: Ref, turn: int, record: bytes, seq: int) -> Logged:
        event = self.open_event(ref, turn, FINAL["finished"], record)
        assert isinstance(event, TurnEnded)
        return Logged(event.result.last_seq or seq, event)

    def _opened(self, ref: Ref, turn: int, after: int, entries: list[bytes], record: bytes) -> list[Logged]:
        """Open entries, without events of a newer release."""
        found = []
        for seq, entry in enumerate(entries, after + 1):
            name, _, blob = entry.partition(b"\n")
            kind = codec.text(name)
            try:
                event = self.open_event(ref, turn, kind, record if kind in _FINAL_NAMES else blob)
            except ValueError:
                log.warning("an event %s cannot be read", name, extra={"action": "event.unreadable"})
            else:
                found.append(Logged(seq, event))
        return found


class LogReader:
    """Follows one turn. A gap in sequence numbers triggers a read of the log.

    It is registered while its context is open. One that `looks` begins with the stored log.
    """

    def __init__(self, log: TurnLog, ref: Ref, *, looks: bool, wants_all: bool) -> None:
        self._log = log
        self._readers = log.readers(ref)
        self._ref = ref
        self._events: list[tuple[int, Logged]] = []
        self._waiter: asyncio.Future[bool] | None = None
        self._must_read = looks
        self._stopped = False
        self._patience_s = REREAD_S
        self._wants_all = wants_all
        self.length = 0
        self.waits = False

    def __enter__(self) -> Self:
        self._readers.members.add(self)
        self._readers.following += self._wants_all
        return self

    def __exit__(self, *_: object) -> None:
        self._readers.members.discard(self)
        self._readers.following -= self._wants_all

    def push(self, turn: int, logged: Logged) -> None:
        if not self._wants_all and not isinstance(logged.event, TurnEnded | TurnWaiting):
            return
        if len(self._events) >= MOST_BUFFERED:
            self._events.clear()
            self._must_read = True
        self._events.append((turn, logged))
        self._wake()

    def look(self) -> None:
        self._must_read = True
        self._wake()

    def stop(self) -> None:
        self._stopped = True
        self._wake()

    async def follow(self, turn: int, after: int = 0) -> AsyncGenerator[Logged | None]:
        clock = asyncio.get_running_loop().time
        yielded_at = clock()
        while not self._stopped:
            for logged in await self._next(turn, after):
                if logged.seq > after:
                    after, yielded_at = logged.seq, clock()
                    yield logged
                if isinstance(logged.event, TurnEnded):
                    return
            if clock() + self._patience_s - yielded_at > SILENCE_S:  # the next wait would be too long
                yielded_at = clock()
                yield None

    async def end_of(self, turn: int, *, past_waits: bool) -> Turn | None:
        while not self._stopped:
            for logged in await self._next(turn, NEVER):
                if isinstance(logged.event, TurnEnded):
                    return logged.event.result
                if isinstance(logged.event, TurnWaiting) and not past_waits:
                    return None
        return None

    async def prepare(self, turn: int, after: int) -> None:
        with suppress(StoreUnavailableError):
            found, self.length, self.waits = await self._log.read(self._ref, turn, after)
            self._events[:0] = [(turn, logged) for logged in found]
            self._must_read = len(found) >= MOST_READ

    async def _next(self, turn: int, after: int) -> list[Logged]:
        while not self._must_read:
            while self._events:
                of, logged = self._events.pop(0)
                is_end = of == turn and isinstance(logged.event, TurnEnded | TurnWaiting) and logged.seq <= after
                if is_end or (of == turn and logged.seq == after + 1):
                    return [logged]
                self._must_read |= of == turn and logged.seq > after
            if not self._must_read and (self._stopped or not await self._heard()):
                break
        self._must_read = False
        if self._stopped:
            return []
        try:
            found, _, _ = await self._log.read(self._ref, turn, after)
        except StoreUnavailableError:
            self._must_read = True  # an outage delays the turn, too; the caller bounds the wait
            await self._heard()
            return []
        self._must_read = len(found) >= MOST_READ
        return found

    async def _heard(self) -> bool:
        """Wait for an event. Returns False after a timeout."""
        if self._stopped:
            return False
        # A future and a timer: with thousands of readers, an Event and a timeout cost 4 KB more each.
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiter = waiter
        timer = loop.call_later(self._patience_s, self._wake, False)
        try:
            heard = await waiter
        finally:
            timer.cancel()
            self._waiter = None
        self._patience_s = REREAD_S if heard else min(2 * self._patience_s, LONGEST_REREAD_S)
        return heard

    def _wake(self, heard: bool = True) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(heard)
