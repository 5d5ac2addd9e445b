"""Store in use: connections to all partitions, and the classes that work on them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial

from redis.asyncio import Redis

from smolsessions.store.connection.pipeline import MOST_OPENING, Handler, Pipeline
from smolsessions.store.connection.server_errors import start_errors
from smolsessions.store.connection.servers import Address, Servers, servers_at
from smolsessions.store.connection.startup_check import ABOUT, IdentityCheck, bind_store, inspect_store
from smolsessions.store.conversations.conversation_store import ConversationStore
from smolsessions.store.conversations.history_store import HistoryStore
from smolsessions.store.key_rotation import COUNT_S, Rekeyed, records_by_key, rekey
from smolsessions.store.partition import Options, Partition, Partitions
from smolsessions.store.scripts.loader import NAMES, script
from smolsessions.store.seal import Sealer
from smolsessions.store.turns.scheduler import Scheduler
from smolsessions.store.turns.turn_log import hear_event
from smolsessions.store.turns.turn_store import IdempotencyKeys, TurnStore


@dataclass(frozen=True)
class Store:
    """The store's parts, ready for use."""

    server: str
    turns: TurnStore
    conversations: ConversationStore
    history: HistoryStore
    scheduler: Scheduler
    running: tuple[asyncio.Future[None], ...]
    """Tasks that end only when the store fails."""
    first: Pipeline
    """Connection to the partition that holds the store's identity."""
    partitions: Partitions
    servers: Servers

    async def has_workspaces(self, mark: str, *, may_set: bool) -> bool:
        """Return whether the store's workspaces have this mark, which a store without one gets."""
        if may_set:
            await self.first.send("HSETNX", ABOUT, "workspaces", mark)
        found = await self.first.send("HGET", ABOUT, "workspaces")
        return bool(found == mark.encode())

    async def key_count(self) -> int:
        clients = {await self.servers.client(partition.name) for partition in self.partitions}
        return sum([int(await client.dbsize()) for client in clients])

    async def rekey(self, progress: Callable[[int], None]) -> Rekeyed:
        return await rekey(self.partitions, progress)


@contextlib.asynccontextmanager
async def open_store(
    address: Address, sealer: Sealer, options: Options, on_loss: Callable[[str], None]
) -> AsyncIterator[Store]:
    """Connect, check the store, and serve until the block ends. Raises `StartError` if the store is not usable."""
    servers, process_id = servers_at(address), secrets.token_hex(8)
    try:
        server, identity = await bind_store(servers, address, sealer, options)
        openings: defaultdict[Redis, asyncio.Semaphore] = defaultdict(partial(asyncio.Semaphore, MOST_OPENING))
        pipelines = []
        for number in range(identity.partitions):
            name = f"{{p{number:03}}}"
            outage = script("outage").command(name, (), {"lease_us": options.lease_us})
            pipeline = Pipeline(
                servers,
                name,
                on_connect=[("SCRIPT", "LOAD", script(each).source) for each in NAMES],
                on_reconnect=[outage],
                on_loss=on_loss,
                openings=openings,
                replicated=options.replicated,
                keepalive_s=options.keepalive_s,
                reply_timeout_s=options.reply_timeout_s,
            )
            pipelines.append(pipeline)
        partitions = Partitions([Partition(pipeline, sealer, process_id, options) for pipeline in pipelines])
        scheduler = Scheduler(partitions, process_id, options)
        check = IdentityCheck(pipelines[0], identity, sealer)
        for pipeline, partition in zip(pipelines, partitions, strict=True):
            _listen(pipeline, partition, scheduler, check)
        running = tuple(asyncio.create_task(pipeline.run()) for pipeline in pipelines)
        try:
            while options.ours_alone and await scheduler.sweep(all_are_over=True):
                pass
            turns = TurnStore(partitions, scheduler, IdempotencyKeys(identity.pepper), options)
            conversations = ConversationStore(partitions, turns)
            history = HistoryStore(partitions, conversations, turns)
            tasks = (*running, check.changed)
            yield Store(server, turns, conversations, history, scheduler, tasks, pipelines[0], partitions, servers)
        finally:
            check.close()
            pending = set(running)
            while pending:  # a library's timeout may swallow a cancellation at the same moment
                for task in pending:
                    task.cancel()
                _, pending = await asyncio.wait(pending, timeout=1)
    finally:
        await servers.aclose()


async def risks_of_store(address: Address, sealer: Sealer, options: Options) -> tuple[str, list[str]]:
    """Check a store without a write. Return its name with its seal keys, and the risks. Raises as `open_store`."""
    servers = servers_at(address)
    try:
        name, risks, partitions = await inspect_store(servers, address, sealer, options)
        with start_errors(address):
            counts, is_all = await records_by_key(servers, partitions)
        used = ", ".join(f"{count} records with seal key {key_id}" for key_id, count in sorted(counts.items()))
        return f"{name} ({used or 'no record'}{'' if is_all else f', counted for {COUNT_S:g} s only'})", risks
    finally:
        await servers.aclose()


def _listen(pipeline: Pipeline, partition: Partition, scheduler: Scheduler, check: IdentityCheck) -> None:
    """Register the handlers of a partition's channels. After a gap all readers read again."""

    def on_gap() -> None:
        partition.on_gap()
        scheduler.look(partition)
        check.on_gap(pipeline)

    handlers: dict[str, Handler] = {
        partition.wake: lambda owner: scheduler.nudge(partition, owner.decode(errors="replace")),
        partition.channel: partial(hear_event, partition),
        partition.stop_channel: scheduler.hear_stop,
    }
    pipeline.listen(handlers, on_gap)
