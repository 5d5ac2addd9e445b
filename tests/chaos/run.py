"""One run: the same conversations in a calm round and in a wild one, on the same processes and the same store."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.chaos import ledger, plans
from tests.chaos.client import Clients, Talk, clients_of
from tests.chaos.conductor import SHARES, SHARES_OF_CLUSTER, Conductor
from tests.chaos.fleet import Fleet
from tests.chaos.harm import ClusterHarm, LoneHarm
from tests.chaos.plans import Plan
from tests.chaos.proxy import proxy_to
from tests.chaos.rounds import Round
from tests.chaos.store import SYNCED, ClusterStore, LoneStore, left_over

CALM_PACE = 0.1  # factor of the latencies of models and tools in the calm round
SURVEYED_AT_ONCE = 8
SHARES_OF: dict[str, dict[str, float]] = {"lone": SHARES, "cluster": SHARES_OF_CLUSTER}


@dataclass(frozen=True)
class Scale:
    """Size of a run. The same seed draws the same conversations, and harm of the same kinds."""

    turns: int
    seed: int
    processes: int = 4
    at_once: int = 24
    agents: tuple[str, ...] = tuple(plans.SHARES)
    harm: tuple[str, ...] | None = None
    """Default: all kinds of the store. Without any harm, a breach is a defect of the harness."""
    store: Literal["lone", "cluster"] = "lone"

    @property
    def shares(self) -> dict[str, float]:
        of_store = SHARES_OF[self.store]
        return of_store if self.harm is None else {kind: of_store[kind] for kind in self.harm}


async def run(scale: Scale, folder: Path) -> tuple[Round, Round]:
    drawn = plans.draw_plans(scale.turns, scale.seed, scale.agents)
    ledger.begin_round(folder / "ledger", "calm", CALM_PACE)
    async with AsyncExitStack() as stack:
        begin = _cluster if scale.store == "cluster" else _lone
        conductor = await begin(stack, scale, folder)
        clients = await stack.enter_async_context(clients_of(conductor.fleet, random.Random(scale.seed)))
        rounds = _Rounds(folder, drawn, scale, clients, conductor)
        return await rounds.play("calm", harm=False), await rounds.play("wild", harm=bool(scale.shares))


async def _lone(stack: AsyncExitStack, scale: Scale, folder: Path) -> Conductor:
    """Start one server. Half of the processes reach it over a line that can be disturbed."""
    store = LoneStore(folder / "store")
    stack.callback(store.kill)
    store.start()
    proxy = await stack.enter_async_context(proxy_to(store.socket_path))
    ways = [store.settings | {"REDIS_URL": proxy.url}, store.settings]
    fleet = await _fleet(stack, folder, [ways[place % 2] for place in range(scale.processes)])
    harm = LoneHarm(random.Random(scale.seed), fleet, store, proxy)
    return Conductor(random.Random(scale.seed), fleet, store, harm.ways(), scale.shares)


async def _cluster(stack: AsyncExitStack, scale: Scale, folder: Path) -> Conductor:
    """Start six nodes. A replica has every write that they acknowledge."""
    # Without a sync of each write, a primary that returns before its replacement has less data than its replica had.
    store = stack.enter_context(ClusterStore(folder / "store", options=SYNCED))
    fleet = await _fleet(stack, folder, [store.settings | {"DURABILITY": "replicated"}] * scale.processes)
    harm = ClusterHarm(random.Random(scale.seed), store)
    return Conductor(random.Random(scale.seed), fleet, store, harm.ways(), scale.shares)


async def _fleet(stack: AsyncExitStack, folder: Path, settings: list[dict[str, str]]) -> Fleet:
    fleet = Fleet(folder, settings)
    stack.push_async_callback(fleet.close)
    await fleet.start_all()
    return fleet


@dataclass
class _Rounds:
    folder: Path
    plans: list[Plan]
    scale: Scale
    clients: Clients
    conductor: Conductor

    async def play(self, name: str, *, harm: bool) -> Round:
        ledger.begin_round(self.folder / "ledger", name, 1 if harm else CALM_PACE)
        talks = [Talk(plan, f"{name}-{plan.name}") for plan in self.plans]
        start = time.monotonic()
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.conductor.look(over))
            if harm:
                tasks.create_task(self.conductor.harm(over))
            try:
                await _each(talks, self.clients.hold, self.scale.at_once)
            finally:
                over.set()
        took_s = time.monotonic() - start
        fleet, store = self.conductor.fleet, self.conductor.store
        await fleet.settle()
        await _each(talks, self.clients.survey, SURVEYED_AT_ONCE)
        fleet.look()
        (self.folder / f"{name}.log").write_text("\n".join(self.conductor.chronicle))
        return Round(
            name,
            talks,
            ledger.read(self.folder / "ledger", name),
            took_s,
            list(fleet.harms),
            self.conductor.done + self.clients.counts,
            Counter(self.conductor.astray),
            left_over(store.places()),
            [*fleet.complaints, *fleet.tracebacks(), *await fleet.orphans()],
        )


async def _each(talks: list[Talk], work: Callable[[Talk], Awaitable[None]], at_once: int) -> None:
    free = asyncio.Semaphore(at_once)

    async def one(talk: Talk) -> None:
        async with free:
            await work(talk)

    await asyncio.gather(*(one(talk) for talk in talks))
