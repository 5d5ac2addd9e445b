"""The log of a turn, read: one hub per process, fed by its own writes and by one subscription, and its readers."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from smolsessions.core.errors import DAMAGED, SealBrokenError, ServiceError, StoreUnavailableError, TurnNotFoundError
from smolsessions.core.events import FINAL, Logged, TurnEnded
from smolsessions.store import codec
from smolsessions.store.conversations.head import with_stored_images

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from smolsessions.core.records import Ref, Turn
    from smolsessions.store.conversation_sealer import ConversationSealer
    from smolsessions.store.scripts.loader import Scripts

log = logging.getLogger(__name__)

REREAD_S = 1.5  # pub/sub may lose: a reader that hears nothing looks into the log itself, less and less often
LONGEST_REREAD_S = 12.0
SILENCE_S = 14.0  # after which a reader is told of it: proxies cut streams that are idle for longer
NEVER = 2**53  # a cursor that no log reaches
MOST_BUFFERED = 1000
MOST_READ = 500  # events in one go: more are felt on the loop
CUT_SENTENCE = "The log of this turn does not hold the events that its record counts."
_FINAL_NAMES = frozenset(FINAL.values())


class TurnLog:
    """Delivers what is appended to turns' logs to the readers of this process."""

    def __init__(self, scripts: Scripts, sealer: ConversationSealer, channel: str) -> None:
        self._scripts = scripts
        self._sealer = sealer
        self._channel = channel
        self._readers: defaultdict[Ref, set[LogReader]] = defaultdict(set)

    @contextmanager
    def reader(self, ref: Ref, *, looks: bool, wants_all: bool) -> Iterator[LogReader]:
        """Register a reader of one conversation; one that `looks` begins with what is in the log."""
        reader = LogReader(self, ref, looks=looks, wants_all=wants_all)
        self._readers[ref].add(reader)
        try:
            yield reader
        finally:
            self._readers[ref].discard(reader)
            if not self._readers[ref]:
                del self._readers[ref]

    def is_watched(self, ref: Ref) -> bool:
        """Tell whether somebody in this process wants to see events as they happen. For any thread."""
        for reader in tuple(self._readers.get(ref, ())):  # noqa: SIM110 - asked for every event, and `any` costs thrice
            if reader.wants_all:
                return True
        return False

    def deliver(self, ref: Ref, turn: int, logged: Logged) -> None:
        """Tell the readers of this process what it has just written."""
        for reader in self._readers.get(ref, ()):
            reader.push(turn, logged)

    def on_message(self, _channel: bytes, payload: bytes) -> None:
        """Take what another process appended."""
        name, turn, seq, event, blob = payload.split(b"\n", 4)
        ref = codec.ref_of(name.decode())
        if ref in self._readers:
            number = int(turn)
            self.deliver(ref, number, self.decode(ref, number, int(seq), event.decode(), blob))

    def hear(self, channel: bytes, payload: bytes) -> None:
        """Take a message, whatever it is: one that cannot be read (a newer release's) makes readers look."""
        try:
            self.on_message(channel, payload)
        except (ServiceError, ValueError, TypeError):
            log.warning("a message of the store cannot be read", exc_info=True, extra={"action": "message.unreadable"})
            self.on_gap()

    def on_gap(self) -> None:
        """The subscription was interrupted: every reader looks for itself."""
        for readers in self._readers.values():
            for reader in readers:
                reader.look()

    def decode(self, ref: Ref, turn: int, seq: int, name: str, blob: bytes) -> Logged:
        """Open an event; the blob of a final one is the turn's record."""
        scope = str(ref)
        if name in _FINAL_NAMES:
            return Logged(seq, TurnEnded(self._ended(ref, turn, blob)))
        return Logged(seq, codec.event_from_bytes(name, self._sealer.open(blob, scope, "event", turn, name)))

    async def read(self, ref: Ref, turn: int, after: int) -> list[Logged]:
        """Read the log after a cursor, at most `MOST_READ` events, and be told from now on.

        Of a turn that is over the final event is there in any case: where the log has expired, too, and for a cursor
        beyond it.
        """
        state, *rest = await self._scripts.call(
            "watch", ref=str(ref), turn=turn, after=after, most=MOST_READ, me=self._channel
        )
        if state == b"unknown":
            raise TurnNotFoundError
        record, entries, terms, length = rest
        self._sealer.terms(str(ref), terms)  # of a fork: where its first turns come from
        if state == b"packed":
            found = self._unpacked(ref, turn, record, entries[0], after)
            return await self._with_stored_images(found)
        final = self._final(ref, turn, record, after + 1) if state == b"over" else None
        if final and length and length < final.seq:
            raise SealBrokenError(CUT_SENTENCE)
        opened = [self._opened(ref, turn, seq, entry, record) for seq, entry in enumerate(entries, after + 1)]
        if any(logged and isinstance(logged.event, TurnEnded) and logged.seq != length for logged in opened):
            raise SealBrokenError(CUT_SENTENCE)
        found = [final] if final and not entries else [logged for logged in opened if logged]
        return await self._with_stored_images(found)

    async def _with_stored_images(self, found: list[Logged]) -> list[Logged]:
        if found and isinstance(final := found[-1].event, TurnEnded):
            found[-1] = Logged(found[-1].seq, TurnEnded(await with_stored_images(self._scripts, final.result)))
        return found

    def _unpacked(self, ref: Ref, turn: int, record: bytes, packed: bytes, after: int) -> list[Logged]:
        events = codec.unpack_events(self._sealer.open(packed, str(ref), "log", turn))
        past = [Logged(seq, event) for seq, event in enumerate(events, 1) if event and seq > after]
        return [*past, self._final(ref, turn, record, len(events) + 1)]

    def _final(self, ref: Ref, turn: int, record: bytes, seq: int) -> Logged:
        result = self._ended(ref, turn, record)
        return Logged(result.last_seq or seq, TurnEnded(result))

    def _ended(self, ref: Ref, turn: int, record: bytes) -> Turn:
        """Open the record of a turn whose log says that it is over."""
        result = codec.turn_from_bytes(self._sealer.open(record, str(ref), "turn", turn), ref, turn)
        if not result.outcome:
            raise SealBrokenError(DAMAGED)
        return result

    def _opened(self, ref: Ref, turn: int, seq: int, entry: bytes, record: bytes) -> Logged | None:
        """Open an entry; nothing for an event that only a newer release knows."""
        name, _, blob = entry.partition(b"\n")
        kind = codec.text(name)
        try:
            return self.decode(ref, turn, seq, kind, record if kind in _FINAL_NAMES else blob)
        except ValueError:
            log.warning("an event %s cannot be read", name, extra={"action": "event.unreadable"})
            return None


