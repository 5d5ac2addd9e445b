"""Turns as callers use them: submit one, wait for its end, look at it."""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from app.errors import AgentUnavailableError, StoreUnavailableError, UnknownAgentError
from app.events import TurnEnded
from app.metadata import bounded
from app.records import AgentName, AgentVersion, Ref, Timing, Turn

if TYPE_CHECKING:
    from app.ports import Agents, LogReader, Turns
    from app.records import Owner, Page, TurnInput, TurnOptions


class TurnDesk:
    """Where turns are handed in."""

    def __init__(self, store: Turns, agents: Agents, default_agent: AgentName) -> None:
        self._store = store
        self._agents = agents
        self._default_agent = default_agent
        self._waits: set[asyncio.Timeout] = set()
        self._closing = False

    async def play(
        self,
        *,
        owner: Owner,
        conversation_id: str | None,
        agent: AgentName | None,
        message: str,
        options: TurnOptions,
        given: TurnInput,
        metadata: dict[str, Any],
        wait_s: float,
    ) -> Turn:
        """Submit a turn and wait for its end; what is given back has no outcome if it did not end in time."""
        if agent is not None and agent not in self._agents.infos:
            raise UnknownAgentError.at("/agent", f"no agent {agent!r} here; GET /agents lists them")
        ref = Ref(owner, conversation_id or secrets.token_hex(12))
        wanted = self._version_of(agent or self._default_agent)
        turn = Turn(ref, 0, wanted, message, options, Timing(time.time()))
        with self._store.reader(ref) as reader:
            turn = await self._store.submit(
                turn,
                given,
                create=None if conversation_id else bounded(metadata),
                asked=agent is not None,
                version_of=self._version_of,
            )
            ended = await self._end_of(reader, turn.number, wait_s)
        try:
            return ended or await self._store.turn(ref, turn.number)
        except StoreUnavailableError:
            return turn  # accepted it was, which is what the caller must know

    def stop_waiting(self) -> None:
        """Give every caller who waits his turn as it is now."""
        self._closing = True
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(0)

    async def turn(self, ref: Ref, number: int) -> Turn:
        """Look at one turn."""
        return await self._store.turn(ref, number)

    async def turns(self, ref: Ref, first: int, limit: int) -> Page[Turn]:
        """Look at turns in ascending order."""
        return await self._store.turns(ref, first, limit)

    def _version_of(self, name: AgentName) -> AgentVersion:
        info = self._agents.infos.get(name)
        if info is None:
            raise AgentUnavailableError(f"The conversation's agent {name!r} is not configured here.")
        return info.version

    async def _end_of(self, reader: LogReader, number: int, wait_s: float) -> Turn | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0 if self._closing else wait_s) as wait:
                self._waits.add(wait)
                try:
                    async for logged in reader.follow(number):
                        if isinstance(logged.event, TurnEnded):
                            return logged.event.result
                finally:
                    self._waits.discard(wait)
        return None
