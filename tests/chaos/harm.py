"""Harm to a store: to one server and the line to it, or to the nodes of a cluster."""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from tests.chaos.cluster import ClusterStore
from tests.chaos.fleet import Fleet
from tests.chaos.proxy import Proxy
from tests.chaos.store import Store

Ways = dict[str, Callable[[], Awaitable[None]]]

FROZEN_S = (0.2, 2.5)
STALLED_S = (0.2, 2.0)
DELAY_S = (0.005, 0.05)
UNANSWERED, UNANSWERED_S = 0.7, (0.02, 0.3)  # how often a cut loses answers, too, and for how long they are withheld


class Harm(Protocol):
    """Harm to a store. Each of its `ways` completes the harm that it began, and reports it to `did`."""

    def ways(self, did: Callable[[str, str], None]) -> Ways: ...


@dataclass
class LoneHarm:
    """Ends, freezes and restarts the one server, and disturbs the line to it."""

    draw: random.Random
    fleet: Fleet
    store: Store
    proxy: Proxy
    _store_free: asyncio.Lock = field(default_factory=asyncio.Lock)
    _line_free: asyncio.Lock = field(default_factory=asyncio.Lock)

    def ways(self, did: Callable[[str, str], None]) -> Ways:
        self._did = did
        return {
            "blackout": self._blackout,
            "restart": self._restart,
            "freeze": self._freeze,
            "cut": self._cut,
            "stall": self._stall,
            "delay": self._delay,
        }

    async def _blackout(self) -> None:
        """End everything at once."""
        if self._store_free.locked():
            return
        async with self._store_free, asyncio.TaskGroup() as tasks:
            self._did("blackout", "")
            for place in self.fleet.up:
                tasks.create_task(self.fleet.kill(place, "blackout"))
            await self.store.end(signal.SIGKILL)
            await self.store.start()

    async def _restart(self) -> None:
        if self._store_free.locked():
            return
        async with self._store_free:
            self._did("restart", "")
            await self.store.end(self.draw.choice([signal.SIGTERM, signal.SIGKILL]))
            await asyncio.sleep(self.draw.uniform(0, 0.5))
            await self.store.start()

    async def _freeze(self) -> None:
        if self._store_free.locked():
            return
        async with self._store_free:
            self._did("freeze", "")
            self.store.freeze()
            await asyncio.sleep(self.draw.uniform(*FROZEN_S))
            self.store.thaw()

    async def _cut(self) -> None:
        if self._line_free.locked():
            return
        async with self._line_free:
            if self.draw.random() < UNANSWERED:
                self.proxy.hold_answers()
                await asyncio.sleep(self.draw.uniform(*UNANSWERED_S))
            if self.proxy.cut():
                self._did("cut", "")
            self.proxy.flow()

    async def _stall(self) -> None:
        if self._line_free.locked():
            return
        async with self._line_free:
            self._did("stall", "")
            self.proxy.stall()
            await asyncio.sleep(self.draw.uniform(*STALLED_S))
            if self.draw.random() < 0.3:
                self.proxy.cut()
            self.proxy.flow()

    async def _delay(self) -> None:
        if self._line_free.locked():
            return
        async with self._line_free:
            self._did("delay", "")
            self.proxy.delay_s = self.draw.uniform(*DELAY_S)
            await asyncio.sleep(1)
            self.proxy.flow()


@dataclass
class ClusterHarm:
    """Does one thing at a time to the nodes, and waits until the cluster is whole again."""

    draw: random.Random
    store: ClusterStore
    _free: asyncio.Lock = field(default_factory=asyncio.Lock)

    def ways(self, did: Callable[[str, str], None]) -> Ways:
        self._did = did
        return {
            "primary": self._primary,
            "bounce": self._bounce,
            "replica": self._replica,
            "freeze": self._freeze,
            "move": self._move,
        }

    async def _primary(self) -> None:
        """Kill a primary. Once its replica has taken over, start it again as a replica of that one."""
        if self._free.locked():
            return
        async with self._free:
            node = self.draw.choice(await self.store.primaries())
            self._did("primary", f"port {node.port}")
            await self.store.replace(node)

    async def _bounce(self) -> None:
        """Kill a primary and start it again before it is replaced. It then serves the data of its disk."""
        if self._free.locked():
            return
        async with self._free:
            node = self.draw.choice(await self.store.primaries())
            self._did("bounce", f"port {node.port}")
            await self.store.restart(node)

    async def _replica(self) -> None:
        if self._free.locked():
            return
        async with self._free:
            node = self.draw.choice(await self.store.primaries())
            self._did("replica", f"of port {node.port}")
            await self.store.restart_replica_of(node)

    async def _freeze(self) -> None:
        """Freeze a primary for a short while, or until another one replaces it."""
        if self._free.locked():
            return
        async with self._free:
            node = self.draw.choice(await self.store.primaries())
            self._did("freeze", f"port {node.port}")
            await self.store.freeze(node, self.draw.uniform(*FROZEN_S))

    async def _move(self) -> None:
        """Move a partition to another primary, atomically or key by key."""
        if self._free.locked():
            return
        async with self._free:
            place, target = self.draw.choice(self.store.partitions), self.draw.choice(await self.store.primaries())
            at_once = self.draw.random() < 0.5
            self._did("move", f"{place} to port {target.port} {'at once' if at_once else 'key by key'}")
            await self.store.move(place, target, atomically=at_once)
