"""Harm to a store: to one server and the line to it, or to the nodes of a cluster."""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from tests.chaos.fleet import Fleet
from tests.chaos.proxy import Proxy
from tests.chaos.store import PARTITIONS, ClusterStore, LoneStore
from tests.topology.node import Node

Way = Callable[[], Awaitable[str | None]]
"""Does harm to its end, and returns what it did, or None if it did nothing."""

FROZEN_S = (0.2, 2.5)
STALLED_S = (0.2, 2.0)
DELAY_S = (0.005, 0.05)
UNANSWERED, UNANSWERED_S = 0.7, (0.02, 0.3)  # how often a cut loses answers, too, and for how long they are withheld


def _one_at_a_time(**ways: Way) -> dict[str, Way]:
    """Let a way do nothing while another one of them goes on."""
    free = asyncio.Lock()

    async def alone(way: Way) -> str | None:
        if free.locked():
            return None
        async with free:
            return await way()

    return {name: partial(alone, way) for name, way in ways.items()}


@dataclass
class LoneHarm:
    """Ends, freezes and restarts the one server, and disturbs the line to it."""

    draw: random.Random
    fleet: Fleet
    store: LoneStore
    proxy: Proxy

    def ways(self) -> dict[str, Way]:
        to_store = _one_at_a_time(blackout=self._blackout, restart=self._restart, freeze=self._freeze)
        return to_store | _one_at_a_time(cut=self._cut, stall=self._stall, delay=self._delay)

    async def _blackout(self) -> str:
        async with asyncio.TaskGroup() as tasks:
            for place in self.fleet.up:
                tasks.create_task(self.fleet.kill(place, "blackout"))
            await asyncio.to_thread(self.store.end, signal.SIGKILL)
            await asyncio.to_thread(self.store.start)
        return ""

    async def _restart(self) -> str:
        await asyncio.to_thread(self.store.end, self.draw.choice([signal.SIGTERM, signal.SIGKILL]))
        await asyncio.sleep(self.draw.uniform(0, 0.5))
        await asyncio.to_thread(self.store.start)
        return ""

    async def _freeze(self) -> str:
        self.store.freeze()
        await asyncio.sleep(self.draw.uniform(*FROZEN_S))
        self.store.thaw()
        return ""

    async def _cut(self) -> str | None:
        if self.draw.random() < UNANSWERED:
            self.proxy.hold_answers()
            await asyncio.sleep(self.draw.uniform(*UNANSWERED_S))
        lines = self.proxy.cut()
        self.proxy.flow()
        return f"{lines} lines" if lines else None

    async def _stall(self) -> str:
        self.proxy.stall()
        await asyncio.sleep(self.draw.uniform(*STALLED_S))
        if self.draw.random() < 0.3:
            self.proxy.cut()
        self.proxy.flow()
        return ""

    async def _delay(self) -> str:
        self.proxy.delay_s = self.draw.uniform(*DELAY_S)
        await asyncio.sleep(1)
        self.proxy.flow()
        return ""


@dataclass
class ClusterHarm:
    """Does one thing at a time to the nodes, in a thread, and waits until the cluster is whole again."""

    draw: random.Random
    store: ClusterStore

    def ways(self) -> dict[str, Way]:
        kinds = {
            "primary": self._primary,
            "bounce": self._bounce,
            "replica": self._replica,
            "freeze": self._freeze,
            "move": self._move,
        }
        return _one_at_a_time(**{kind: partial(asyncio.to_thread, way) for kind, way in kinds.items()})

    def _primary(self) -> str:
        """Kill a primary. Once its replica has taken over, start it again as a replica of that one."""
        node = self._any_primary()
        held = [place for place in PARTITIONS if self.store.owners(place) == [node]]
        node.kill()
        for place in held:
            self.store.primary_of(place)
        return self._restart(node)

    def _bounce(self) -> str:
        """Kill a primary and start it again before it is replaced. It then serves the data of its disk."""
        return self._restart(self._any_primary())

    def _replica(self) -> str:
        return self._restart(self.store.replica_of(self._any_primary()))

    def _freeze(self) -> str:
        """Freeze a primary for a short while, or until another one replaces it."""
        node = self._any_primary()
        node.freeze()
        time.sleep(self.draw.uniform(*FROZEN_S))
        node.thaw()
        self.store.until_whole()
        return f"port {node.port}"

    def _move(self) -> str:
        """Move a partition to another primary, atomically or key by key."""
        place, target, at_once = self.draw.choice(PARTITIONS), self._any_primary(), self.draw.random() < 0.5
        if self.store.primary_of(place) is not target:
            self.store.move(place, target, atomically=at_once)
        return f"{place} to port {target.port} {'at once' if at_once else 'key by key'}"

    def _any_primary(self) -> Node:
        return self.draw.choice(self.store.primaries())

    def _restart(self, node: Node) -> str:
        node.kill()
        self.store.restart(node)
        self.store.until_whole()
        return f"port {node.port}"
