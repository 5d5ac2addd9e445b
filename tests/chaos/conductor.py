"""Conductor, which harms the service's processes and the store at random instants."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from tests.chaos.fleet import Fleet
from tests.chaos.harm import Harm as StoreHarm

PROCESSES: dict[str, float] = {"kill": 38, "stop": 18, "term": 12}
SHARES = PROCESSES | {"blackout": 0.4, "restart": 2, "freeze": 2, "cut": 8, "stall": 3, "delay": 3}
SHARES_OF_CLUSTER = PROCESSES | {"primary": 8, "bounce": 5, "replica": 3, "freeze": 5, "move": 12}
PAUSE_S = (0.3, 1.4)  # a turn that is hit three times before it makes progress is given up, as it should be
STOPPED_S = (0.2, 3.0)
LOOK_S = 0.05
ALSO_OF_FEW = 0.04
IMPATIENT, GRACE_S = 0.3, (0.05, 0.6)  # probability that a terminating process is killed, and the delay


class Looked(Protocol):
    """Store that can be inspected."""

    frozen: bool

    async def astray(self) -> list[str]: ...

    async def left_over(self) -> list[str]: ...


@dataclass
class Conductor:
    """Schedules the harm. `done` counts it by kind, and `astray` counts the findings of inspections."""

    draw: random.Random
    fleet: Fleet
    store: Looked
    to_store: StoreHarm
    shares: dict[str, float]
    done: Counter[str] = field(default_factory=Counter)
    astray: Counter[str] = field(default_factory=Counter)
    chronicle: list[str] = field(default_factory=list)

    async def harm(self, over: asyncio.Event) -> None:
        """Do harm until `over` is set. Each harm that has begun runs to its end."""
        ways: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "term": self._term,
            **self.to_store.ways(self._did),
        }
        async with asyncio.TaskGroup() as tasks:
            while not over.is_set():
                await asyncio.sleep(self.draw.uniform(*PAUSE_S))
                self.fleet.look()
                for place, member in enumerate(self.fleet.members):
                    if member is None:
                        tasks.create_task(self.fleet.start(place))
                (kind,) = self.draw.choices([*self.shares], [*self.shares.values()])
                tasks.create_task(_run(ways[kind]))

    async def look(self, over: asyncio.Event) -> None:
        """Inspect the store repeatedly. A finding that is seen twice in a row is not transient."""
        while not over.is_set():
            if not self.store.frozen:
                self.astray.update(await self.store.astray())
            await asyncio.sleep(LOOK_S)

    async def _kill(self) -> None:
        if (place := self._place("kill")) is not None:
            await self.fleet.kill(place)

    async def _stop(self) -> None:
        if (place := self._place("stop", spare=False)) is not None:
            await self.fleet.stop(place, self.draw.uniform(*STOPPED_S))

    async def _term(self) -> None:
        if (place := self._place("term")) is not None:
            await self.fleet.term(place, self.draw.uniform(*GRACE_S) if self.draw.random() < IMPATIENT else None)

    def _place(self, kind: str, *, spare: bool = True) -> int | None:
        """Choose a serving process. While several others start, mostly choose none, since little is in flight then."""
        few = spare and len(self.fleet.up) < max(2, len(self.fleet.members) - 1)
        if not self.fleet.up or (few and self.draw.random() > ALSO_OF_FEW):
            return None
        place = self.draw.choice(self.fleet.up)
        self._did(kind, f"process {self.fleet.pid(place)}")
        return place

    def _did(self, kind: str, what: str = "") -> None:
        self.done[kind] += 1
        self.chronicle.append(f"{time.time():.3f} {kind} {what}")


async def _run(way: Callable[[], Awaitable[None]]) -> None:
    await way()
