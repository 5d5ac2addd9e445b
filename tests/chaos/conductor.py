"""Does harm at random instants: to the service's processes, to the store, and to the lines between them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from tests.chaos.fleet import Fleet
    from tests.chaos.proxy import Proxy
    from tests.chaos.store import Store

SHARES = {
    "kill": 38,
    "stop": 18,
    "term": 12,
    "blackout": 0.4,
    "restart": 2,
    "freeze": 2,
    "cut": 8,
    "stall": 3,
    "delay": 3,
}
PAUSE_S = (0.3, 1.4)  # a turn that is hit three times before it gets anywhere is given up, as it should be
STOPPED_S = (0.2, 3.0)
FROZEN_S = (0.2, 2.5)
STALLED_S = (0.2, 2.0)
DELAY_S = (0.005, 0.05)
UNANSWERED, UNANSWERED_S = 0.7, (0.02, 0.3)  # how often a cut takes answers with it, and for how long
LOOK_S = 0.05
ALSO_OF_FEW = 0.04
IMPATIENT, GRACE_S = 0.3, (0.05, 0.6)  # how often a process that was asked to go is killed, and how soon


@dataclass
class Conductor:
    """`done` counts what was done; `astray` is what looks into the store found meanwhile."""

    draw: random.Random
    fleet: Fleet
    store: Store
    proxy: Proxy
    shares: dict[str, float]
    done: Counter[str] = field(default_factory=Counter)
    astray: Counter[str] = field(default_factory=Counter)
    chronicle: list[str] = field(default_factory=list)
    _store_free: asyncio.Lock = field(default_factory=asyncio.Lock)
    _line_free: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def harm(self, over: asyncio.Event) -> None:
        """Do harm until it is over; what was begun is brought to its end."""
        ways: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "term": self._term,
            "blackout": self._blackout,
            "restart": self._restart,
            "freeze": self._freeze,
            "cut": self._cut,
            "stall": self._stall,
            "delay": self._delay,
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
        """Look into the store again and again. What is found twice in a row was no matter of the moment."""
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

    async def _blackout(self) -> None:
        """End everything at once."""
        if self._store_free.locked():
            return
        async with self._store_free, asyncio.TaskGroup() as tasks:
            self._did("blackout")
            for place in self.fleet.up:
                tasks.create_task(self.fleet.kill(place, "blackout"))
            await self.store.end(signal.SIGKILL)
            await self.store.start()

    async def _restart(self) -> None:
        if self._store_free.locked():
            return
        async with self._store_free:
            self._did("restart")
            await self.store.end(self.draw.choice([signal.SIGTERM, signal.SIGKILL]))
            await asyncio.sleep(self.draw.uniform(0, 0.5))
            await self.store.start()
            self.chronicle.append(f"{time.time():.3f} store is back")

    async def _freeze(self) -> None:
        if self._store_free.locked():
            return
        async with self._store_free:
            self._did("freeze")
            self.store.freeze()
            await asyncio.sleep(self.draw.uniform(*FROZEN_S))
            self.store.thaw()
            self.chronicle.append(f"{time.time():.3f} store is thawed")

    async def _cut(self) -> None:
        if self._line_free.locked():
            return
        async with self._line_free:
            if self.draw.random() < UNANSWERED:
                self.proxy.hold_answers()
                await asyncio.sleep(self.draw.uniform(*UNANSWERED_S))
            if self.proxy.cut():
                self._did("cut")
            self.proxy.flow()

    async def _stall(self) -> None:
        if self._line_free.locked():
            return
        async with self._line_free:
            self._did("stall")
            self.proxy.stall()
            await asyncio.sleep(self.draw.uniform(*STALLED_S))
            if self.draw.random() < 0.3:
                self.proxy.cut()
            self.proxy.flow()

    async def _delay(self) -> None:
        if self._line_free.locked():
            return
        async with self._line_free:
            self._did("delay")
            self.proxy.delay_s = self.draw.uniform(*DELAY_S)
            await asyncio.sleep(1)
            self.proxy.flow()

    def _place(self, kind: str, *, spare: bool = True) -> int | None:
        """Choose a process that serves; mostly none while several others start, since little is in flight then."""
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
