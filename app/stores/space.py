"""A store in use: one pipeline, one subscription, and the check that this data is ours and readable."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.stores.connection import Listener, Pipeline, connect
from app.stores.conversations import Conversations
from app.stores.desk import Desk
from app.stores.first_look import look_at
from app.stores.idempotency import Pepper
from app.stores.log import Log
from app.stores.scheduler import Scheduler
from app.stores.script import Scripts, load_commands, script
from app.stores.turns import Turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from app.seal import Sealer

log = logging.getLogger(__name__)

PARTITION = "{p000}"


@dataclass(frozen=True)
class Store:
    """The store's parts, ready for use."""

    server: str
    turns: Turns
    conversations: Conversations
    scheduler: Scheduler
    running: tuple[asyncio.Task[None], ...]
    """What must not end while the store is in use."""


@contextlib.asynccontextmanager
async def open_store(
    url: str,
    sealer: Sealer,
    *,
    lease_s: float,
    log_ttl_s: int,
    max_waiting: int,
    on_loss: Callable[[], None],
    patience_s: float = 0.0,
    ours_alone: bool = False,
) -> AsyncIterator[Store]:
    """Connect, check, and serve until left. Raises `StartError` with the mend where the store cannot be used.

    `ours_alone`: no other process uses the store, so what an earlier one held is free at once.
    """
    client = connect(url)
    me = secrets.token_hex(8)
    channel, stop, wake = f"{PARTITION}:replica:{me}", f"{PARTITION}:stop:{me}", f"{PARTITION}:wake"
    try:
        server, pepper = await look_at(client, sealer, PARTITION, (channel, stop, wake))
        away = script("outage").command(PARTITION, (), {"lease_us": int(lease_s * 1_000_000)})
        pipeline = Pipeline(client, load_commands(), [away], on_loss)
        scripts = Scripts(pipeline, PARTITION)
        turn_log = Log(scripts, sealer, channel)
        desk = Desk(scripts, sealer, turn_log, channel, wake, log_ttl_s, lease_s)
        scheduler = Scheduler(desk, worker=me, lease_s=lease_s, patience_s=patience_s)
        turns = Turns(desk, scheduler, Pepper(pepper), max_waiting=max_waiting)
        heard = {
            wake.encode(): lambda *_: scheduler.nudge(),
            channel.encode(): turn_log.hear,
            stop.encode(): scheduler.hear_stop,
        }
        listener = Listener(client, heard, lambda name, data: heard[name](name, data), turn_log.on_gap)
        running = (asyncio.create_task(pipeline.run()), asyncio.create_task(listener.run()))
        try:
            while ours_alone and await scheduler.sweep(all_are_over=True):
                pass
            yield Store(server, turns, Conversations(desk, turns), scheduler, running)
        finally:
            await _cancel(running)
    finally:
        await client.aclose()


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel until they have ended: a library's timeout may swallow a cancellation that comes in the same moment."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1)
