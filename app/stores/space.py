"""A store in use: one pipeline, one subscription, and the check that this data is ours and readable."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.errors import SealBrokenError, StartError, StoreUnavailableError
from app.stores.connection import Listener, Pipeline, check_server, connect
from app.stores.conversations import Conversations
from app.stores.desk import Desk
from app.stores.log import Log
from app.stores.scheduler import Scheduler
from app.stores.script import Scripts, load_commands
from app.stores.turns import Turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from app.seal import Sealer

log = logging.getLogger(__name__)

SCHEMA = b"1"
PARTITIONS = b"1"
PARTITION = "{p000}"
CANARY = b"smolsessions"
CONNECT_S = 10.0


@dataclass(frozen=True)
class Store:
    """The store's parts, ready for use."""

    server: str
    turns: Turns
    conversations: Conversations
    scheduler: Scheduler


@contextlib.asynccontextmanager
async def open_store(
    url: str, sealer: Sealer, *, lease_s: float, log_ttl_s: int, on_loss: Callable[[], None]
) -> AsyncIterator[Store]:
    """Connect, check, and serve until left. Raises `StartError` with the mend where the store cannot be used."""
    client = connect(url)
    try:
        server = await check_server(client)
        me = secrets.token_hex(8)
        channel, wake = f"{PARTITION}:replica:{me}", f"{PARTITION}:wake"
        pipeline = Pipeline(client, load_commands(), on_loss)
        scripts = Scripts(pipeline, PARTITION)
        turn_log = Log(scripts, sealer, channel)
        desk = Desk(scripts, sealer, turn_log, channel, wake, log_ttl_s)
        scheduler = Scheduler(desk, worker=me, lease_s=lease_s)
        turns = Turns(desk, scheduler)
        heard = {wake.encode(): lambda *_: scheduler.nudge(), channel.encode(): turn_log.on_message}
        listener = Listener(client, heard, lambda name, data: heard[name](name, data), turn_log.on_gap)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(pipeline.run()), tasks.create_task(listener.run())]
            await _check_data(pipeline, sealer)
            await asyncio.wait_for(listener.ready.wait(), CONNECT_S)
            yield Store(server, turns, Conversations(desk, turns), scheduler)
            for task in running:
                task.cancel()
    finally:
        await client.aclose()


async def _check_data(pipeline: Pipeline, sealer: Sealer) -> None:
    """See that the store holds nothing, or what this release can read with these keys."""
    key = f"{PARTITION}:about"
    sealed = sealer.seal(CANARY, "", "about")
    try:
        for field, value in ((b"schema", SCHEMA), (b"partitions", PARTITIONS), (b"canary", sealed)):
            await pipeline.send("HSETNX", key, field, value)
        schema, partitions, canary = await pipeline.send("HMGET", key, "schema", "partitions", "canary")
    except StoreUnavailableError as error:
        raise StartError("the store went away while the service was starting; start it again") from error
    if (schema, partitions) != (SCHEMA, PARTITIONS):
        raise StartError(
            f"the store holds data of schema {schema.decode()} with {partitions.decode()} partitions, this release "
            "knows schema 1 with 1; run the release that wrote it, or use another store"
        )
    try:
        sealer.open(canary, "", "about")
    except SealBrokenError as error:
        raise StartError(
            "the store's data was sealed with another key; set SMOLSESSIONS_SEAL_KEYS (or put the seal.key file back) "
            "to the key that it was written with, or use another store or data folder"
        ) from error
