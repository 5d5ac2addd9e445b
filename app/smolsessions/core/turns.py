"""Turns as callers use them: submit one, wait for its end, watch it, stop it, look at it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from smolsessions.core.errors import AgentUnavailableError, NotFoundError, StoreUnavailableError, UnknownAgentError
from smolsessions.core.events import TurnEnded
from smolsessions.core.metadata import bounded
from smolsessions.core.records import (
    AgentName,
    AgentVersion,
    IdempotentRequest,
    Ref,
    Timing,
    Turn,
    TurnInput,
    TurnOptions,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractContextManager

    from smolsessions.core.events import Logged
    from smolsessions.core.ports import AgentCatalog, LogReader, TurnStore
    from smolsessions.core.records import OnBusy, Owner, Page, StepImage


@dataclass(frozen=True, slots=True)
class NewTurn:
    """What a caller hands in. Without `conversation_id` a conversation is made, with `metadata`."""

    message: str
    conversation_id: str | None = None
    agent: AgentName | None = None
    options: TurnOptions = field(default_factory=TurnOptions)
    turn_input: TurnInput = field(default_factory=TurnInput)
    images: tuple[StepImage, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    on_busy: OnBusy = "reject"
    idempotency_key: str | None = None


class Turns:
    """Where turns are handed in."""

    def __init__(
        self, store: TurnStore, agents: AgentCatalog, default_agent: AgentName, on_end: Callable[[Turn], None]
    ) -> None:
        """`on_end` is told of every turn that a cancel ended before it began."""
        self._store = store
        self._agents = agents
        self._default_agent = default_agent
        self._on_end = on_end
        self._watches: set[TurnSubscription] = set()
        self._cancelling: set[asyncio.Task[Turn]] = set()
        self._closing = False

    async def submit(self, owner: Owner, new: NewTurn) -> TurnSubscription:
        """Accept a turn; who has it watched from its first event on must close the watch."""
        return await self._submit(owner, new)

    async def _submit(self, owner: Owner, new: NewTurn, *, for_end: bool = False) -> TurnSubscription:
        once = await _once(new)
        if once and (known := await self._store.recall(owner, once)):
            return self._watch(known, for_end=for_end)
        if new.agent is not None and new.agent not in self._agents.infos:
            raise UnknownAgentError.at("/agent", f"no agent {new.agent!r} here; GET /agents lists them")
        ref = Ref(owner, new.conversation_id or secrets.token_hex(12))
        wanted = self._version_of(new.agent or self._default_agent)
        turn = Turn(ref, 0, wanted, new.message, new.options, Timing(time.time()), images=new.images)
        watch = self._watch(turn, looks=False, for_end=for_end)
        try:
            watch.turn, is_new = await self._store.submit(
                turn,
                new.turn_input,
                create=None if new.conversation_id else bounded(new.metadata),
                asked=new.agent is not None,
                version_of=self._version_of,
                on_busy=new.on_busy,
                once=once,
            )
        except BaseException:
            watch.close()
            raise
        if is_new and watch.turn.ref == ref:
            return watch
        watch.close()  # it looks elsewhere, or has missed the beginning
        return self._watch(watch.turn, for_end=for_end)

    async def submit_and_wait(self, owner: Owner, new: NewTurn, wait_s: float) -> Turn:
        """Submit a turn and wait for its end; what is given back has no outcome if it did not end in time."""
        watch = await self._submit(owner, new, for_end=True)
        try:
            return await self._end_of(watch, wait_s)
        finally:
            watch.close()

    async def subscribe(self, ref: Ref, number: int, after: int) -> TurnSubscription | None:
        """Watch a turn; None where nothing comes after the cursor any more. Who has it watched must close the watch."""
        turn = await self._store.turn(ref, number)
        if turn.outcome and turn.last_seq is not None and after >= turn.last_seq:
            return None
        watch = self._watch(turn)
        try:
            await watch.prepare(after)
        except BaseException:
            watch.close()
            raise
        return watch

    async def cancel(self, ref: Ref, number: int, wait_s: float = 0) -> Turn:
        """Stop a turn, and wait for its end if asked to; one that is over stays as it is."""
        turn, ended = await self._store.cancel(ref, number)
        if ended:
            self._on_end(turn)
        if turn.outcome or not wait_s:
            return turn
        watch = self._watch(turn)
        try:
            return await self._end_of(watch, wait_s)
        finally:
            watch.close()

    def cancel_in_background(self, turn: Turn) -> None:
        """Stop a turn whose caller has gone."""
        task = asyncio.create_task(self.cancel(turn.ref, turn.number))
        self._cancelling.add(task)

        def forget(task: asyncio.Task[Turn]) -> None:
            self._cancelling.discard(task)
            if not task.cancelled():
                task.exception()  # the conversation may be gone by now, or the store away

        task.add_done_callback(forget)

    def stop_waiting(self) -> None:
        """Give every caller who waits his turn as it is now, and let every stream end."""
        self._closing = True
        for watch in list(self._watches):
            watch.stop()

    async def turn(self, ref: Ref, number: int) -> Turn:
        """Look at one turn."""
        return await self._store.turn(ref, number)

    async def turns(self, ref: Ref, first: int, limit: int) -> Page[Turn]:
        """Look at turns in ascending order."""
        return await self._store.turns(ref, first, limit)

    def _watch(self, turn: Turn, *, looks: bool = True, for_end: bool = False) -> TurnSubscription:
        reader = self._store.reader(turn.ref, looks=looks, wants_all=not for_end)
        watch = TurnSubscription(reader, turn, self._watches)
        if self._closing:
            watch.stop()
        return watch

    def _version_of(self, name: AgentName) -> AgentVersion:
        info = self._agents.infos.get(name)
        if info is None:
            raise AgentUnavailableError(f"The conversation's agent {name!r} is not configured here.")
        return info.version

    async def _end_of(self, watch: TurnSubscription, wait_s: float) -> Turn:
        turn = watch.turn
        if turn.outcome:
            return turn
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                if ended := await watch.end():
                    return ended
        try:
            return await self._store.turn(turn.ref, turn.number)
        except StoreUnavailableError:
            return turn  # accepted it was, which is what the caller must know


async def _once(new: NewTurn) -> IdempotentRequest | None:
    """Say what makes two requests the same one; how the answer is wanted does not."""
    if new.idempotency_key is None:
        return None
    images = [await asyncio.to_thread(_digest, image) for image in new.turn_input.images]
    asked = asdict(new.options) | {
        "conversation_id": new.conversation_id,
        "agent": new.agent,
        "message": new.message,
        "images": images,
        "additional_args": new.turn_input.additional_args,
        "on_busy": None if new.on_busy == "reject" else new.on_busy,
        "metadata": new.metadata,
    }
    # What is left out means the same in a release that knows more of them.
    told = {name: value for name, value in asked.items() if value}
    return IdempotentRequest(new.idempotency_key, json.dumps(told, sort_keys=True).encode())


def _digest(image: bytes) -> str:
    return hashlib.sha256(image).hexdigest()


class TurnSubscription:
    """One caller's view of one turn's log. Registered from the first, it misses nothing until it is closed."""

    def __init__(self, reader: AbstractContextManager[LogReader], turn: Turn, watches: set[TurnSubscription]) -> None:
        self.turn = turn
        self.complete = False
        self.stopped = False
        self._registered = reader
        self._reader = reader.__enter__()
        self._watches = watches
        watches.add(self)

    async def events(self, after: int = 0) -> AsyncIterator[Logged | None]:
        """Yield what is logged after the cursor, None after a silence; ends after the final event, or when stopped."""
        with suppress(NotFoundError):  # deleted meanwhile; it was there when the watch began
            async for logged in self._reader.follow(self.turn.number, after):
                self.complete = logged is not None and isinstance(logged.event, TurnEnded)
                yield logged

    async def prepare(self, after: int) -> None:
        """Look into the log before anything of it is told. Raises `SealBrokenError`."""
        await self._reader.prepare(self.turn.number, after)

    async def end(self) -> Turn | None:
        """Wait for the turn's end; None when stopped."""
        return await self._reader.end_of(self.turn.number)

    def stop(self) -> None:
        """End `events` before the final one."""
        self.stopped = True
        self._reader.stop()

    def close(self) -> None:
        """Look no longer."""
        if self in self._watches:
            self._watches.discard(self)
            self._registered.__exit__(None, None, None)
