"""One run: the same conversations in a calm round and in a wild one, on the same processes and the same store."""

import asyncio
import random
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.chaos import ledger, plans
from tests.chaos.client import Clients, Talk, clients_of
from tests.chaos.cluster import running_cluster
from tests.chaos.conductor import SHARES, SHARES_OF_CLUSTER, Conductor
from tests.chaos.fleet import Fleet, running_fleet
from tests.chaos.harm import ClusterHarm, LoneHarm
from tests.chaos.plans import Plan
from tests.chaos.proxy import proxy_to
from tests.chaos.rounds import Round
from tests.chaos.store import running_store

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
    def kinds(self) -> tuple[str, ...]:
        return tuple(SHARES_OF[self.store]) if self.harm is None else self.harm


async def run(scale: Scale, folder: Path) -> tuple[Round, Round]:
    """Play both rounds in a new folder."""
    drawn = plans.draw_plans(scale.turns, scale.seed, scale.agents)
    ledger.begin_round(folder / "ledger", "calm", CALM_PACE)
    async with AsyncExitStack() as stack:
        begin = _cluster if scale.store == "cluster" else _lone
        fleet, harm = await begin(stack, scale, folder)
        clients = await stack.enter_async_context(clients_of(fleet, random.Random(scale.seed)))
        shares = {kind: SHARES_OF[scale.store][kind] for kind in scale.kinds}
        conductor = Conductor(random.Random(scale.seed), fleet, harm.store, harm, shares)
        rounds = _Rounds(folder, drawn, scale, clients, conductor)
        return await rounds.play("calm", harm=False), await rounds.play("wild", harm=bool(scale.kinds))


async def _lone(stack: AsyncExitStack, scale: Scale, folder: Path) -> tuple[Fleet, LoneHarm]:
    """Start one server. Half of the processes reach it over a line that can be disturbed."""
    store = await stack.enter_async_context(running_store(folder / "store"))
    proxy = await stack.enter_async_context(proxy_to(store.socket_path))
    ways = [proxy.url, f"unix://{store.socket_path}"]
    stores = [ways[place % 2] for place in range(scale.processes)]
    fleet = await stack.enter_async_context(running_fleet(Fleet(folder, store.key, stores, folder / "ledger")))
    return fleet, LoneHarm(random.Random(scale.seed), fleet, store, proxy)


async def _cluster(stack: AsyncExitStack, scale: Scale, folder: Path) -> tuple[Fleet, ClusterHarm]:
    """Start six nodes. A replica has every write that they acknowledge."""
    store = await stack.enter_async_context(running_cluster(folder / "store"))
    stores = [store.cluster.url()] * scale.processes
    replicated = {"DURABILITY": "replicated"}
    fleet = Fleet(folder, store.key, stores, folder / "ledger", replicated)
    await stack.enter_async_context(running_fleet(fleet))
    return fleet, ClusterHarm(random.Random(scale.seed), store)


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
                await self._hold(talks)
            finally:
                over.set()
        took_s = time.monotonic() - start
        await self.conductor.fleet.settle()
        free = asyncio.Semaphore(SURVEYED_AT_ONCE)
        await asyncio.gather(*(self._survey(talk, free) for talk in talks))
        return await self._round(name, talks, took_s)

    async def _hold(self, talks: list[Talk]) -> None:
        waiting = list(reversed(talks))

        async def hold_some() -> None:
            while waiting:
                await self.clients.hold(waiting.pop())

        await asyncio.gather(*(hold_some() for _ in range(self.scale.at_once)))

    async def _survey(self, talk: Talk, free: asyncio.Semaphore) -> None:
        async with free:
            await self.clients.survey(talk)

    async def _round(self, name: str, talks: list[Talk], took_s: float) -> Round:
        fleet = self.conductor.fleet
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
            await self.conductor.store.left_over(),
            [*fleet.complaints, *fleet.tracebacks(), *await fleet.orphans()],
        )
