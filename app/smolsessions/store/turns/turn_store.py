"""Accepting a turn, and turns on record."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from smolsessions.core.errors import (
    DAMAGED,
    BusyError,
    ConversationExistsError,
    ConversationNotFoundError,
    IdempotencyKeyReusedError,
    NotFoundError,
    OtherAgentError,
    OverloadedError,
    SealBrokenError,
    StoreUnavailableError,
    TooManyTurnsError,
    TurnNotFoundError,
)
from smolsessions.core.events import Logged, TurnEnded, TurnQueued
from smolsessions.core.records import AgentName, Outcome, Page
from smolsessions.store import codec
from smolsessions.store.conversations.head import with_stored_images

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from smolsessions.core.records import AgentVersion, IdempotentRequest, OnBusy, Owner, Ref, Terms, Turn, TurnInput
    from smolsessions.store.partition import Partition, Partitions
    from smolsessions.store.scripts.loader import Argument
    from smolsessions.store.turns.idempotency import IdempotencyKeys
    from smolsessions.store.turns.scheduler import Scheduler
    from smolsessions.store.turns.turn_log import LogReader

MOST_GUESSES = 10_000
MOST_OF_A_KEY = 1000  # conversations that one Idempotency-Key began, each deleted and begun anew
MOVING_PATIENCE_S = 10.0  # how long to try for a number while others take each one; somebody gets on all the while
SUBMIT_PATIENCE_S = 1.0
RETRY_S = 0.25
LAST_SEQ_UNBEGUN = 2  # after `turn.queued`
LARGE_BYTES = 256 * 1024  # sealing more is felt on the loop


class TurnStore:
    """The store's side of turns that are submitted and looked at."""

    def __init__(
        self,
        partitions: Partitions,
        scheduler: Scheduler,
        pepper: IdempotencyKeys,
        *,
        max_waiting: int,
        max_queued: int,
    ) -> None:
        """`scheduler` is asked whether this process's own worker waits, and told at once that there is work.

        `max_waiting` is how many turns may wait behind a conversation's first, `max_queued` how many conversations of
        an agent may wait for a thread; each partition has its share of these.
        """
        self._partitions = partitions
        self._scheduler = scheduler
        self._pepper = pepper
        self._max_waiting = max_waiting
        self._max_queued = max_queued
        self._moving: WeakValueDictionary[Ref, asyncio.Lock] = WeakValueDictionary()
        self._next: OrderedDict[Ref, tuple[int, AgentName]] = OrderedDict()

    async def submit(
        self,
        turn: Turn,
        turn_input: TurnInput,
        *,
        create: dict[str, Any] | None,
        asked: bool,
        version_of: Callable[[AgentName], AgentVersion],
        on_busy: OnBusy = "reject",
        once: IdempotentRequest | None = None,
    ) -> tuple[Turn, bool]:
        """Hand a turn in; one that begins a conversation with a key takes the first id of that key that is free."""
        wanted = _Wanted(turn_input, create, asked, version_of, on_busy, once)
        if once is None:
            return await self._submit_to(turn, wanted)
        submitted = await (self._submit_to(turn, wanted) if create is None else self._begin(turn, wanted, once))
        await self._note(submitted[0].ref, once)
        return submitted

    async def recall(self, owner: Owner, once: IdempotentRequest) -> Turn | None:
        state, *rest = await self._home(owner, once).scripts.call(
            "recall", idem=self._pepper.name(owner, once), digest=self._pepper.digest(owner, once)
        )
        if state == b"attached":
            return await self._attached(owner, *rest)
        if state != b"new":
            raise _refusal(state, rest)
        return None

    async def _begin(self, turn: Turn, wanted: _Wanted, once: IdempotentRequest) -> tuple[Turn, bool]:
        for nth in range(MOST_OF_A_KEY):
            ref = replace(turn.ref, id=self._pepper.conversation_id(turn.ref.owner, once, nth))
            with suppress(ConversationExistsError):
                return await self._submit_to(replace(turn, ref=ref), wanted)
        raise ConversationExistsError

    def _home(self, owner: Owner, once: IdempotentRequest) -> Partition:
        """Give the partition where a key is looked up, whatever conversation it was sent for."""
        return self._partitions.named(self._pepper.name(owner, once))

    async def _note(self, ref: Ref, once: IdempotentRequest) -> None:
        """Leave word of a key whose turn lies elsewhere, so that another request with it is refused."""
        home = self._home(ref.owner, once)
        if home is self._partitions.of(ref):
            return
        with suppress(StoreUnavailableError):  # the turn is accepted, and the same request again finds it
            await home.scripts.call(
                "note", idem=self._pepper.name(ref.owner, once), digest=self._pepper.digest(ref.owner, once)
            )

    def reader(self, ref: Ref, *, looks: bool, wants_all: bool) -> AbstractContextManager[LogReader]:
        return self._partitions.of(ref).log.reader(ref, looks=looks, wants_all=wants_all)

    async def cancel(self, ref: Ref, number: int) -> tuple[Turn, bool]:
        """End a turn that nobody has begun; tell the worker of one that is played."""
        turn = await self.turn(ref, number)
        if turn.outcome:
            return turn, False
        ended = replace(
            turn,
            timing=replace(turn.timing, started_at=None, finished_at=time.time()),
            attempts=0,
            outcome=Outcome("cancelled"),
            last_seq=LAST_SEQ_UNBEGUN,
        )
        partition = self._partitions.of(ref)
        record = partition.sealer.seal(codec.turn_to_bytes(ended), str(ref), "turn", number)
        state, *rest = await partition.scripts.call(
            "cancel",
            ref=str(ref),
            turn=number,
            record=record,
            me=partition.channel,
            log_ttl_s=partition.log_ttl_s,
        )
        if state == b"ended":
            partition.log.deliver(ref, number, Logged(rest[0], TurnEnded(ended)))
            return ended, True
        return (await self.turn(ref, number) if state == b"over" else turn), False

    async def open_turns(self, ref: Ref) -> list[Turn]:
        """Read the turns that run or wait, in their order."""
        _, found = await self._read(ref, 1, 1)
        if not found.open:
            return []
        numbers = sorted(found.open)
        records, found = await self._read(ref, numbers[0], numbers[-1])
        return [self._opened(ref, n, record, found) for n, record in enumerate(records, numbers[0]) if n in numbers]

    async def turn(self, ref: Ref, number: int) -> Turn:
        """Read one turn."""
        page = await self.turns(ref, number, 1)
        if not page.items:
            raise TurnNotFoundError
        return page.items[0]

    async def turns(self, ref: Ref, first: int, limit: int) -> Page[Turn]:
        """Read turns from number `first` on."""
        records, known = await self._read(ref, first, first + limit)
        opened = [self._opened(ref, number, record, known) for number, record in enumerate(records[:limit], first)]
        items = [await with_stored_images(self._partitions.of(ref).scripts, turn) for turn in opened]
        return Page(tuple(items), str(first + limit) if len(records) > limit else None)

    async def _read(self, ref: Ref, first: int, last: int) -> tuple[list[bytes], _Known]:
        """Give records, and what is known beside them."""
        found = await self._partitions.of(ref).scripts.call("turns", ref=str(ref), first=first, last=last)
        if not found:
            raise ConversationNotFoundError
        records, still_open, sealed, last_turn, agent = found
        terms = self._partitions.of(ref).sealer.terms(str(ref), sealed)
        known = {codec.number(number): (at, attempts) for number, at, attempts in still_open}
        return records, _Known(known, terms, last_turn, agent)

    def _opened(self, ref: Ref, number: int, record: bytes, known: _Known) -> Turn:
        sealer = self._partitions.of(ref).sealer
        turn = codec.turn_from_bytes(sealer.open(record, str(ref), "turn", number), ref, number)
        if not turn.outcome and (number not in known.open or turn.agent.name.encode() != known.agent):
            raise SealBrokenError(DAMAGED)
        at, attempts = known.open.get(number, (b"", b""))
        if known.terms.is_rolled_back(number, known.last):
            turn = replace(turn, rolled_back=True)
        return codec.started(turn, codec.moment(at), codec.number(attempts)) if at and not turn.outcome else turn

    async def _submit_to(self, turn: Turn, wanted: _Wanted) -> tuple[Turn, bool]:
        """Seal for the number that should come next, and again where the store says that it is another.

        Those of this process that met another number go one by one, so that they do not meet each other again.
        """
        moving = self._moving.get(turn.ref)
        if moving is None or not moving.locked():
            first = (1, turn.agent.name) if wanted.create is not None else await self._expected(turn, wanted)
            if accepted := await self._try(turn, wanted, *first):
                return accepted
        moving = self._moving.setdefault(turn.ref, asyncio.Lock())
        async with moving:
            give_up_at = time.monotonic() + MOVING_PATIENCE_S
            while time.monotonic() < give_up_at:
                if accepted := await self._try(turn, wanted, *await self._expected(turn, wanted)):
                    return accepted
        raise StoreUnavailableError("Too many turns were posted to this conversation at once; try again.")

    async def _try(self, turn: Turn, wanted: _Wanted, number: int, agent: AgentName) -> tuple[Turn, bool] | None:
        """Submit as turn `number`; nothing where another one has it, and then the next one is known."""
        if wanted.asked and agent != turn.agent.name:
            raise OtherAgentError(f"The conversation belongs to the agent {agent!r}; leave agent out, or name it.")
        turn = replace(turn, number=number, agent=wanted.version_of(agent))
        state, *rest = await self._submit(turn, wanted)
        if state == b"ok":
            self._remember(turn.ref, number + 1, agent)
            partition = self._partitions.of(turn.ref)
            partition.log.deliver(turn.ref, number, Logged(rest[0], TurnQueued()))
            self._scheduler.nudge(partition, turn.ref.owner)
            return turn, True
        if state == b"attached":
            return await self._attached(turn.ref.owner, *rest), False
        if state != b"moved":
            raise _refusal(state, rest)
        self._next.pop(turn.ref, None)
        if rest[0] == agent.encode():
            self._remember(turn.ref, rest[1], agent)
        return None

    async def _attached(self, owner: Owner, scope: bytes, number: bytes) -> Turn:
        ref = codec.ref_of(codec.text(scope))
        if ref.owner != owner:
            raise SealBrokenError
        return await self.turn(ref, codec.number(number))

    async def _expected(self, turn: Turn, wanted: _Wanted) -> tuple[int, AgentName]:
        known = self._next.get(turn.ref)
        if known and not (wanted.asked and known[1] != turn.agent.name):
            return known
        return await self._peek(turn.ref)

    async def _peek(self, ref: Ref) -> tuple[int, AgentName]:
        found = await self._partitions.of(ref).scripts.call("peek", ref=str(ref))
        if not found:
            raise ConversationNotFoundError
        agent, turns, record = found
        opened = self._partitions.of(ref).sealer.open(record or b"", str(ref), "conversation")
        return turns + 1, codec.agent_of(opened, agent)

    async def _submit(self, turn: Turn, wanted: _Wanted) -> Any:
        partition = self._partitions.of(turn.ref)
        scope, seal = str(turn.ref), partition.sealer.seal
        conversation, once = b"", wanted.once
        if wanted.create is not None:
            conversation = seal(codec.conversation_to_bytes(turn.agent.name, wanted.create), scope, "conversation")
        data = codec.input_to_bytes(wanted.turn_input)
        seal_input = partial(seal, data, scope, "input", turn.number)
        arguments: dict[str, Argument] = {
            "owner": turn.ref.owner,
            "ref": scope,
            "agent": turn.agent.name,
            "conversation": conversation,
            "turn": turn.number,
            "record": seal(codec.turn_to_bytes(turn), scope, "turn", turn.number),
            "input": await asyncio.to_thread(seal_input) if len(data) > LARGE_BYTES else seal_input(),
            "event": seal(codec.event_to_bytes(TurnQueued()), scope, "event", turn.number, TurnQueued.type),
            "me": partition.channel,
            "wake": "" if self._scheduler.waiting else partition.wake,
            "on_busy": wanted.on_busy,
            "most_waiting": self._max_waiting,
            "most_queued": -(-self._max_queued // len(self._partitions)),
            "idem": self._pepper.name(turn.ref.owner, once) if once else "",
            "digest": self._pepper.digest(turn.ref.owner, once) if once else "",
        }
        give_up_at, lost = time.monotonic() + SUBMIT_PATIENCE_S, False
        while True:  # the same sealed record again is the same turn, so asking twice makes one
            try:
                answer = await partition.scripts.call("submit", **arguments)
                break
            except StoreUnavailableError:
                if time.monotonic() > give_up_at:
                    raise
            lost = True
            await asyncio.sleep(RETRY_S)
        if lost and answer[0] != b"ok" and await self._is_there(turn):
            return [b"ok", 1]  # an answer was lost, and the turn has gone on since
        return answer

    async def _is_there(self, turn: Turn) -> bool:
        with suppress(NotFoundError):
            there = await self.turn(turn.ref, turn.number)
            return (there.message, there.timing.submitted_at) == (turn.message, turn.timing.submitted_at)
        return False

    def _remember(self, ref: Ref, number: int, agent: AgentName) -> None:
        self._next[ref] = (number, agent)
        self._next.move_to_end(ref)
        if len(self._next) > MOST_GUESSES:
            self._next.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a conversation's turns beside their records.

    `open`: of those that are not over, when they started (empty: not yet) and their attempts; `last`: the last number;
    `agent`: whose workers they wait for.
    """

    open: dict[int, tuple[bytes, bytes]]
    terms: Terms
    last: int
    agent: bytes


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is asked of a submission, whichever number it gets."""

    turn_input: TurnInput
    create: dict[str, Any] | None
    asked: bool
    version_of: Callable[[AgentName], AgentVersion]
    on_busy: OnBusy
    once: IdempotentRequest | None


def _refusal(state: bytes, rest: list[bytes]) -> Exception:
    match state:
        case b"busy":
            running = codec.number(rest[0])
            return BusyError(
                f"Turn {running} of this conversation is running; wait for its end, then send the next, or say with "
                "on_busy what is to become of the two.",
                running_turn=running,
            )
        case b"full":
            return TooManyTurnsError(
                f"{int(rest[0])} turns wait in this conversation, more may not (SMOLSESSIONS_MAX_WAITING_TURNS); try "
                "again when one of them is over."
            )
        case b"overloaded":
            return OverloadedError()
        case b"reused":
            named = {"in": "header", "parameter": "Idempotency-Key"}
            return IdempotencyKeyReusedError(errors=[{**named, "message": "was sent with another request before"}])
        case b"gone":
            return ConversationNotFoundError(
                "The conversation of the turn that this Idempotency-Key made was deleted; use a new key for a new turn."
            )
    return {b"unknown": ConversationNotFoundError, b"taken": ConversationExistsError}[state]()
