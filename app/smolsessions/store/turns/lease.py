"""Lease for one conversation: the fenced writes of one turn, buffered, sent in batches, and retried until committed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from smolsessions.core.callers import Caller
from smolsessions.core.errors import DAMAGED, HistoryGoneError, LeaseLostError, SealBrokenError, StoreUnavailableError
from smolsessions.core.events import FINAL, Event, Logged, ReplayState, TurnEnded, TurnWaiting
from smolsessions.core.journal_keys import joined_turn, journal_key
from smolsessions.core.memories import PackedStep
from smolsessions.core.records import Outcome, Suspension, Turn, TurnInput
from smolsessions.core.store_ports import StopReason
from smolsessions.store import codec
from smolsessions.store.connection.commands import Reply
from smolsessions.store.conversations.head import COUNT_SENTENCE
from smolsessions.store.conversations.staging import keep_chunks, stage_chunks, staged_keys
from smolsessions.store.partition import Scope, SealedMetadata
from smolsessions.store.scripts.loader import Argument, as_service_error
from smolsessions.store.seal import tag_of
from smolsessions.store.turns import chunk_writes, steering
from smolsessions.store.turns.claim import STRENGTH, Claim, StopRequest
from smolsessions.store.turns.event_buffer import EventBuffer
from smolsessions.store.turns.steering import STEER
from smolsessions.store.turns.turn_memory import TurnMemory
from smolsessions.store.turns.write_queue import Write, WriteQueue

T = TypeVar("T")
log = logging.getLogger(__name__)

RETRY_S = 0.25
LATE_S = 0.05
PATIENCE_S = 600.0  # limit for a store outage; the turn's own deadline is shorter while the turn runs
HELD_SHARE = 0.8  # share of a lease's time during which it certainly holds


class HeldLease:
    """Fenced right of this worker to write one turn: emit, then commit.

    After a lost connection all unanswered writes are sent again.
    """

    def __init__(self, scope: Scope, claim: Claim) -> None:
        reply = claim.reply
        self.turn = claim.turn
        self.attempt = reply.attempt
        self.turn_input = claim.turn_input
        metadata = SealedMetadata(reply.conversation, scope)
        self.caller = Caller(claim.turn.ref.owner, claim.turn.ref.id, claim.turn_input.claims, metadata)
        self.head_tag = tag_of(reply.head)
        self.crashes = reply.crashes
        self.fingerprint = reply.fingerprint.decode(errors="replace")
        self.settings = claim.settings
        self.stop_reason: asyncio.Future[StopReason] = asyncio.get_running_loop().create_future()
        self.has_progressed = self.lost = self._is_delay_logged = False
        self.is_over = claim.defect is not None
        self.on_reader: Callable[[], object] | None = None
        self.scope = scope
        self._memory = TurnMemory(scope, claim)
        self._log = EventBuffer(reply.logged)
        self._last_seen = reply.logged
        self._defect = claim.defect
        self._has_flaw = bool(reply.flaw)
        self._readers = scope.partition.readers_of(claim.turn.ref)
        own = b"+" + scope.partition.channel.encode()
        self._others_watch = any(each.startswith(b"+") and each != own for each in reply.watchers)
        self._stop_request = StopRequest()
        self._target: dict[str, Argument] = {
            "ref": scope.name,
            "turn": self.turn.number,
            "fence": reply.fence.decode(),
            "own_channel": scope.partition.channel,
        }
        self._writes = WriteQueue()
        self.steers = False
        self.steered: tuple[Turn, ...] = ()
        self._joining: dict[int, Turn] = {}
        self._held_until = 0.0
        if reply.stop_flag:
            self.hear(reply.stop_flag)

    @property
    def fence(self) -> str:
        return str(self._target["fence"])

    @property
    def watched(self) -> bool:
        return self._others_watch or self._readers.following > 0

    @property
    def backlog(self) -> int:
        return len(self._writes)

    @property
    def is_late(self) -> bool:
        oldest = self._writes.oldest
        return not self.is_sure or (oldest is not None and time.monotonic() - oldest.at > LATE_S)

    @property
    def is_sure(self) -> bool:
        return time.monotonic() <= self._held_until

    @property
    def kept_steps(self) -> int:
        return self._memory.kept_steps

    @property
    def lacks_task(self) -> bool:
        return self._memory.lacks_task

    def confirm(self, at: float) -> None:
        """Note that a request sent `at` (monotonic clock) found the lease held."""
        self._held_until = max(self._held_until, at + HELD_SHARE * self.scope.partition.options.lease_s)

    def hear(self, flag: bytes) -> None:
        """Take a stop flag, or the news that a message is to join."""
        if flag == STEER:
            self.steers = True
        else:
            self.cancel(flag)

    def cancel(self, flag: bytes = b"1") -> None:
        request = StopRequest.from_flag(flag)
        if STRENGTH.index(request.reason) > STRENGTH.index(self._stop_request.reason):
            self._stop_request = request
        self._stop(request.reason)

    def hear_reader(self) -> None:
        self._others_watch = True
        if self.on_reader:
            self.on_reader()

    def lose(self) -> None:
        """Stop writing: another worker holds the lease."""
        self.lost = True
        self._discard("lost")

    def check_readable(self) -> None:
        if error := self._defect or (SealBrokenError(DAMAGED) if self._has_flaw else None):
            raise error

    async def steps(self) -> tuple[list[bytes], dict[str, bytes]]:
        return await self._retry(self._memory.steps)

    async def variables(self) -> dict[str, bytes]:
        return await self._retry(self._memory.variables)

    async def load_replay_state(self, *, effects: bool = True) -> ReplayState:
        state = await self._retry(partial(self._memory.replay_state, self.fence, effects=effects))
        chunk_writes.move(self._writes, *self._memory.staged)
        return state

    async def load_steering(self) -> list[tuple[Turn, TurnInput]]:
        self.steers = False
        load = partial(steering.load, self.scope, self.turn, self.turn_input.claims, self.fence)
        joining, more = await self._retry(load)
        self.steers = self.steers or more
        if joining is None:
            self.lose()
            return []
        new = [(turn, turn_input) for turn, turn_input in joining if turn.number not in self._joining]
        self._joining |= {turn.number: turn for turn, _ in new}
        return new

    def buffer_events(self, events: Sequence[Event]) -> bool:
        return self._defect is None and self._log.hold(events)

    def compress(self, step: PackedStep | None, result: bytes) -> None:
        self._memory.compress(step, result)

    def emit(
        self,
        key: str,
        *,
        result: bytes = b"",
        step: PackedStep | None = None,
        events: Sequence[Event] = (),
        media: Mapping[str, bytes] | None = None,
    ) -> None:
        if self.is_over:
            return
        number, seal = self.turn.number, self._memory.seal
        # A letter for each part, of which prelude.lua has the list.
        parts, staged, mark = "l" if events else "", list[Argument](), ""
        arguments: list[Argument] = [self._log.stored, ""] if events else []
        if step:
            parts += "s" + "i" * len(step.attachments)
            arguments += self._memory.seal_step(step)
            chunks = self._memory.seal_chunks(step.variables)
            if chunk_writes.are_many(chunks):
                staged, mark = chunk_writes.stage(self._writes, self.fence.partition(":")[0], chunks)
                chunks = ["", mark]
            parts += "v" * (len(chunks) // 2)
            arguments += chunks
        if media:
            parts += "i" * len(media)
            for name, data in media.items():
                arguments += [name, seal(data, "image", name)]
        if self._joining and (joined := joined_turn(key)):
            ended = self._joining[joined]
            self.steered = (*self.steered, ended)
            parts += "t"
            arguments += [joined, seal(codec.encode_turn(ended), "turn", joined)]
        if key:
            parts += "k"
            arguments += [key, seal(result, "effect", number, key) if result else b""]
        for event in events:
            arguments += [event.type, seal(self._log.add(event), "event", number, event.type)]
        self._writes.add(parts + "e" * len(events), arguments, events, is_effect=bool(result))
        if mark:
            chunk_writes.move(self._writes, staged, mark)

    def when_written(self, call: Callable[[], object]) -> None:
        self._writes.when_written(call)

    async def flush(self) -> None:
        self.send()
        done = asyncio.Event()
        self.when_written(done.set)
        try:
            await asyncio.wait_for(done.wait(), PATIENCE_S)
        except TimeoutError:
            raise StoreUnavailableError from None
        if self.lost:
            raise LeaseLostError
        self.check_readable()

    async def commit(self, outcome: Outcome) -> Turn:
        """Commit the turn, applying any pending stop request. A rollback may be requested meanwhile."""
        for _ in range(2):
            by, is_broken = self._stop_request.rollback_by, self._defect is not None
            turn = self.turn if self.turn.outcome else self._ended(outcome)  # a damaged queue may name it again
            # Sealed once: a retry must commit the same version as the first request, whose reply may be lost.
            record = self.scope.seal(codec.encode_turn(turn), "turn", turn.number)
            chunk_list, head = (b"", b"") if by or is_broken else self._memory.seal_head()
            packed = b"" if is_broken else self._log.packed()
            packed = self.scope.seal(packed, "log", turn.number) if packed else b""
            sealed: dict[str, Argument] = {"record": record, "variables": chunk_list, "head": head, "packed": packed}
            sealed |= {"staged": "", "chunks": ""}
            try:
                replaced = self._memory.replaced_chunks() if chunk_list else []
                async with staged_keys(self.scope.partition) if replaced else nullcontext("") as staged:
                    if replaced:
                        with suppress(StoreUnavailableError, HistoryGoneError):  # the commit then writes each chunk
                            await self.flush()
                            await keep_chunks(self.scope, replaced)
                            await stage_chunks(self.scope, staged, self._memory.chunks)
                            sealed |= {"staged": staged, "chunks": len(self._memory.chunks)}
                    state, *rest = await self._retry(partial(self._commit, turn, sealed, by=by, is_broken=is_broken))
            except SealBrokenError:
                self._mark_broken(DAMAGED)  # lets the next commit end the turn
                raise
            if state == b"rollback":
                self.cancel(b"rollback:" + rest[0])
                self._writes.resend()
                continue
            self._writes.clear()
            self.head_tag = tag_of(head) or self.head_tag
            if state == b"ok":
                self._readers.deliver(turn.number, Logged(rest[0], TurnEnded(turn)))
            return turn
        raise SealBrokenError(DAMAGED)  # a rollback without a turn

    async def _commit(self, turn: Turn, sealed: Mapping[str, Argument], *, by: int, is_broken: bool) -> list[Any]:
        assert turn.outcome
        if self._defect and not is_broken:  # a write between two tries has found damage
            raise self._defect
        if self._writes.has_events:  # their readers wait for the reply
            self.send()
        reply, _ = await self._end_claim(
            "commit",
            **sealed,
            count="" if is_broken else self._memory.count_before if by else self._memory.count,
            event="" if self.turn.outcome else FINAL[turn.outcome.status],
            logged="" if is_broken else self._log.stored,
            last_seq=turn.last_seq or 0,
            written=0 if is_broken else self._writes.made,
            rollback=by or "",
            wake=self.scope.partition.wake,
            log_ttl_s=self.scope.partition.options.log_ttl_s,
        )
        return reply

    async def suspend(self, pause: Suspension) -> bool:
        now, requests = time.time(), pause.requests
        timing = replace(self.turn.timing, waits_since=now, waits=self.turn.timing.waits + 1)
        turn = replace(self.turn, requests=requests, timing=timing)
        self.emit(journal_key("parked", self.attempt), events=(TurnWaiting(self.attempt, requests),), media=pause.media)
        record = self.scope.seal(codec.encode_turn(turn), "turn", turn.number)
        expires = min(int(request.expires_at * 1_000_000) for request in requests)
        sent_at = time.monotonic()
        (state, *rest), batch = await self._retry(
            lambda: self._end_claim("suspend", record=record, expires=expires, written=self._writes.made)
        )
        if state == b"stopped":
            self.hear(rest[0])  # an outage may have lost the message
            self._writes.resend()
            return False
        if state == b"ok":
            self._on_written(batch, rest[0], sent_at)
        self.is_over = True
        self._writes.clear()
        return True

    async def _end_claim(self, script: str, **arguments: Argument) -> tuple[list[Any], list[Write]]:
        """Send the last writes with the script that releases the lease. Returns its reply, and these writes.

        Raises `LeaseLostError`, also if the store lost acknowledged writes: another claim replays from its state.
        """
        *earlier, batch = self._writes.take_unsent() or [[]]
        for each in earlier:
            self._send(each)
        serial = batch[0].serial if batch else self._writes.made + 1
        entries = [argument for write in batch for argument in write.arguments]
        reply: list[Any] = await self.scope.partition.call(script, *entries, **self._target, serial=serial, **arguments)
        state = reply[0]
        if state in {b"behind", b"gap"} and (oldest := self._writes.oldest) and oldest.serial < serial:
            raise StoreUnavailableError  # the store refused the writes before it
        if state in {b"lost", b"behind"}:
            self.lose()
            raise LeaseLostError
        if state == b"gap":
            if self.lost:
                raise LeaseLostError
            self._mark_broken(COUNT_SENTENCE)
            self.check_readable()
        return reply, batch

    def _ended(self, outcome: Outcome) -> Turn:
        stop = self._stop_request
        has_task = not (stop.rollback_by or self.lacks_task)
        return replace(
            self.turn,
            timing=replace(self.turn.timing, finished_at=time.time()),
            outcome=outcome if self._defect else stop.apply(outcome),
            last_seq=(self._last_seen if self._defect else self._log.last_seq) + 1,
            images=self.turn.images if has_task else (),
            files=self.turn.files if has_task else (),
            requests=(),
        )

    async def _retry(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Repeat an operation until the store answers, for at most `PATIENCE_S`: an outage is no fault of a turn."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await operation()
            except StoreUnavailableError:
                if time.monotonic() > give_up_at:
                    raise
            self._writes.resend()
            await asyncio.sleep(RETRY_S)

    def send(self) -> None:
        for batch in self._writes.take_unsent():
            self._send(batch)

    def _send(self, batch: list[Write]) -> None:
        arguments = [argument for write in batch for argument in write.arguments]
        serial, lease_us = batch[0].serial, self.scope.partition.options.lease_us
        reply = self.scope.partition.send("emit", *arguments, serial=serial, lease_us=lease_us, **self._target)
        reply.add_done_callback(partial(self._on_reply, batch, time.monotonic()))

    def _on_reply(self, batch: list[Write], sent_at: float, reply: Reply) -> None:
        error = reply.exception()
        if isinstance(error, ResponseError):
            error = as_service_error("emit", error)
        state, *rest = (b"failed",) if error else reply.result()
        is_oldest = self._writes.oldest is batch[0]
        if state == b"lost" or (state == b"behind" and is_oldest):
            self.lose()  # behind: the store lost acknowledged writes, so another claim replays from its state
        elif state == b"gap" or isinstance(error, SealBrokenError):
            self._mark_broken(COUNT_SENTENCE)
        elif state != b"ok":
            if not self._is_delay_logged:  # once for each outage
                log.warning("a write of turn %s waits: %s", f"{self.scope.name}#{self.turn.number}", error or state)
            self._is_delay_logged = True
            self._writes.resend()
            asyncio.get_running_loop().call_later(RETRY_S, self.send)  # always: no other call may be scheduled
        else:
            self._on_written(batch, rest[0], sent_at)

    def _on_written(self, batch: list[Write], seqs: list[int], sent_at: float) -> None:
        """Deliver new events to the readers of this process. The number of a repeated event is 0."""
        self._is_delay_logged = False
        self.confirm(sent_at)
        self.has_progressed |= any(write.is_effect for write in batch)
        for seq, event in zip(seqs, [event for write in batch for event in write.events], strict=True):
            if seq:
                self._last_seen = seq
                self._readers.deliver(self.turn.number, Logged(seq, event))
        if batch:  # none is left if they were sent while a suspend waited for its next try
            self._writes.acknowledge(batch[-1].serial)

    def _mark_broken(self, why: str) -> None:
        self._defect = self._defect or SealBrokenError(why)
        self._discard("broken")

    def _stop(self, reason: StopReason) -> None:
        if not self.stop_reason.done():
            self.stop_reason.set_result(reason)

    def _discard(self, reason: StopReason) -> None:
        self.is_over = True
        self._stop(reason)
        self._writes.clear()
