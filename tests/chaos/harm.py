"""Harm to a store: to one server and the line to it, or to the nodes of a cluster."""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tests.chaos.cluster import ClusterStore
from tests.chaos.fleet import Fleet
from tests.chaos.proxy import Proxy
from tests.chaos.store import Store

Did = Callable[[str], None]
Ways = dict[str, Callable[[], Awaitable[None]]]

FROZEN_S = (0.2, 2.5)
STALLED_S = (0.2, 2.0)
DELAY_S = (0.005, 0.05)
UNANSWERED, UNANSWERED_S = 0.7, (0.02, 0.3)  # how often a cut loses answers, too, and for how long they are withheld


class Harm(Protocol):
    """Harm to a store. Each of its `ways` completes the harm that it began, and reports it to `did`."""

    def ways(self, did: Callable[[str, str], None]) -> Ways: ...


def _one_at_a_time(did: Callable[[str, str], None], *ways: Callable[[Did], Awaitable[None]]) -> Ways:
    """Return ways by their names. One does nothing while another one of them goes on."""
    free = asyncio.Lock()

    async def alone(name: str, way: Callable[[Did], Awaitable[None]]) -> None:
        if not free.locked():
            async with free:
                await way(partial(did, name))

    names = [way.__name__.removeprefix("_") for way in ways]
    return {name: partial(alone, name, way) for name, way in zip(names, ways, strict=True)}


@dataclass
class LoneHarm:
    """Ends, freezes and restarts the one server, and disturbs the line to it."""

    draw: random.Random
    fleet: Fleet
    store: Store
    proxy: Proxy

    def ways(self, did: Callable[[str, str], None]) -> Ways:
        to_store = _one_at_a_time(did, self._blackout, self._restart, self._freeze)
        return to_store | _one_at_a_time(did, self._cut, self._stall, self._delay)

    async def _blackout(self, did: Did) -> None:
        """End everything at once."""
        async with asyncio.TaskGroup() as tasks:
            did("")
            for place in self.fleet.up:
                tasks.create_task(self.fleet.kill(place, "blackout"))
            await self.store.end(signal.SIGKILL)
            await self.store.begin()

    async def _restart(self, did: Did) -> None:
        did("")
        await self.store.end(self.draw.choice([signal.SIGTERM, signal.SIGKILL]))
        await asyncio.sleep(self.draw.uniform(0, 0.5))
        await self.store.begin()

    async def _freeze(self, did: Did) -> None:
        did("")
        self.store.freeze()
        await asyncio.sleep(self.draw.uniform(*FROZEN_S))
        self.store.thaw()

    async def _cut(self, did: Did) -> None:
        if self.draw.random() < UNANSWERED:
            self.proxy.hold_answers()
            await asyncio.sleep(self.draw.uniform(*UNANSWERED_S))
        if self.proxy.cut():
            did("")
        self.proxy.flow()

    async def _stall(self, did: Did) -> None:
        did("")
        self.proxy.stall()
        await asyncio.sleep(self.draw.uniform(*STALLED_S))
        if self.draw.random() < 0.3:
            self.proxy.cut()
        self.proxy.flow()

    async def _delay(self, did: Did) -> None:
        did("")
        self.proxy.delay_s = self.draw.uniform(*DELAY_S)
        await asyncio.sleep(1)
        self.proxy.flow()


@dataclass
class ClusterHarm:
    """Does one thing at a time to the nodes, and waits until the cluster is whole again."""

    draw: random.Random
    store: ClusterStore

    def ways(self, did: Callable[[str, str], None]) -> Ways:
        return _one_at_a_time(did, self._primary, self._bounce, self._replica, self._freeze, self._move)

    async def _primary(self, did: Did) -> None:
        """Kill a primary. Once its replica has taken over, start it again as a replica of that one."""
        node = self.draw.choice(await self.store.primaries())
        did(f"port {node.port}")
        await self.store.replace(node)

    async def _bounce(self, did: Did) -> None:
        """Kill a primary and start it again before it is replaced. It then serves the data of its disk."""
        node = self.draw.choice(await self.store.primaries())
        did(f"port {node.port}")
        await self.store.restart(node)

    async def _replica(self, did: Did) -> None:
        node = self.draw.choice(await self.store.primaries())
        did(f"of port {node.port}")
        await self.store.restart_replica_of(node)

    async def _freeze(self, did: Did) -> None:
        """Freeze a primary for a short while, or until another one replaces it."""
        node = self.draw.choice(await self.store.primaries())
        did(f"port {node.port}")
        await self.store.freeze(node, self.draw.uniform(*FROZEN_S))

    async def _move(self, did: Did) -> None:
        """Move a partition to another primary, atomically or key by key."""
        place, target = self.draw.choice(self.store.partitions), self.draw.choice(await self.store.primaries())
        at_once = self.draw.random() < 0.5
        did(f"{place} to port {target.port} {'at once' if at_once else 'key by key'}")
        await self.store.move(place, target, atomically=at_once)
