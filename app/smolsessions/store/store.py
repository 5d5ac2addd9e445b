"""A store in use: a line to each partition's server, and the check that this data is ours and readable."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smolsessions.store.connection.durability import Durability
from smolsessions.store.connection.pipeline import Pipeline
from smolsessions.store.connection.servers import Address, servers_at
from smolsessions.store.connection.startup_check import ReplacementCheck, check_store
from smolsessions.store.conversation_sealer import ConversationSealer
from smolsessions.store.conversations.conversation_store import ConversationStore
from smolsessions.store.conversations.history_store import HistoryStore
from smolsessions.store.partition import Partition, Partitions
from smolsessions.store.scripts.loader import Scripts, load_commands, script
from smolsessions.store.turns.idempotency import IdempotencyKeys
from smolsessions.store.turns.scheduler import Scheduler
from smolsessions.store.turns.turn_log import TurnLog
from smolsessions.store.turns.turn_store import TurnStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from smolsessions.store.seal import Sealer


@dataclass(frozen=True)
class Store:
    """The store's parts, ready for use."""

    server: str
    turns: TurnStore
    conversations: ConversationStore
    memories: HistoryStore
    scheduler: Scheduler
    running: tuple[asyncio.Future[None], ...]
    """What must not end while the store is in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a store is used. `partitions` is for a store that is new: else what it has.

    `replicated`: nothing is acknowledged that only one server has. `ours_alone`: no other process uses the store, so
    what an earlier one held is free at once.
    """

    lease_s: float
    log_ttl_s: int
    max_waiting: int
    max_queued: int
    id_reuse_s: int = 3600
    partitions: int | None = None
    replicated: bool = False
    patience_s: float = 0.0
    affinity_s: float = 0.0
    ours_alone: bool = False


@contextlib.asynccontextmanager
async def open_store(
    address: Address, sealer: Sealer, options: Options, on_loss: Callable[[], None]
) -> AsyncIterator[Store]:
    """Connect, check, and serve until left. Raises `StartError` with the mend where the store cannot be used."""
    servers = servers_at(address)
    try:
        about = await check_store(servers, address, sealer, options.partitions, replicated=options.replicated)
        me = secrets.token_hex(8)
        away = {"lease_us": int(options.lease_s * 1_000_000)}
        names = [f"{{p{place:03}}}" for place in range(about.partitions)]
        lines = [
            Pipeline(
                servers,
                name,
                on_connect=load_commands(),
                on_return=[script("outage").command(name, (), away)],
                on_loss=on_loss,
                replicated=options.replicated,
            )
            for name in names
        ]
        partitions = Partitions(
            [_partition(line, name, sealer, me, options) for line, name in zip(lines, names, strict=True)]
        )
        scheduler = Scheduler(
            partitions,
            worker=me,
            lease_s=options.lease_s,
            patience_s=options.patience_s,
            affinity_s=options.affinity_s,
        )
        turns = TurnStore(
            partitions,
            scheduler,
            IdempotencyKeys(about.pepper),
            max_waiting=options.max_waiting,
            max_queued=options.max_queued,
        )
        watch = ReplacementCheck(lines[0], about, sealer)
        for line, name, partition in zip(lines, names, partitions, strict=True):
            _listen(line, partition, f"{name}:stop:{me}", scheduler, watch.on_gap if line is lines[0] else None)
        durability = Durability(lines[0], names[0], replicated=options.replicated)
        running = (*(asyncio.create_task(line.run()) for line in lines), asyncio.create_task(durability.run()))
        try:
            while options.ours_alone and await scheduler.sweep(all_are_over=True):
                pass
            conversations = ConversationStore(partitions, turns)
            memories = HistoryStore(partitions, conversations, turns)
            yield Store(about.server, turns, conversations, memories, scheduler, (*running, watch.changed))
        finally:
            watch.close()
            await _cancel(running)
    finally:
        await servers.aclose()


def _partition(line: Pipeline, name: str, sealer: Sealer, me: str, options: Options) -> Partition:
    scripts, seals, channel = Scripts(line, name), ConversationSealer(sealer), f"{name}:replica:{me}"
    turn_log = TurnLog(scripts, seals, channel)
    ttls = (options.log_ttl_s, options.id_reuse_s)
    return Partition(scripts, seals, turn_log, channel, f"{name}:wake", *ttls, options.lease_s)


def _listen(
    line: Pipeline, partition: Partition, stop: str, scheduler: Scheduler, also_on_gap: Callable[[], None] | None = None
) -> None:
    """Say who hears what; where messages may have been lost, all look."""

    def on_gap() -> None:
        partition.log.on_gap()
        scheduler.look(partition)
        if also_on_gap:
            also_on_gap()

    heard = {
        partition.wake: lambda _, owner: scheduler.nudge(partition, owner.decode(errors="replace")),
        partition.channel: partition.log.hear,
        stop: scheduler.hear_stop,
    }
    line.listen(heard, on_gap)


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel until they have ended: a library's timeout may swallow a cancellation that comes in the same moment."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1)
