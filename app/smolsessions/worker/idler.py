"""Stands where the worker would in a process that plays no turns."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from smolsessions.core.records import AgentName, Queues

log = logging.getLogger(__name__)

LOOK_S = 5.0
LATE_S = 30.0  # from when a turn that waits is told of


class Idler:
    """Plays nothing, and says where nobody else seems to either."""

    def __init__(self, queues: Callable[[], Awaitable[Queues]]) -> None:
        self._queues = queues
        self._told: set[AgentName] = set()
        self._draining = asyncio.Event()

    async def run(self) -> None:
        while not self._draining.is_set():
            await self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._draining.wait()

    async def _look(self) -> None:
        """Warn once of each agent whose turns wait for long, until they do not."""
        queues = await self._queues()
        late = {agent: queue for agent, queue in queues.of.items() if queue.oldest_s > LATE_S}
        for agent in late.keys() - self._told:
            log.warning(
                "%d conversations wait for agent %s, the first for %d s, and this process plays no turns: see that a "
                "`work` or `serve` runs on this store, that it knows the agent, and has threads free",
                *(late[agent].length, agent, late[agent].oldest_s),
                extra={"action": "queue.late"},
            )
        self._told = set(late) if not queues.silent else self._told | set(late)

    def drain(self) -> None:
        self._draining.set()

    def hurry(self) -> None:
        """Nothing runs."""
