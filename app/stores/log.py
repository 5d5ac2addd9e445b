"""The log of a turn, read: one hub per process, fed by its own writes and by one subscription, and its readers."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from app.errors import ServiceError, StoreUnavailableError, TurnNotFoundError
from app.events import FINAL, Logged, TurnEnded
from app.stores import codec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from app.records import Ref
    from app.seal import Sealer
    from app.stores.script import Scripts

log = logging.getLogger(__name__)

REREAD_S = 1.5  # pub/sub may lose: a reader that hears nothing looks into the log itself
MOST_BUFFERED = 1000
_FINAL_NAMES = frozenset(FINAL.values())


class Log:
    """Delivers what is appended to turns' logs to the readers of this process."""

    def __init__(self, scripts: Scripts, sealer: Sealer, channel: str) -> None:
        self._scripts = scripts
        self._sealer = sealer
        self._channel = channel
        self._readers: defaultdict[Ref, set[Reader]] = defaultdict(set)

    @contextmanager
    def reader(self, ref: Ref, *, looks: bool) -> Iterator[Reader]:
        """Register a reader of one conversation; one that `looks` begins with what is in the log."""
        reader = Reader(self, ref, looks=looks)
        self._readers[ref].add(reader)
        try:
            yield reader
        finally:
            self._readers[ref].discard(reader)
            if not self._readers[ref]:
                del self._readers[ref]

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
        except (ServiceError, ValueError):
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
            record = self._sealer.open(blob, scope, "turn", turn)
            return Logged(seq, TurnEnded(codec.turn_from_bytes(record, ref, turn)))
        return Logged(seq, codec.event_from_bytes(name, self._sealer.open(blob, scope, "event", turn, name)))

    async def read(self, ref: Ref, turn: int, after: int) -> list[Logged]:
        """Read the log after a cursor, and be told from now on. A log that expired still gives its final event."""
        state, *rest = await self._scripts.call("watch", ref=str(ref), turn=turn, after=after, me=self._channel)
        if state == b"unknown":
            raise TurnNotFoundError
        record, entries = rest
        if state == b"open":
            return [self._opened(ref, turn, seq, entry, record) for seq, entry in enumerate(entries, after + 1)]
        # The final event always, so that a reader with a cursor beyond it ends.
        past = self._past(ref, turn, record, entries)
        return [logged for logged in past if logged.seq > after or isinstance(logged.event, TurnEnded)]

    def _past(self, ref: Ref, turn: int, record: bytes, entries: list[bytes]) -> list[Logged]:
        """Give the log of a turn that is over: packed, entry by entry, or expired."""
        name, _, blob = entries[0].partition(b"\n") if entries else (b"", b"", b"")
        if entries and name != b"packed":
            return [self._opened(ref, turn, seq, entry, record) for seq, entry in enumerate(entries, 1)]
        result = codec.turn_from_bytes(self._sealer.open(record, str(ref), "turn", turn), ref, turn)
        events = codec.unpack_events(self._sealer.open(blob, str(ref), "log", turn)) if entries else []
        past = [Logged(seq, event) for seq, event in enumerate(events, 1)]
        return [*past, Logged(result.last_seq or len(past) + 1, TurnEnded(result))]

    def _opened(self, ref: Ref, turn: int, seq: int, entry: bytes, record: bytes) -> Logged:
        name, _, blob = entry.partition(b"\n")
        return self.decode(ref, turn, seq, name.decode(), record if name.decode() in _FINAL_NAMES else blob)


class Reader:
    """Follows one turn. News that do not join on to what it has make it look into the log."""

    def __init__(self, log: Log, ref: Ref, *, looks: bool) -> None:
        self._log = log
        self._ref = ref
        self._news: deque[tuple[int, Logged]] = deque()
        self._woken = asyncio.Event()
        self._must_look = looks
        self._stopped = False

    def push(self, turn: int, logged: Logged) -> None:
        if len(self._news) >= MOST_BUFFERED:
            self._news.clear()
            self._must_look = True
        self._news.append((turn, logged))
        self._woken.set()

    def look(self) -> None:
        self._must_look = True
        self._woken.set()

    def stop(self) -> None:
        """Follow no longer: what is being followed ends without a final event."""
        self._stopped = True
        self._woken.set()

    async def follow(self, turn: int, after: int = 0) -> AsyncIterator[Logged]:
        """Yield events with `seq > after` in order, each once, up to the final one."""
        while not self._stopped:
            for logged in await self._next(turn, after):
                if logged.seq > after:
                    after = logged.seq
                    yield logged
                if isinstance(logged.event, TurnEnded):
                    return

    async def _next(self, turn: int, after: int) -> list[Logged]:
        while not self._must_look:
            while self._news:
                of, logged = self._news.popleft()
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
            return await self._log.read(self._ref, turn, after)
        except StoreUnavailableError:
            self._must_look = True  # the turn waits for the store too; how long its reader does is the caller's bound
            await self._heard()
            return []

    async def _heard(self) -> bool:
        if self._stopped:
            return False
        self._woken.clear()
        try:
            async with asyncio.timeout(REREAD_S):
                await self._woken.wait()
        except TimeoutError:
            return False
        return True
