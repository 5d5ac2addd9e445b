"""A claimed turn's writes: emitted in order, fenced, and its one commit."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from smolsessions.core.errors import DAMAGED, LeaseLostError, SealBrokenError, StoreUnavailableError
from smolsessions.core.events import FINAL, Logged, TurnEnded
from smolsessions.core.records import AgentName, AgentVersion, Head, Timing, Turn, TurnInput, TurnOptions
from smolsessions.store import codec
from smolsessions.store.conversations.head import COUNT_SENTENCE, open_head, open_pieces
from smolsessions.store.seal import tag_of
from smolsessions.store.turns.backlog import RETRY_S, Backlog
from smolsessions.store.turns.event_buffer import EventBuffer
from smolsessions.store.turns.stop_reasons import CANCEL, as_stopped, rolled_back, stop_of
from smolsessions.store.turns.turn_memory import TurnMemory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from smolsessions.core.events import Event
    from smolsessions.core.policies import Policy
    from smolsessions.core.records import Outcome, PackedStep
    from smolsessions.core.replay_state import ReplayState
    from smolsessions.core.store_ports import StopReason
    from smolsessions.store.connection.pipeline import Reply
    from smolsessions.store.partition import Partition
    from smolsessions.store.scripts.loader import Argument
    from smolsessions.store.turns.backlog import Entry
    from smolsessions.store.turns.stop_reasons import Stop

T = TypeVar("T")

PATIENCE_S = 600.0  # how long a turn waits for a store that is away; its own deadline comes first while it plays
HELD_SHARE = 0.8  # of a lease, after which it is no longer taken for certain


class _RolledBackError(Exception):
    """The commit does not know that the turn is to be rolled back."""


class HeldLease:
    """This worker's fenced right to one conversation while it plays one turn of it."""

    def __init__(
        self,
        partition: Partition,
        *,
        scope: str,
        fence: str,
        turn: Turn,
        turn_input: TurnInput,
        head: Head,
        version: bytes,
        logged: int,
        others_watch: bool,
        pieces: dict[str, bytes],
        defect: SealBrokenError | None,
        flaw: SealBrokenError | None,
        crashes: int,
        fingerprint: str,
        policy: Policy | None,
    ) -> None:
        self.scope = scope
        self.fence = fence
        self.turn = turn
        self.turn_input = turn_input
        self.version = version
        self.crashes = crashes
        self.fingerprint = fingerprint
        self.policy = policy
        self.has_progressed = False
        self.stop_reason: asyncio.Future[StopReason] = asyncio.get_running_loop().create_future()
        self._partition = partition
        self._keeping = TurnMemory(partition, turn, head, pieces)
        self._backlog = Backlog(self, f"{scope}#{turn.number}")
        self._told = EventBuffer(logged)
        self._last_seen = logged
        self._others_watch = others_watch
        self._held_until = 0.0
        self._lost = False
        self._defect = defect
        self._flaw = flaw
        self._was_over = turn.outcome is not None  # claimed again because its conversation's queue was damaged
        self._wish: Stop | None = None

    @property
    def attempt(self) -> int:
        return self.turn.attempts

    @property
    def watched(self) -> bool:
        return self._others_watch or self._partition.log.is_watched(self.turn.ref)

    @property
    def backlog(self) -> int:
        return len(self._backlog)

    @property
    def is_late(self) -> bool:
        return not self.is_sure or self._backlog.is_late

    @property
    def is_sure(self) -> bool:
        return time.monotonic() <= self._held_until

    @property
    def is_over(self) -> bool:
        return self._lost or self._defect is not None

    @property
    def lost(self) -> bool:
        """The store has said that another one holds the conversation."""
        return self._lost

    @property
    def kept_steps(self) -> int:
        return self._keeping.new_steps

    @property
    def lacks_task(self) -> bool:
        return self._keeping.lacks_task

    def confirm(self, at: float) -> None:
        """The store has said that the lease was held, to a question that was asked `at` (of the monotonic clock)."""
        self._held_until = max(self._held_until, at + HELD_SHARE * self._partition.lease_s)

    def lose(self) -> None:
        """Another one holds the conversation now."""
        self._lost = True
        self._stop("lost")
        self._backlog.give_up()

    def found_gap(self) -> None:
        """What is stored is less than was written: nothing more is."""
        self._defect = SealBrokenError(COUNT_SENTENCE)
        self._stop("broken")
        self._backlog.give_up()

    def cancel(self, why: bytes = CANCEL) -> None:
        """Somebody wants the turn to stop."""
        wish = stop_of(why)
        if wish.replaces(self._wish):
            self._wish = wish
        self._stop(wish.reason)

    def check_readable(self) -> None:
        """Raise the `SealBrokenError` of what was claimed, or of what stands in the store behind it."""
        if error := self._defect or self._flaw:
            raise error

    async def flush(self) -> None:
        """Wait until all that was emitted is written."""
        written = asyncio.Event()
        self.when_written(written.set)
        try:
            await asyncio.wait_for(written.wait(), PATIENCE_S)
        except TimeoutError:
            raise StoreUnavailableError from None
        if self._lost:
            raise LeaseLostError
        self.check_readable()

    def when_written(self, call: Callable[[], object]) -> None:
        self._backlog.when_written(call)

    async def steps(self) -> tuple[list[bytes], dict[str, bytes]]:
        """Load what the model is shown at the turn's start."""
        return await self._patiently(self._keeping.steps)

    async def variables(self) -> dict[str, bytes]:
        """Load the variables' pieces of the turn's start."""
        return await self._patiently(self._keeping.variables)

    async def load_replay_state(self) -> ReplayState:
        """Load what earlier attempts left, and take it over."""
        return await self._patiently(lambda: self._keeping.past(self.fence))

    def buffer_events(self, events: Iterable[Event]) -> bool:
        """Keep events for the packed log alone."""
        return self._defect is None and self._told.hold(events)

    def emit(
        self, key: str, *, result: bytes = b"", step: PackedStep | None = None, events: Iterable[Event] = ()
    ) -> None:
        """Queue one write; it is sent with whatever else this turn writes in the same round of the loop."""
        if self.is_over:
            return
        told = list(events)
        sealed = self._seal(result, "effect", self.turn.number, key) if result else b""
        arguments: list[Argument] = [key, sealed, self._told.stored if told else ""]
        arguments += self._keeping.seal_step(step) if step else ["", "", 0, 0]
        arguments.append(len(told))
        for event in told:
            data = codec.event_to_bytes(event)
            self._told.add(event.type, data)
            arguments += [event.type, self._seal(data, "event", self.turn.number, event.type)]
        self._backlog.put(arguments, told, is_effect=bool(result))

    def send(self, serial: int, arguments: list[Argument]) -> Reply:
        """Send entries of the backlog."""
        return self._partition.scripts.send(
            "emit",
            *arguments,
            ref=self.scope,
            turn=self.turn.number,
            fence=self.fence,
            generation=self._keeping.generation,
            me=self._partition.channel,
            lease_us=int(self._partition.lease_s * 1_000_000),
            serial=serial,
        )

    def written(self, entries: list[Entry], seqs: list[int], sent_at: float) -> None:
        """Tell the readers of this process what the store has now."""
        self.confirm(sent_at)
        self.has_progressed |= any(entry.is_effect for entry in entries)
        for seq, event in zip(seqs, (event for entry in entries for event in entry.events), strict=True):
            if seq:
                self._last_seen = seq
                self._partition.log.deliver(self.turn.ref, self.turn.number, Logged(seq, event))

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
        images = () if by or self.lacks_task else self.turn.images
        last_seq = (self._last_seen if self._defect else self._told.last_seq) + 1
        turn = replace(self.turn, timing=timing, outcome=outcome, last_seq=last_seq, images=images)
        turn = self.turn if self._was_over else turn
        # Sealed once: a second try must leave the same version behind as the first, whose answer may be lost.
        record = self._seal(codec.turn_to_bytes(turn), "turn", turn.number)
        variables, head = (b"", b"") if by or self._defect else self._keeping.seal_head()
        packed = b"" if self._defect else self._told.packed()
        if packed:
            packed = self._seal(packed, "log", self.turn.number)
        try:
            await self._patiently(lambda: self._commit(turn, record, variables, head, packed, by=by))
        except SealBrokenError:
            self._defect = self._defect or SealBrokenError(DAMAGED)  # the next try ends it in spite of that
            raise
        return turn

    async def _commit(
        self, turn: Turn, record: bytes, variables: bytes, head: bytes, packed: bytes, *, by: int
    ) -> None:
        assert turn.outcome
        self._backlog.send()
        kept = self._keeping.count_before if by else self._keeping.count
        state, *rest = await self._partition.scripts.call(
            "commit",
            ref=self.scope,
            turn=turn.number,
            fence=self.fence,
            generation=self._keeping.generation,
            count="" if self._defect else kept,
            head=head,
            variables=variables,
            record=record,
            event="" if self._was_over else FINAL[turn.outcome.status],
            packed=packed,
            logged="" if self._defect else self._told.stored,
            last_seq=turn.last_seq or 0,
            written=0 if self._defect else self._backlog.made,
            rollback=by or "",
            me=self._partition.channel,
            wake=self._partition.wake,
            log_ttl_s=self._partition.log_ttl_s,
        )
        if state in {b"behind", b"gap"} and self._backlog:  # not written yet, for the store refused it
            raise StoreUnavailableError
        if state == b"behind":  # it went back behind what it had acknowledged: it is played on from what is there
            self.lose()
        if state in {b"lost", b"behind"} or (state == b"gap" and self._lost):
            raise LeaseLostError
        if state == b"rollback":
            self.cancel(b"rollback:" + rest[0])
            raise _RolledBackError
        if state == b"gap":
            self.found_gap()
            self.check_readable()
        self.version = tag_of(head) if head else self.version
        if state == b"ok":
            self._partition.log.deliver(turn.ref, turn.number, Logged(rest[0], TurnEnded(turn)))

    async def _patiently(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Ask again until the store has answered, for a bounded time: an outage is no fault of a turn."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await operation()
            except StoreUnavailableError:
                if time.monotonic() > give_up_at:
                    raise
            self._backlog.send_again()
            await asyncio.sleep(RETRY_S)

    def _stop(self, reason: StopReason) -> None:
        if not self.stop_reason.done():
            self.stop_reason.set_result(reason)

    def _seal(self, data: bytes, *place: str | int) -> bytes:
        return self._partition.sealer.seal(data, self.scope, *place)


def open_lease(  # noqa: PLR0917 - the order is that of claim.lua's answer
    partition: Partition,
    name: bytes,
    number: bytes,
    fence: bytes,
    attempt: int,
    passed_us: int,
    record: bytes,
    turn_input: bytes,
    generation: bytes,
    head: bytes,
    stored: int,
    logged: int,
    why: bytes,
    watchers: list[bytes],
    variables: bytes,
    counted: int,
    fingerprint: bytes,
    terms: bytes,
    flaw: bytes,
) -> HeldLease:
    """Open what a claim gave; what cannot be opened is a lease with a defect, so that its turn can be ended."""
    scope, turn = codec.text(name), codec.number(number)
    ref, seal = codec.ref_of(scope), partition.sealer
    played = Turn(ref, turn, AgentVersion(AgentName(""), "", ""), "", TurnOptions(), Timing(time.time()))
    opened_input, opened_head, defect = TurnInput(), Head(), None
    pieces: dict[str, bytes] = {}
    policy = None
    try:
        policy = seal.terms(scope, terms).policy
        opened_head = open_head(seal, scope, generation, head)
        pieces = open_pieces(seal, scope, opened_head, variables)
        played = codec.turn_from_bytes(seal.open(record, scope, "turn", turn), ref, turn)
        opened_input = codec.input_from_bytes(seal.open(turn_input, scope, "input", turn))
    except SealBrokenError as error:
        defect = error
    except (ValueError, TypeError, KeyError) as error:  # sealed, but not as this release writes it
        defect = SealBrokenError(f"a stored record cannot be read ({type(error).__name__})")
    defect = defect or (SealBrokenError(DAMAGED) if played.outcome else None)
    # Behind the head there is a tail only where an earlier attempt left one.
    if not defect and (stored < opened_head.count or (attempt == 1 and stored > opened_head.count)):
        defect = SealBrokenError(COUNT_SENTENCE)
    lease = HeldLease(
        partition,
        scope=scope,
        fence=fence.decode(),
        turn=codec.started(played, time.time() - passed_us / 1_000_000, attempt),
        turn_input=opened_input,
        head=opened_head,
        version=tag_of(head) if head else b"",
        logged=logged,
        others_watch=any(channel != partition.channel.encode() for channel in watchers),
        pieces=pieces,
        defect=defect,
        flaw=SealBrokenError(DAMAGED) if flaw else None,
        crashes=counted,
        fingerprint=fingerprint.decode(errors="replace"),
        policy=policy,
    )
    if why:
        lease.cancel(why)
    return lease
