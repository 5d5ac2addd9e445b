"""A claimed turn's writes: emitted in order, idempotent by key, and its one commit."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from app.errors import LeaseLostError, SealBrokenError, StoreUnavailableError
from app.events import FINAL, Logged, TurnEnded, TurnQueued
from app.past import Past
from app.records import AgentName, AgentVersion, Head, Timing, Turn, TurnInput, TurnOptions
from app.seal import tag_of
from app.stores import codec
from app.stores.head import (
    VARIABLES_SENTENCE,
    extend_hash,
    extended,
    hidden_so_far,
    load_images,
    open_head,
    open_pieces,
)
from app.stores.stops import CANCEL, as_stopped, rolled_back, stop_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from app.events import Event
    from app.ports import StopReason
    from app.records import Outcome, PackedStep, StoredStep
    from app.stores.connection import Answer
    from app.stores.desk import Desk
    from app.stores.script import Argument
    from app.stores.stops import Stop

T = TypeVar("T")

log = logging.getLogger(__name__)

PATIENCE_S = 600.0  # how long a turn waits for a store that is away; its own deadline comes first while it plays
RETRY_S = 0.25
LATE_S = 0.05
HELD_SHARE = 0.8  # of a lease, after which it is no longer taken for certain
MOST_AT_ONCE = 200  # events of a log that are opened in one go
MOST_PACKED_BYTES = 256 * 1024  # sealing more is felt on the loop
COUNT_SENTENCE = "The stored steps of this conversation are not those that its head was sealed over."


@dataclass(frozen=True, slots=True)
class _Entry:
    """One write, numbered from 1 on."""

    serial: int
    at: float
    arguments: list[Argument]
    events: list[Event]
    is_effect: bool


class _RolledBackError(Exception):
    """The commit does not know that the turn is to be rolled back."""


class HeldLease:
    """This worker's fenced right to one conversation while it plays one turn of it.

    Entries stay in the backlog until the store has answered for them; a lost connection sends the whole backlog again,
    in order, and what had arrived is a no-op there.
    """

    def __init__(
        self,
        desk: Desk,
        *,
        scope: str,
        fence: str,
        turn: Turn,
        given: TurnInput,
        head: Head,
        version: bytes,
        logged: int,
        others_watch: bool,
        pieces: dict[str, bytes],
        defect: SealBrokenError | None,
        counted: int,
        fingerprint: str,
    ) -> None:
        self.counted = counted
        self.fingerprint = fingerprint
        self.grew = False
        self._held_until = 0.0
        self.scope = scope
        self.fence = fence
        self.turn = turn
        self.given = given
        self.version = version
        self._desk = desk
        self._loop = asyncio.get_running_loop()
        self._head_before = head
        self._start = self._head = hidden_so_far(head) if turn.options.reset else head
        self._backlog: deque[_Entry] = deque()
        self._emitted = 0
        self._unsent = 0
        self._lost = False
        self._defect = defect
        self._awaited: deque[tuple[int, Callable[[], object]]] = deque()
        self._logged = logged
        self._others_watch = others_watch
        self._pieces_before = pieces
        self._pieces = dict(pieces)
        self._told: list[tuple[str, bytes]] = []
        self._told_count = self._told_bytes = 0
        self._held = 0
        self._last_seen = logged
        self._wish: Stop | None = None
        self.stopped: asyncio.Future[StopReason] = self._loop.create_future()

    @property
    def attempt(self) -> int:
        return self.turn.attempts

    @property
    def watched(self) -> bool:
        return self._others_watch or self._desk.log.is_watched(self.turn.ref)

    def hold(self, events: Iterable[Event]) -> bool:
        """Keep events for the packed log alone."""
        written = [(event.type, codec.event_to_bytes(event)) for event in events]
        size = self._told_bytes + sum(len(data) for _, data in written)
        if self._logged != 1 or self._defect or size > MOST_PACKED_BYTES:
            return False
        for name, data in written:
            self._remember(name, data)
        self._held += len(written)
        return True

    @property
    def backlog(self) -> int:
        return len(self._backlog)

    @property
    def is_late(self) -> bool:
        oldest, now = next(iter(self._backlog.copy()), None), time.monotonic()
        return now > self._held_until or (oldest is not None and now - oldest.at > LATE_S)

    @property
    def is_over(self) -> bool:
        return self._lost or self._defect is not None

    def confirm(self, at: float) -> None:
        """The store has said that the lease was held, to a question that was asked `at` (of the monotonic clock)."""
        self._held_until = max(self._held_until, at + HELD_SHARE * self._desk.lease_s)

    @property
    def lost(self) -> bool:
        """The store has said that another one holds the conversation."""
        return self._lost

    def lose(self) -> None:
        """Another one holds the conversation now."""
        self._lost = True
        self._stop("lost")
        self._give_up()

    def cancel(self, why: bytes = CANCEL) -> None:
        """Somebody wants the turn to stop."""
        wish = stop_of(why)
        if wish.replaces(self._wish):
            self._wish = wish
        self._stop(wish.reason)

    def _stop(self, reason: StopReason) -> None:
        if not self.stopped.done():
            self.stopped.set_result(reason)

    def check(self) -> None:
        """Raise the `SealBrokenError` of what was claimed, or of what stands in the store behind it."""
        if self._defect:
            raise self._defect

    def when_written(self, call: Callable[[], object]) -> None:
        if self._backlog:
            self._awaited.append((self._emitted, call))
        else:
            call()

    async def settled(self) -> None:
        """Wait until all that was emitted is written."""
        written = asyncio.Event()
        self.when_written(written.set)
        try:
            await asyncio.wait_for(written.wait(), PATIENCE_S)
        except TimeoutError:
            raise StoreUnavailableError from None
        if self._lost:
            raise LeaseLostError
        self.check()

    async def steps(self) -> tuple[list[bytes], dict[str, bytes]]:
        """Load what the model is shown at the turn's start; a gap, a swap or a cut is a `SealBrokenError`."""
        head = self._start
        blobs = await self._patiently(lambda: self._load(head.shown_from, head.count))
        running = head.shown_hash
        steps = []
        for index, blob in enumerate(blobs, head.shown_from):
            running = extend_hash(running, blob)
            steps.append(self._open_step(blob, index))
        if running != head.hash or len(blobs) != head.count - head.shown_from:
            raise SealBrokenError(COUNT_SENTENCE)
        images = await self._patiently(lambda: load_images(self._desk, self.scope, steps))
        return [step.data for step in steps], images

    async def variables(self) -> dict[str, bytes]:
        """Load the pieces of the turn's start; one that is missing or not in the sealed list is a SealBrokenError."""
        if not self._pieces_before:
            return {}
        kept, _ = await self._patiently(self._load_variables)
        if {name: tag_of(blob) for name, blob in kept.items()} != self._pieces_before:
            raise SealBrokenError(VARIABLES_SENTENCE)
        return {name: self._open_piece(name, blob) for name, blob in kept.items()}

    async def past(self) -> Past:
        """Load what earlier attempts left; their finished steps, and variables, are taken over with it."""
        journal, log, tail = await self._patiently(self._load_past)
        _, fresh = await self._patiently(self._load_variables)
        steps = []
        for index, blob in enumerate(tail, self._head.count):
            steps.append(self._open_step(blob, index))
            self._head = extended(self._head, steps[-1].type, blob)
        for name, blob in fresh.items():
            if blob:
                self._open_piece(name, blob)
            self._note_piece(name, blob)
        written = {name.decode(): blob for name, blob in zip(journal[::2], journal[1::2], strict=True)}
        return Past(
            effects={name: self._open_effect(name, blob) for name, blob in written.items() if blob},
            begun=frozenset(name for name, blob in written.items() if not blob),
            events=await self._opened(log),
            steps=tuple(step.data for step in steps),
            attachments=await self._patiently(lambda: load_images(self._desk, self.scope, steps)),
        )

    @property
    def kept_steps(self) -> int:
        before, now = self._head_before.step_counts, self._head.step_counts
        return sum(now.get(kind, 0) - before.get(kind, 0) for kind in ("planning", "action"))

    def emit(
        self, key: str, *, result: bytes = b"", step: PackedStep | None = None, events: Iterable[Event] = ()
    ) -> None:
        """Queue one write; it is sent with whatever else this turn writes in the same round of the loop."""
        if self._lost or self._defect:
            return
        told = list(events)
        sealed = self._seal(result, "effect", self.turn.number, key) if result else b""
        arguments: list[Argument] = [key, sealed, self._logged + self._told_count - self._held if told else ""]
        arguments += self._sealed_step(step) if step else ["", "", 0, 0]
        arguments.append(len(told))
        for event in told:
            data = codec.event_to_bytes(event)
            self._remember(event.type, data)
            arguments += [event.type, self._seal(data, "event", self.turn.number, event.type)]
        self._emitted += 1
        self._backlog.append(_Entry(self._emitted, time.monotonic(), arguments, told, is_effect=bool(result)))
        self._unsent += 1
        if self._unsent == 1:
            self._loop.call_soon(self._send)

    async def commit(self, outcome: Outcome) -> Turn:
        """End the turn, as whoever wanted it stopped wants it."""
        try:
            return await self._commit_as(outcome, self._wish)
        except _RolledBackError:
            return await self._commit_as(outcome, self._wish)

    async def _commit_as(self, outcome: Outcome, wish: Stop | None) -> Turn:
        outcome = outcome if self._defect else as_stopped(outcome, wish)
        by = rolled_back(wish)
        timing = replace(self.turn.timing, finished_at=time.time())
        last_seq = (self._last_seen if self._defect else self._logged + self._told_count) + 1
        turn = replace(self.turn, timing=timing, outcome=outcome, last_seq=last_seq)
        # Sealed once: a second try must leave the same version behind as the first, whose answer may be lost.
        record = self._seal(codec.turn_to_bytes(turn), "turn", turn.number)
        variables, head = (b"", b"") if by else self._sealed_head()
        packed = self._packed()
        await self._patiently(lambda: self._commit(turn, record, variables, head, packed, by=by))
        return turn

    def _remember(self, name: str, data: bytes) -> None:
        """Keep an event for the packed log, as long as that stays small."""
        self._told_count += 1
        self._told_bytes += len(data)
        self._told.append((name, data))
        if self._told_bytes > MOST_PACKED_BYTES and not self._held:
            self._told.clear()

    def _sealed_head(self) -> tuple[bytes, bytes]:
        """Seal the list of the variables' pieces and the head, each if it changed."""
        variables = b""
        if self._pieces != self._pieces_before:
            variables = self._seal(codec.pieces_to_bytes(self._pieces), "variables", self._head.generation)
            self._head = replace(self._head, variables=tag_of(variables))
        if self._head == self._head_before or self._defect:
            return b"", b""
        return variables, self._seal(codec.head_to_bytes(self._head), "head")

    def _packed(self) -> bytes:
        """Seal the log as one record, a fraction of its entries' size; a first attempt knows it from the beginning."""
        if self._logged != 1 or self._defect or (self._told_bytes > MOST_PACKED_BYTES and not self._held):
            return b""
        events = [(TurnQueued.type, codec.event_to_bytes(TurnQueued())), *self._told]
        return self._seal(codec.pack_events(events), "log", self.turn.number)

    async def _patiently(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Ask again until the store has answered, for a bounded time: an outage is no fault of a turn."""
        give_up_at = self._loop.time() + PATIENCE_S
        while True:
            try:
                return await operation()
            except StoreUnavailableError:
                if self._loop.time() > give_up_at:
                    raise
            self._unsent = len(self._backlog)
            await asyncio.sleep(RETRY_S)

    async def _commit(
        self, turn: Turn, record: bytes, variables: bytes, head: bytes, packed: bytes, *, by: int
    ) -> None:
        assert turn.outcome
        self._send()
        kept = self._head_before.count if by else self._head.count
        event = FINAL[turn.outcome.status]
        state, *rest = await self._desk.scripts.call(
            "commit",
            ref=self.scope,
            turn=turn.number,
            fence=self.fence,
            generation=self._head.generation,
            count="" if self._defect else kept,
            head=head,
            variables=variables,
            record=record,
            event=event,
            packed=packed,
            logged="" if self._defect else self._logged + self._told_count - self._held,
            last_seq=turn.last_seq or 0,
            rollback=by or "",
            me=self._desk.channel,
            wake=self._desk.wake,
            log_ttl_s=self._desk.log_ttl_s,
        )
        if state == b"lost":
            raise LeaseLostError
        if state == b"rollback":
            self.cancel(b"rollback:" + rest[0])
            raise _RolledBackError
        if state == b"gap":
            if self._backlog:  # not written yet, for the store refused it: no tampering
                raise StoreUnavailableError
            self._found_gap()
            self.check()
        self.version = tag_of(head) if head else self.version
        if state == b"ok":
            self._desk.log.deliver(turn.ref, turn.number, Logged(rest[0], TurnEnded(turn)))

    def _send(self) -> None:
        if not self._unsent:
            return
        batch = list(self._backlog)[-self._unsent :]
        self._unsent = 0
        answer = self._desk.scripts.send(
            "emit",
            *(argument for entry in batch for argument in entry.arguments),
            ref=self.scope,
            turn=self.turn.number,
            fence=self.fence,
            generation=self._head.generation,
            me=self._desk.channel,
            serial=batch[0].serial,
        )
        answer.add_done_callback(lambda answer: self._answered(answer, batch))

    def _answered(self, answer: Answer, batch: list[_Entry]) -> None:
        error = answer.exception()
        state, *rest = (b"failed",) if error else answer.result()
        if state == b"lost":
            self.lose()
        elif state == b"gap":
            self._found_gap()
        elif state != b"ok":
            log.warning("a write of turn %s#%d waits: %s", self.scope, self.turn.number, error or state)
            if not self._unsent:
                self._loop.call_later(RETRY_S, self._send)
            self._unsent = len(self._backlog)
        else:
            self._note_written(batch, rest[0])

    def _found_gap(self) -> None:
        self._defect = SealBrokenError(COUNT_SENTENCE)
        self._stop("broken")
        self._give_up()

    def _give_up(self) -> None:
        """Write nothing of what waits."""
        self._backlog.clear()
        self._unsent = 0
        self._tell_awaiting()

    def _note_written(self, batch: list[_Entry], seqs: list[int]) -> None:
        while self._backlog and self._backlog[0].serial <= batch[-1].serial:
            self.grew |= self._backlog.popleft().is_effect
        self._unsent = min(self._unsent, len(self._backlog))
        for seq, event in zip(seqs, (event for entry in batch for event in entry.events), strict=True):
            if seq:
                self._last_seen = seq
                self._desk.log.deliver(self.turn.ref, self.turn.number, Logged(seq, event))
        self._tell_awaiting()

    def _tell_awaiting(self) -> None:
        first = self._backlog[0].serial if self._backlog else self._emitted + 1
        while self._awaited and self._awaited[0][0] < first:
            self._awaited.popleft()[1]()

    def _sealed_step(self, step: PackedStep) -> list[Argument]:
        index = self._head.count
        blob = self._seal(codec.step_to_bytes(step), "step", self._head.generation, index)
        self._head = extended(self._head, step.type, blob)
        sealed: list[Argument] = [index, blob, len(step.attachments)]
        for name, data in step.attachments.items():
            sealed += [name, self._seal(data, "image", name)]
        sealed.append(len(step.variables))
        for name, piece in step.variables.items():
            blob = b"" if piece is None else self._seal(piece, "variable", self._head.generation, name)
            self._note_piece(name, blob)
            sealed += [name, blob]
        return sealed

    def _note_piece(self, name: str, blob: bytes) -> None:
        self._pieces.pop(name, None)
        if blob:
            self._pieces[name] = tag_of(blob)

    def _open_piece(self, name: str, blob: bytes) -> bytes:
        return self._desk.sealer.open(blob, self.scope, "variable", self._head.generation, name)

    async def _load_variables(self) -> tuple[dict[str, bytes], dict[str, bytes]]:
        call = self._desk.scripts.call
        kept, fresh = await call("variables", ref=self.scope, generation=self._head.generation)
        found = {name.decode(): blob for name, blob in zip(kept[::2], kept[1::2], strict=True) if name}
        return found, {name.decode(): blob for name, blob in zip(fresh[::2], fresh[1::2], strict=True)}

    def _seal(self, data: bytes, *place: str | int) -> bytes:
        return self._desk.sealer.seal(data, self.scope, *place)

    def _open_step(self, blob: bytes, index: int) -> StoredStep:
        opened = self._desk.sealer.open(blob, self.scope, "step", self._head.generation, index)
        return codec.step_from_bytes(opened, index)

    def _open_effect(self, key: str, blob: bytes) -> bytes:
        return self._desk.sealer.open(blob, self.scope, "effect", self.turn.number, key)

    async def _opened(self, log: list[bytes]) -> tuple[Event, ...]:
        events = []
        for entry in log:
            events.append(self._open_event(entry))
            if len(events) % MOST_AT_ONCE == 0:
                await asyncio.sleep(0)  # others want the loop, too
        return tuple(events)

    def _open_event(self, entry: bytes) -> Event:
        name, _, blob = entry.partition(b"\n")
        return self._desk.log.decode(self.turn.ref, self.turn.number, 0, name.decode(), blob).event

    async def _load_past(self) -> tuple[list[bytes], list[bytes], list[bytes]]:
        state, *found = await self._desk.scripts.call(
            "past",
            ref=self.scope,
            turn=self.turn.number,
            fence=self.fence,
            generation=self._head.generation,
            first=self._head.count,
        )
        if state == b"lost":
            raise LeaseLostError
        journal, log, tail = found
        return journal, log, tail

    async def _load(self, first: int, end: int) -> list[bytes]:
        if end <= first:
            return []
        found = await self._desk.scripts.call("steps", ref=self.scope, first=first, last=end - 1)
        if not found:
            raise LeaseLostError
        blobs: list[bytes] = found[3]
        return blobs


def open_lease(  # noqa: PLR0917 - the order is that of claim.lua's answer
    desk: Desk,
    name: bytes,
    number: bytes,
    fence: bytes,
    attempt: int,
    started: bytes,
    record: bytes,
    given: bytes,
    generation: bytes,
    head: bytes,
    stored: int,
    logged: int,
    why: bytes,
    watchers: list[bytes],
    variables: bytes,
    counted: int,
    fingerprint: bytes,
) -> HeldLease:
    """Open what a claim gave; what cannot be opened is a lease with a defect, so that its turn can be ended."""
    scope, turn = name.decode(), int(number)
    ref, seal = codec.ref_of(scope), desk.sealer
    played = Turn(ref, turn, AgentVersion(AgentName(""), "", ""), "", TurnOptions(), Timing(time.time()))
    opened_input, opened_head, defect = TurnInput(), Head(int(generation)), None
    pieces: dict[str, bytes] = {}
    try:
        played = codec.turn_from_bytes(seal.open(record, scope, "turn", turn), ref, turn)
        opened_input = codec.input_from_bytes(seal.open(given, scope, "input", turn))
        opened_head = open_head(seal, scope, generation, head)
        pieces = open_pieces(seal, scope, opened_head, variables)
    except SealBrokenError as error:
        defect = error
    except (ValueError, TypeError, KeyError) as error:  # sealed, but not as this release writes it
        defect = SealBrokenError(f"a stored record cannot be read ({type(error).__name__})")
    # Behind the head there is a tail only where an earlier attempt left one.
    if not defect and (stored < opened_head.count or (attempt == 1 and stored > opened_head.count)):
        defect = SealBrokenError(COUNT_SENTENCE)
    lease = HeldLease(
        desk,
        scope=scope,
        fence=fence.decode(),
        turn=codec.started(played, time.time() if attempt == 1 else int(started) / 1_000_000, attempt),
        given=opened_input,
        head=opened_head,
        version=tag_of(head) if head else b"",
        logged=logged,
        others_watch=any(channel.decode() != desk.channel for channel in watchers),
        pieces=pieces,
        defect=defect,
        counted=counted,
        fingerprint=fingerprint.decode(),
    )
    if why:
        lease.cancel(why)
    return lease
