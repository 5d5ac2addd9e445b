"""Lease for one conversation, held while one of its turns is played."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar

from smolsessions.core.errors import DAMAGED, LeaseLostError, SealBrokenError, StoreUnavailableError
from smolsessions.core.events import FINAL, Logged, TurnEnded
from smolsessions.core.records import Failure, Outcome
from smolsessions.store import codec
from smolsessions.store.seal import tag_of
from smolsessions.store.turns.claim_writer import PATIENCE_S, RETRY_S, ClaimWriter
from smolsessions.store.turns.turn_memory import TurnMemory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from smolsessions.core.events import Event, ReplayState
    from smolsessions.core.records import PackedStep, Turn
    from smolsessions.store.partition import Partition
    from smolsessions.store.turns.claim import Claim

T = TypeVar("T")

_REASONS: dict[bytes, Literal["interrupted", "rolled_back"]] = {b"interrupt": "interrupted", b"rollback": "rolled_back"}
_STRENGTH = ("cancelled", "interrupted", "rolled_back")
CANCEL = b"1"


class _RolledBackError(Exception):
    """A rollback was requested after the commit was prepared."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Request that a turn stops, made by turn `by`, or by a caller (0)."""

    reason: Literal["cancelled", "interrupted", "rolled_back"] = "cancelled"
    by: int = 0

    @classmethod
    def from_flag(cls, flag: bytes) -> StopRequest:
        """Parse `interrupt:N` or `rollback:N`. Everything else is a plain stop."""
        kind, _, number = flag.partition(b":")
        return cls(_REASONS[kind], int(number)) if kind in _REASONS and number.isdigit() else cls()

    def replaces(self, other: StopRequest) -> bool:
        """A rollback outranks an interrupt, which outranks a plain stop. The first of equals stays."""
        return _STRENGTH.index(self.reason) > _STRENGTH.index(other.reason)

    @property
    def rollback_by(self) -> int:
        return self.by if self.reason == "rolled_back" else 0

    def apply(self, outcome: Outcome) -> Outcome:
        """Name the stopping turn in the outcome. An interrupt keeps an outcome other than cancelled."""
        if not self.by:
            return outcome
        if self.reason == "rolled_back":
            failure = Failure("rolled_back", f"Turn {self.by} rolled this turn back; its steps are dropped.")
            return Outcome("cancelled", tool_calls=outcome.tool_calls, usage=outcome.usage, error=failure)
        if outcome.status != "cancelled":
            return outcome
        failure = Failure("interrupted", f"Turn {self.by} interrupted this turn; its finished steps are kept.")
        return replace(outcome, error=failure)


