"""Accepting a turn, and turns on record."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from app.errors import (
    BusyError,
    ConversationExistsError,
    ConversationNotFoundError,
    OtherAgentError,
    StoreUnavailableError,
    TurnNotFoundError,
)
from app.events import Logged, TurnEnded, TurnQueued
from app.records import AgentName, Outcome, Page
from app.stores import codec

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from app.records import AgentVersion, Ref, Turn, TurnInput
    from app.stores.desk import Desk
    from app.stores.log import Reader
    from app.stores.scheduler import Scheduler
    from app.stores.script import Argument

MOST_GUESSES = 10_000
MOST_TRIES = 20
SUBMIT_PATIENCE_S = 1.0
RETRY_S = 0.25
LAST_SEQ_UNBEGUN = 2  # after `turn.queued`
LARGE_BYTES = 256 * 1024  # sealing more is felt on the loop


class Turns:
    """The store's side of turns that are submitted and looked at."""

    def __init__(self, desk: Desk, scheduler: Scheduler) -> None:
        """`scheduler` is asked whether this process's own worker waits, and told at once that there is work."""
        self._desk = desk
        self._scheduler = scheduler
        self._next: OrderedDict[Ref, tuple[int, AgentName]] = OrderedDict()

    async def submit(
        self,
        turn: Turn,
        given: TurnInput,
        *,
        create: dict[str, Any] | None,
        asked: bool,
        version_of: Callable[[AgentName], AgentVersion],
    ) -> Turn:
        """Seal for the number that should come next, and again where the store says that it is another."""
        number, agent = await self._expect(turn, new=create is not None, asked=asked)
        for _ in range(MOST_TRIES):
            if asked and agent != turn.agent.name:
                raise OtherAgentError(f"The conversation belongs to the agent {agent!r}; leave agent out, or name it.")
            turn = replace(turn, number=number, agent=version_of(agent))
            state, *rest = await self._submit(turn, given, create)
            if state == b"ok":
                self._remember(turn.ref, number + 1, agent)
                self._desk.log.deliver(turn.ref, number, Logged(rest[0], TurnQueued()))
                self._scheduler.nudge()
                return turn
            if state != b"moved":
                raise _refusal(state, rest)
            number, agent = await self._peek(turn.ref)
        raise StoreUnavailableError("Too many turns were posted to this conversation at once; try again.")

    def reader(self, ref: Ref, *, looks: bool, wants_all: bool) -> AbstractContextManager[Reader]:
        return self._desk.log.reader(ref, looks=looks, wants_all=wants_all)

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
        record = self._desk.sealer.seal(codec.turn_to_bytes(ended), str(ref), "turn", number)
        state, *rest = await self._desk.scripts.call(
            "cancel",
            ref=str(ref),
            turn=number,
            record=record,
            me=self._desk.channel,
            log_ttl_s=self._desk.log_ttl_s,
        )
        if state == b"ended":
            self._desk.log.deliver(ref, number, Logged(rest[0], TurnEnded(ended)))
            return ended, True
        return (await self.turn(ref, number) if state == b"over" else turn), False

    async def turn(self, ref: Ref, number: int) -> Turn:
        """Read one turn."""
        page = await self.turns(ref, number, 1)
        if not page.items:
            raise TurnNotFoundError
        return page.items[0]

    async def turns(self, ref: Ref, first: int, limit: int) -> Page[Turn]:
        """Read turns from number `first` on."""
        scope = str(ref)
        found = await self._desk.scripts.call("turns", ref=scope, first=first, last=first + limit)
        if not found:
            raise ConversationNotFoundError
        records, running = found
        known = {int(number): (int(at), int(attempts)) for number, at, attempts in running if at}
        items = []
        for number, record in enumerate(records[:limit], first):
            turn = codec.turn_from_bytes(self._desk.sealer.open(record, scope, "turn", number), ref, number)
            if number in known and not turn.outcome:
                turn = codec.started(turn, known[number][0] / 1_000_000, known[number][1])
            items.append(turn)
        return Page(tuple(items), str(first + limit) if len(records) > limit else None)

    async def _expect(self, turn: Turn, *, new: bool, asked: bool) -> tuple[int, AgentName]:
        if new:
            return 1, turn.agent.name
        known = self._next.get(turn.ref)
        if known and not (asked and known[1] != turn.agent.name):
            return known
        return await self._peek(turn.ref)

    async def _peek(self, ref: Ref) -> tuple[int, AgentName]:
        agent, turns, record = await self._desk.scripts.call("peek", ref=str(ref))
        if not agent:
            raise ConversationNotFoundError
        opened = self._desk.sealer.open(record or b"", str(ref), "conversation")
        return int(turns) + 1, codec.agent_of(opened, agent)

    async def _submit(self, turn: Turn, given: TurnInput, create: dict[str, Any] | None) -> Any:
        scope, seal = str(turn.ref), self._desk.sealer.seal
        conversation = b""
        if create is not None:
            conversation = seal(codec.conversation_to_bytes(turn.agent.name, create), scope, "conversation")
        data = codec.input_to_bytes(given)
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
            "me": self._desk.channel,
            "wake": "" if self._scheduler.waiting else self._desk.wake,
        }
        give_up_at = time.monotonic() + SUBMIT_PATIENCE_S
        while True:  # the same sealed record again is the same turn, so asking twice makes one
            try:
                return await self._desk.scripts.call("submit", **arguments)
            except StoreUnavailableError:
                if time.monotonic() > give_up_at:
                    raise
            await asyncio.sleep(RETRY_S)

    def _remember(self, ref: Ref, number: int, agent: AgentName) -> None:
        self._next[ref] = (number, agent)
        self._next.move_to_end(ref)
        if len(self._next) > MOST_GUESSES:
            self._next.popitem(last=False)


def _refusal(state: bytes, rest: list[bytes]) -> Exception:
    if state == b"busy":
        running = int(rest[0])
        return BusyError(
            f"Turn {running} of this conversation is running; wait for its end, then send the next.",
            running_turn=running,
        )
    return {b"unknown": ConversationNotFoundError, b"deleted": ConversationExistsError}[state]()