class LogReader:
    """Follows one turn. News that do not join on to what it has make it look into the log."""

    def __init__(self, log: TurnLog, ref: Ref, *, looks: bool, wants_all: bool) -> None:
        self._log = log
        self._ref = ref
        self._news: list[tuple[int, Logged]] = []
        self._waiter: asyncio.Future[bool] | None = None
        self._must_look = looks
        self._stopped = False
        self._patience_s = REREAD_S
        self.wants_all = wants_all

    def push(self, turn: int, logged: Logged) -> None:
        if not self.wants_all and not isinstance(logged.event, TurnEnded):
            return
        if len(self._news) >= MOST_BUFFERED:
            self._news.clear()
            self._must_look = True
        self._news.append((turn, logged))
        self._wake()

    def look(self) -> None:
        self._must_look = True
        self._wake()

    def stop(self) -> None:
        """Follow no longer: what is being followed ends without a final event."""
        self._stopped = True
        self._wake()

    async def follow(self, turn: int, after: int = 0) -> AsyncIterator[Logged | None]:
        """Yield events with `seq > after` in order, each once, up to the final one; None after every silence."""
        clock = asyncio.get_running_loop().time
        said_at = clock()
        while not self._stopped:
            for logged in await self._next(turn, after):
                if logged.seq > after:
                    after, said_at = logged.seq, clock()
                    yield logged
                if isinstance(logged.event, TurnEnded):
                    return
            if clock() - said_at > SILENCE_S:
                said_at = clock()
                yield None

    async def end_of(self, turn: int) -> Turn | None:
        """Wait for the final event; nothing where the reader is stopped."""
        while not self._stopped:
            for logged in await self._next(turn, NEVER):
                if isinstance(logged.event, TurnEnded):
                    return logged.event.result
        return None

    async def prepare(self, turn: int, after: int) -> None:
        """Look into the log once, so that one that cannot be read is an error before anything of it is told."""
        with suppress(StoreUnavailableError):
            found = await self._log.read(self._ref, turn, after)
            self._news[:0] = [(turn, logged) for logged in found]
            self._must_look = len(found) >= MOST_READ

    async def _next(self, turn: int, after: int) -> list[Logged]:
        while not self._must_look:
            while self._news:
                of, logged = self._news.pop(0)
                is_end = of == turn and isinstance(logged.event, TurnEnded) and logged.seq <= after
                if is_end or (of == turn and logged.seq == after + 1):
                    return [logged]
                self._must_look |= of == turn and logged.seq > after
            if not self._must_look and (self._stopped or not await self._heard()):
                break
        self._must_look = False
        if self._stopped:
            return []
        try:
            found = await self._log.read(self._ref, turn, after)
        except StoreUnavailableError:
            self._must_look = True  # the turn waits for the store too; how long its reader does is the caller's bound
            await self._heard()
            return []
        self._must_look = len(found) >= MOST_READ
        return found

    async def _heard(self) -> bool:
        """Wait for news; False after a while without."""
        if self._stopped:
            return False
        # A future and a timer: an Event and a timeout cost thousands of readers 4 KB more, each.
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
