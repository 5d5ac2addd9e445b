"""Log of a turn: events as stored, and readers in this process, fed by its writes and by one subscription."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import NamedTuple, Self

from smolsessions.core.errors import DAMAGED, SealBrokenError, ServiceError, StoreUnavailableError, TurnNotFoundError
from smolsessions.core.events import FINAL, Event, Logged, TurnEnded, TurnWaiting
from smolsessions.core.records import Turn
from smolsessions.store import codec
from smolsessions.store.conversations.stored_steps import with_stored_images
from smolsessions.store.partition import Partition, Scope

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
    """Events that were read from a log, the length of the whole log, and whether the turn waits for a person.

    `last` counts the entries up to the last one that was read, also those of a newer release.
    """

    events: list[Logged]
    length: int
    waits: bool
    last: int = 0


def hear_event(partition: Partition, payload: bytes) -> None:
    """Deliver an event of another process. One that cannot be decoded makes all readers read the log."""
    try:
        name, number, seq, kind, blob = payload.split(b"\n", 4)
        scope, turn = partition.scope(name.decode()), int(number)
        readers = partition.readers.get(codec.ref_of(scope.name))
        if readers and readers.members:
            readers.deliver(turn, Logged(int(seq), open_event(scope, turn, kind.decode(), blob)))
    except (ServiceError, ValueError, TypeError):
        log.warning("a message of the store cannot be read", exc_info=True, extra={"action": "message.unreadable"})
        partition.on_gap()


def open_event(scope: Scope, turn: int, name: str, blob: bytes) -> Event:
    """Open an event. The blob of a final event is the turn's record. Raises `ValueError` for an unknown one."""
    if name not in _FINAL_NAMES:
        return codec.decode_event(name, scope.open(blob, "event", turn, name))
    result = codec.decode_turn(scope.open(blob, "turn", turn), codec.ref_of(scope.name), turn)
    if not result.outcome:
        raise SealBrokenError(DAMAGED)
    return TurnEnded(result)


async def read_log(scope: Scope, turn: int, after: int) -> LogPart:
    """Read at most `MOST_READ` events after a cursor, and subscribe to later ones.

    A turn that is over always yields its final event, even if the log has expired or the cursor is behind it.
    """
    channel = scope.partition.channel
    state, *rest = await scope.call("read_log", turn=turn, after=after, most=MOST_READ, own_channel=channel)
    if state == b"unknown":
        raise TurnNotFoundError
    record, entries, settings, length = rest
    scope.settings(settings)  # a fork needs its origins to open its first turns
    found: list[Logged] = []
    last = 0
    if state == b"packed":
        events = codec.unpack_events(scope.open(entries[0], "log", turn))
        found = [Logged(seq, event) for seq, event in enumerate(events, 1) if event and seq > after]
        entries, following = [], len(events) + 1
        length = following
    else:
        following, last = after + 1, after + len(entries)
        for seq, entry in enumerate(entries, following):
            name, _, blob = entry.partition(b"\n")
            kind = codec.text(name)
            try:
                found.append(Logged(seq, open_event(scope, turn, kind, record if kind in _FINAL_NAMES else blob)))
            except ValueError:  # of a newer release
                log.warning("an event %s cannot be read", name, extra={"action": "event.unreadable"})
        if any(isinstance(logged.event, TurnEnded) and logged.seq != length for logged in found):
            raise SealBrokenError(CUT_SENTENCE)
        if state == b"waiting" and after == NEVER:
            found = [Logged(length, TurnWaiting(0, ()))]
    if state in {b"packed", b"over"}:
        ended = open_event(scope, turn, FINAL["finished"], record)
        assert isinstance(ended, TurnEnded)
        seq = ended.result.last_seq or following
        if state == b"over" and 0 < length < seq:
            raise SealBrokenError(CUT_SENTENCE)
        if not entries:
            found.append(Logged(seq, ended))
    if found and isinstance(ended := found[-1].event, TurnEnded):
        found[-1] = Logged(found[-1].seq, TurnEnded(await with_stored_images(scope, ended.result)))
    return LogPart(found, length, state == b"waiting", last)


class LogReader:
    """Follows one turn. A gap in sequence numbers triggers a read of the log.

    It is registered while its context is open. One that `reads_log` begins with the stored log.
    """

    def __init__(self, scope: Scope, *, reads_log: bool, all_events: bool) -> None:
        self._scope = scope
        self._readers = scope.partition.readers_of(codec.ref_of(scope.name))
        self._events: list[tuple[int, Logged]] = []
        self._waiter: asyncio.Future[bool] | None = None
        self._must_read = reads_log
        self._passed = 0  # entries of the log that were read, also those that this release cannot open
        self._stopped = False
        self._patience_s = REREAD_S
        self._all_events = all_events
        self.length = 0
        self.waits = False

    def __enter__(self) -> Self:
        self._readers.members.add(self)
        self._readers.following += self._all_events
        return self

    def __exit__(self, *_: object) -> None:
        self._readers.members.discard(self)
        self._readers.following -= self._all_events

    def push(self, turn: int, logged: Logged) -> None:
        if not self._all_events and not isinstance(logged.event, TurnEnded | TurnWaiting):
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
            after = max(after, self._passed)
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
            found, self.length, self.waits, last = await read_log(self._scope, turn, after)
            self._events[:0] = [(turn, logged) for logged in found]
            self._must_read = last - after >= MOST_READ

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
            found, _, _, last = await read_log(self._scope, turn, after)
        except StoreUnavailableError:
            self._must_read = True  # an outage delays the turn, too; the caller bounds the wait
            await self._heard()
            return []
        self._must_read = last - after >= MOST_READ
        if after != NEVER:
            self._passed = last
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
