"""Ordered, fenced writes of one claim: buffered, sent in batches, and retried until the store answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from smolsessions.core.errors import LeaseLostError, SealBrokenError, StoreUnavailableError
from smolsessions.core.events import Logged, TurnQueued
from smolsessions.store import codec
from smolsessions.store.conversations.head import COUNT_SENTENCE
from smolsessions.store.scripts.loader import as_service_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from smolsessions.core.events import Event
    from smolsessions.core.store_ports import StopReason
    from smolsessions.store.connection.commands import Reply
    from smolsessions.store.partition import Partition
    from smolsessions.store.scripts.loader import Argument
    from smolsessions.store.turns.claim import Claim

log = logging.getLogger(__name__)

RETRY_S = 0.25
LATE_S = 0.05
PATIENCE_S = 600.0  # limit for a store outage; the turn's own deadline is shorter while the turn runs
HELD_SHARE = 0.8  # share of a lease's time during which it certainly holds
MOST_PACKED_BYTES = 256 * 1024  # sealing more delays the event loop noticeably


@dataclass(frozen=True, slots=True)
class Entry:
    """One write. `at` is its time on the monotonic clock."""

    serial: int
    at: float
    arguments: list[Argument]
    events: list[Event]
    is_effect: bool


class EventBuffer:
    """Events of one claim, counted and kept while they are small, so that the commit can pack the log."""

    def __init__(self, logged: int) -> None:
        """`logged` is the length of the log at the claim."""
        self._logged = logged
        self._events: list[tuple[str, bytes]] = []
        self._count = self._bytes = self._held = 0

    @property
    def stored(self) -> int:
        """Length of the log once all emitted events are written."""
        return self._logged + self._count - self._held

    @property
    def last_seq(self) -> int:
        """Number of the last event, held events included."""
        return self._logged + self._count

    def add(self, name: str, data: bytes) -> None:
        self._count += 1
        self._bytes += len(data)
        self._events.append((name, data))
        if self._bytes > MOST_PACKED_BYTES and not self._held:
            self._events.clear()

    def hold(self, events: Iterable[Event]) -> bool:
        """Keep events for the packed log alone. Returns False if they must be written one by one."""
        encoded = [(event.type, codec.encode_event(event)) for event in events]
        size = self._bytes + sum(len(data) for _, data in encoded)
        if self._logged != 1 or size > MOST_PACKED_BYTES:
            return False
        for name, data in encoded:
            self.add(name, data)
        self._held += len(encoded)
        return True

    def packed(self) -> bytes:
        """Return the log as one record, or nothing if it is large or was begun by an earlier attempt."""
        if self._logged != 1 or (self._bytes > MOST_PACKED_BYTES and not self._held):
            return b""
        return codec.pack_events([(TurnQueued.type, codec.encode_event(TurnQueued())), *self._events])


class ClaimWriter:
    """Buffer of the writes of one claim, numbered from 1 on.

    After a lost connection all unanswered writes are sent again. The store ignores those that it has.
    """

    def __init__(self, partition: Partition, claim: Claim) -> None:
        self.stop_reason: asyncio.Future[StopReason] = asyncio.get_running_loop().create_future()
        self.log = EventBuffer(claim.logged)
        self.last_seen = claim.logged
        self.defect = claim.defect
        self.lost = False
        self.has_progressed = False
        self.made = 0
        self._partition = partition
        self._ref, self._scope, self._turn = claim.turn.ref, str(claim.turn.ref), claim.turn.number
        self._target: dict[str, Argument] = {
            "ref": self._scope,
            "turn": self._turn,
            "fence": claim.fence,
            "generation": claim.head.generation,
            "own_channel": partition.channel,
            "lease_us": int(partition.lease_s * 1_000_000),
        }
        self._loop = asyncio.get_running_loop()
        self._entries: deque[Entry] = deque()
        self._unsent = 0
        self._callbacks: deque[tuple[int, Callable[[], object]]] = deque()
        self._is_delay_logged = False
        self._held_until = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_late(self) -> bool:
        """True if the oldest write has no answer yet for long. Safe in any thread."""
        try:
            return time.monotonic() - self._entries[0].at > LATE_S
        except IndexError:
            return False

    @property
    def is_sure(self) -> bool:
        return time.monotonic() <= self._held_until

    @property
    def is_over(self) -> bool:
        return self.lost or self.defect is not None

    def confirm(self, at: float) -> None:
        """Note that a request sent `at` (monotonic clock) found the lease held."""
        self._held_until = max(self._held_until, at + HELD_SHARE * self._partition.lease_s)

    def stop(self, reason: StopReason) -> None:
        if not self.stop_reason.done():
            self.stop_reason.set_result(reason)

    def lose(self) -> None:
        """Stop writing: another worker holds the lease."""
        self.lost = True
        self.stop("lost")
        self._discard()

    def mark_broken(self) -> None:
        """Stop writing: the store holds less than was written."""
        self.defect = SealBrokenError(COUNT_SENTENCE)
        self.stop("broken")
        self._discard()

    def put(self, key: str, effect: bytes, step: list[Argument], events: list[Event]) -> None:
        """Queue one write. All writes of one round of the event loop are sent together."""
        arguments: list[Argument] = [key, effect, self.log.stored if events else "", *step, len(events)]
        for event in events:
            data = codec.encode_event(event)
            self.log.add(event.type, data)
            sealed = self._partition.sealer.seal(data, self._scope, "event", self._turn, event.type)
            arguments += [event.type, sealed]
        self.made += 1
        self._entries.append(Entry(self.made, time.monotonic(), arguments, events, bool(effect)))
        self._unsent += 1
        if self._unsent == 1:
            self._loop.call_soon(self.send)

    def when_written(self, call: Callable[[], object]) -> None:
        """Call once all writes so far are written or discarded."""
        if self._entries:
            self._callbacks.append((self.made, call))
        else:
            call()

    async def written(self) -> None:
        """Wait until all writes so far are written."""
        done = asyncio.Event()
        self.when_written(done.set)
        try:
            await asyncio.wait_for(done.wait(), PATIENCE_S)
        except TimeoutError:
            raise StoreUnavailableError from None
        if self.lost:
            raise LeaseLostError

    def resend_all(self) -> None:
        """Mark all unanswered writes as unsent: the connection was lost."""
        self._unsent = len(self._entries)

    def send(self) -> None:
        """Send all unsent writes."""
        if not self._unsent:
            return
        batch = list(self._entries)[-self._unsent :]
        self._unsent = 0
        sent_at = time.monotonic()
        arguments = [argument for entry in batch for argument in entry.arguments]
        reply = self._partition.scripts.send("emit", *arguments, serial=batch[0].serial, **self._target)
        reply.add_done_callback(lambda reply: self._on_reply(reply, batch, sent_at))

    def _on_reply(self, reply: Reply, batch: list[Entry], sent_at: float) -> None:
        error = reply.exception()
        if isinstance(error, ResponseError):
            error = as_service_error("emit", error)
        if isinstance(error, SealBrokenError):
            self.mark_broken()
            return
        state, *rest = (b"failed",) if error else reply.result()
        is_oldest = bool(self._entries) and self._entries[0].serial == batch[0].serial
        if state == b"lost" or (state == b"behind" and is_oldest):
            self.lose()  # behind: the store lost acknowledged writes, so another claim replays from its state
        elif state == b"gap":
            self.mark_broken()
        elif state != b"ok":
            self._retry_later(error or state)
        else:
            self._on_written(batch, rest[0], sent_at)

    def _retry_later(self, why: Any) -> None:
        if not self._is_delay_logged:  # once for each outage
            log.warning("a write of turn %s waits: %s", f"{self._scope}#{self._turn}", why)
        self._is_delay_logged = True
        self.resend_all()
        self._loop.call_later(RETRY_S, self.send)  # always: no other call may be scheduled

    def _on_written(self, batch: list[Entry], seqs: list[int], sent_at: float) -> None:
        """Deliver new events to the readers of this process. The number of a repeated event is 0."""
        while self._entries and self._entries[0].serial <= batch[-1].serial:
            self._entries.popleft()
        self._unsent = min(self._unsent, len(self._entries))
        self._is_delay_logged = False
        self.confirm(sent_at)
        self.has_progressed |= any(entry.is_effect for entry in batch)
        for seq, event in zip(seqs, (event for entry in batch for event in entry.events), strict=True):
            if seq:
                self.last_seen = seq
                self._partition.log.deliver(self._ref, self._turn, Logged(seq, event))
        self._run_callbacks()

    def _discard(self) -> None:
        self._entries.clear()
        self._unsent = 0
        self._run_callbacks()

    def _run_callbacks(self) -> None:
        first = self._entries[0].serial if self._entries else self.made + 1
        while self._callbacks and self._callbacks[0][0] < first:
            self._callbacks.popleft()[1]()
