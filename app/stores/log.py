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
    def reader(self, ref: Ref) -> Iterator[Reader]:
        """Register a reader of one conversation."""
        reader = Reader(self, ref)
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
        found = []
        for seq, entry in enumerate(entries, after + 1):
            name, _, blob = entry.partition(b"\n")
            final = name.decode() in _FINAL_NAMES
            found.append(self.decode(ref, turn, seq, name.decode(), record if final else blob))
        if state == b"over" and not entries:
            result = codec.turn_from_bytes(self._sealer.open(record, str(ref), "turn", turn), ref, turn)
            found.append(Logged(after + 1, TurnEnded(result)))
        return found


class Reader:
    """Follows one turn. News that do not join on to what it has make it look into the log."""

    def __init__(self, log: Log, ref: Ref) -> None:
        self._log = log
        self._ref = ref
        self._news: deque[tuple[int, Logged]] = deque()
        self._woken = asyncio.Event()
        self._must_look = False

    def push(self, turn: int, logged: Logged) -> None:
        if len(self._news) >= MOST_BUFFERED:
            self._news.clear()
            self._must_look = True
        self._news.append((turn, logged))
        self._woken.set()

    def look(self) -> None:
        self._must_look = True
        self._woken.set()

    async def follow(self, turn: int, after: int = 0) -> AsyncIterator[Logged]:
        """Yield events with `seq > after` in order, each once, up to the final one."""
        while True:
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
                if of == turn and logged.seq == after + 1:
                    return [logged]
                self._must_look |= of == turn and logged.seq > after
            if not self._must_look and not await self._heard():
                break
        self._must_look = False
        try:
            return await self._log.read(self._ref, turn, after)
        except StoreUnavailableError:
            self._must_look = True  # the turn waits for the store too; how long its reader does is the caller's bound
            await self._heard()
            return []

    async def _heard(self) -> bool:
        self._woken.clear()
        try:
            async with asyncio.timeout(REREAD_S):
                await self._woken.wait()
        except TimeoutError:
            return False
        return True
