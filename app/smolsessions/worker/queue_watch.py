"""Warnings of turns that wait for a worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from smolsessions.core.records import AgentName
from smolsessions.core.store_ports import Queues

log = logging.getLogger(__name__)

LATE_TURN_S = 30.0  # age of a waiting turn that is worth a warning
LOOK_S = 5.0


async def warn_of_waiting_turns(queues: Callable[[], Awaitable[Queues]]) -> None:
    """Warn once of each agent whose turns wait for long. For a process that runs no turns itself."""
    warned: set[AgentName] = set()
    while True:
        found = await queues()
        late = {agent: queue for agent, queue in found.of.items() if queue.oldest_s > LATE_TURN_S}
        for agent in late.keys() - warned:
            log.warning(
                "%d conversations wait for agent %s, the first for %d s, and this process plays no turns: see that a "
                "`work` or `serve` runs on this store, that it knows the agent, and has threads free",
                *(late[agent].length, agent, late[agent].oldest_s),
                extra={"action": "queue.late"},
            )
        warned = set(late) if not found.silent else warned | set(late)
        await asyncio.sleep(LOOK_S)
