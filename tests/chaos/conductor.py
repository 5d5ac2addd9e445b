"""Conductor, which harms the service's processes and the store at random instants."""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.chaos.fleet import Fleet
from tests.chaos.harm import Way
from tests.chaos.store import ClusterStore, LoneStore, astray

PROCESSES: dict[str, float] = {"kill": 38, "stop": 18, "term": 12}
SHARES = PROCESSES | {"blackout": 0.4, "restart": 2, "freeze": 2, "cut": 8, "stall": 3, "delay": 3}
SHARES_OF_CLUSTER = PROCESSES | {"primary": 8, "bounce": 5, "replica": 3, "freeze": 5, "move": 12}
PAUSE_S = (0.3, 1.4)  # a turn that is hit three times before it makes progress is given up, as it should be
STOPPED_S = (0.2, 3.0)
LOOK_S = 0.05
ALSO_OF_FEW = 0.04
IMPATIENT, GRACE_S = 0.3, (0.05, 0.6)  # probability that a terminating process is killed, and the delay


@dataclass
class Conductor:
    """Schedules the harm. `done` counts it by kind, and `astray` counts the findings of inspections."""

    draw: random.Random
    fleet: Fleet
    store: LoneStore | ClusterStore
    to_store: dict[str, Way]
    shares: dict[str, float]
    done: Counter[str] = field(default_factory=Counter)
    astray: Counter[str] = field(default_factory=Counter)
    chronicle: list[str] = field(default_factory=list)

    async def harm(self, over: asyncio.Event) -> None:
        """Do harm until `over` is set. Each harm that has begun runs to its end."""
        ways = {"kill": self._kill, "stop": self._stop, "term": self._term} | self.to_store
        async with asyncio.TaskGroup() as tasks:
            while not over.is_set():
                await asyncio.sleep(self.draw.uniform(*PAUSE_S))
                self.fleet.look()
                for place, member in enumerate(self.fleet.members):
                    if member is None:
                        tasks.create_task(self.fleet.start(place))
                (kind,) = self.draw.choices([*self.shares], [*self.shares.values()])
                tasks.create_task(self._do(kind, ways[kind]))

    async def look(self, over: asyncio.Event) -> None:
        while not over.is_set():
            if not self.store.frozen:
                self.astray.update(await asyncio.to_thread(lambda: astray(self.store.places())))
            await asyncio.sleep(LOOK_S)

    async def _do(self, kind: str, way: Way) -> None:
        began = time.time()
        what = await way()
        if what is not None:
            self.done[kind] += 1
            self.chronicle.append(f"{began:.3f} to {time.time():.3f} {kind} {what}")

    async def _kill(self) -> str | None:
        if (place := self._place()) is None:
            return None
        pid = self.fleet.pid(place)
        await self.fleet.kill(place)
        return f"process {pid}"

    async def _stop(self) -> str | None:
        if not self.fleet.up:
            return None
        place = self.draw.choice(self.fleet.up)
        await self.fleet.stop(place, self.draw.uniform(*STOPPED_S))
        return f"place {place}"

    async def _term(self) -> str | None:
        if (place := self._place()) is None:
            return None
        pid = self.fleet.pid(place)
        await self.fleet.term(place, self.draw.uniform(*GRACE_S) if self.draw.random() < IMPATIENT else None)
        return f"process {pid}"

    def _place(self) -> int | None:
        """Choose a serving process. While several others start, mostly choose none, since little is in flight then."""
        up = self.fleet.up
        few = len(up) < max(2, len(self.fleet.members) - 1)
        return None if not up or (few and self.draw.random() > ALSO_OF_FEW) else self.draw.choice(up)