class HeldLease:
    """Fenced right of this worker to write one turn: emit, then commit."""

    def __init__(self, partition: Partition, claim: Claim) -> None:
        self.turn = claim.turn
        self.scope = str(claim.turn.ref)
        self.fence = claim.fence
        self.turn_input = claim.turn_input
        self.version = claim.version
        self.crashes = claim.crashes
        self.fingerprint = claim.fingerprint
        self.policy = claim.policy
        self._claim = claim
        self._partition = partition
        self._memory = TurnMemory(partition, claim.turn, claim.head, claim.chunks)
        self._writer = ClaimWriter(partition, claim)
        self._was_over = claim.turn.outcome is not None  # a damaged queue named the turn again
        self._stop_request = StopRequest()
        self.stop_reason = self._writer.stop_reason
        self.confirm = self._writer.confirm
        self.lose = self._writer.lose
        self.when_written = self._writer.when_written
        if claim.stop_flag:
            self.cancel(claim.stop_flag)

    @property
    def attempt(self) -> int:
        return self.turn.attempts

    @property
    def watched(self) -> bool:
        return self._claim.others_watch or self._partition.log.is_watched(self.turn.ref)

    @property
    def has_progressed(self) -> bool:
        return self._writer.has_progressed

    @property
    def backlog(self) -> int:
        return len(self._writer)

    @property
    def is_late(self) -> bool:
        return not self._writer.is_sure or self._writer.is_late

    @property
    def is_sure(self) -> bool:
        return self._writer.is_sure

    @property
    def is_over(self) -> bool:
        return self._writer.is_over

    @property
    def lost(self) -> bool:
        return self._writer.lost

    @property
    def kept_steps(self) -> int:
        return self._memory.new_steps

    @property
    def lacks_task(self) -> bool:
        return self._memory.lacks_task

    def cancel(self, why: bytes = CANCEL) -> None:
        """Ask the turn to stop."""
        request = StopRequest.from_flag(why)
        if request.replaces(self._stop_request):
            self._stop_request = request
        self._writer.stop(request.reason)

    def check_readable(self) -> None:
        if error := self._writer.defect or self._claim.flaw:
            raise error

    async def flush(self) -> None:
        await self._writer.written()
        self.check_readable()

    async def steps(self) -> tuple[list[bytes], dict[str, bytes]]:
        return await self._retry(self._memory.steps)

    async def variables(self) -> dict[str, bytes]:
        return await self._retry(self._memory.variables)

    async def load_replay_state(self) -> ReplayState:
        return await self._retry(lambda: self._memory.replay_state(self.fence))

    def buffer_events(self, events: Iterable[Event]) -> bool:
        return self._writer.defect is None and self._writer.log.hold(events)

    def emit(
        self, key: str, *, result: bytes = b"", step: PackedStep | None = None, events: Iterable[Event] = ()
    ) -> None:
        if self.is_over:
            return
        effect = self._seal(result, "effect", self.turn.number, key) if result else b""
        self._writer.put(key, effect, self._memory.seal_step(step) if step else ["", "", 0, 0], list(events))

    async def commit(self, outcome: Outcome) -> Turn:
        """Commit the turn, applying any pending stop request."""
        try:
            return await self._commit_as(outcome, self._stop_request)
        except _RolledBackError:
            return await self._commit_as(outcome, self._stop_request)

    async def _commit_as(self, outcome: Outcome, stop: StopRequest) -> Turn:
        writer, by = self._writer, stop.rollback_by
        turn = self.turn if self._was_over else self._ended(outcome, stop)
        # Sealed once: a retry must commit the same version as the first request, whose reply may be lost.
        record = self._seal(codec.encode_turn(turn), "turn", turn.number)
        chunk_list, head = (b"", b"") if by or writer.defect else self._memory.seal_head()
        packed = b"" if writer.defect else writer.log.packed()
        if packed:
            packed = self._seal(packed, "log", turn.number)
        try:
            await self._retry(lambda: self._commit(turn, record, chunk_list, head, packed, by=by))
        except SealBrokenError:
            writer.defect = writer.defect or SealBrokenError(DAMAGED)  # lets the next commit end the turn
            raise
        return turn

    def _ended(self, outcome: Outcome, stop: StopRequest) -> Turn:
        writer = self._writer
        return replace(
            self.turn,
            timing=replace(self.turn.timing, finished_at=time.time()),
            outcome=outcome if writer.defect else stop.apply(outcome),
            last_seq=(writer.last_seen if writer.defect else writer.log.last_seq) + 1,
            images=() if stop.rollback_by or self.lacks_task else self.turn.images,
        )

    async def _commit(
        self, turn: Turn, record: bytes, chunk_list: bytes, head: bytes, packed: bytes, *, by: int
    ) -> None:
        assert turn.outcome
        writer, is_broken = self._writer, self._writer.defect is not None
        writer.send()
        kept = self._memory.count_before if by else self._memory.count
        state, *rest = await self._partition.scripts.call(
            "commit",
            ref=self.scope,
            turn=turn.number,
            fence=self.fence,
            generation=self._memory.generation,
            count="" if is_broken else kept,
            head=head,
            variables=chunk_list,
            record=record,
            event="" if self._was_over else FINAL[turn.outcome.status],
            packed=packed,
            logged="" if is_broken else writer.log.stored,
            last_seq=turn.last_seq or 0,
            written=0 if is_broken else writer.made,
            rollback=by or "",
            own_channel=self._partition.channel,
            wake=self._partition.wake,
            log_ttl_s=self._partition.log_ttl_s,
        )
        self._check_committed(state, rest)
        self.version = tag_of(head) if head else self.version
        if state == b"ok":
            self._partition.log.deliver(turn.ref, turn.number, Logged(rest[0], TurnEnded(turn)))

    def _check_committed(self, state: bytes, rest: list[bytes]) -> None:
        """Raise the error of a refused commit."""
        if state in {b"behind", b"gap"} and len(self._writer):  # the store refused the writes before it
            raise StoreUnavailableError
        if state == b"behind":  # the store lost acknowledged writes: another claim replays from its state
            self._writer.lose()
        if state in {b"lost", b"behind"} or (state == b"gap" and self.lost):
            raise LeaseLostError
        if state == b"rollback":
            self.cancel(b"rollback:" + rest[0])
            raise _RolledBackError
        if state == b"gap":
            self._writer.mark_broken()
            self.check_readable()

    async def _retry(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Repeat an operation until the store answers, for at most `PATIENCE_S`: an outage is no fault of a turn."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await operation()
            except StoreUnavailableError:
                if time.monotonic() > give_up_at:
                    raise
            self._writer.resend_all()
            await asyncio.sleep(RETRY_S)

    def _seal(self, data: bytes, *place: str | int) -> bytes:
        return self._partition.sealer.seal(data, self.scope, *place)
