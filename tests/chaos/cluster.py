"""Cluster as the store of a run: harm to its nodes, and inspection of its keys."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from tests.chaos.store import ASTRAY, AWAY, WORKING, P
from tests.topology.cluster import ValkeyCluster
from tests.topology.node import HOST, Node

PARTITIONS = 16


@dataclass
class ClusterStore:
    """Six nodes. `frozen` is true while one of them is stopped, because an inspection would then take long."""

    cluster: ValkeyCluster
    frozen: bool = False

    @property
    def key(self) -> str:
        return self.cluster.key

    @property
    def partitions(self) -> list[str]:
        return [f"{{p{number:03d}}}" for number in range(PARTITIONS)]

    async def primaries(self) -> list[Node]:
        return await asyncio.to_thread(self.cluster.primaries)

    async def replace(self, node: Node) -> None:
        """Kill a primary, wait until each of its partitions has another, and start it again."""
        held = [place for place in self.partitions if self.cluster.owners(place) == [node]]
        node.kill()
        for place in held:
            await asyncio.to_thread(self.cluster.primary_of, place)
        await asyncio.to_thread(self.cluster.restart, node)
        await asyncio.to_thread(self.cluster.until_whole)

    async def restart_replica_of(self, node: Node) -> None:
        await self.restart(await asyncio.to_thread(self.cluster.replica_of, node))

    async def restart(self, node: Node) -> None:
        """Kill a node and start it again at once."""
        node.kill()
        await asyncio.to_thread(self.cluster.restart, node)
        await asyncio.to_thread(self.cluster.until_whole)

    async def freeze(self, node: Node, for_s: float) -> None:
        self.frozen = True
        node.freeze()
        await asyncio.sleep(for_s)
        node.thaw()
        self.frozen = False
        await asyncio.to_thread(self.cluster.until_whole)

    async def move(self, place: str, to: Node, *, atomically: bool) -> None:
        if await asyncio.to_thread(self.cluster.primary_of, place) is not to:
            await asyncio.to_thread(self.cluster.move, place, to, atomically=atomically)

    async def astray(self) -> list[str]:
        """Look once for lost conversations. An unreachable partition is skipped."""
        found: list[str] = []
        for place, node in (await asyncio.to_thread(self._places)).items():
            with suppress(*AWAY):
                async with _looking(node) as client:
                    found += await client.eval(ASTRAY.replace(P, place), 0)
        return found

    async def left_over(self) -> list[str]:
        """Return the names of keys that only turns in progress have."""
        names: list[str] = []
        for place, node in (await asyncio.to_thread(self._places)).items():
            async with _looking(node) as client:
                names += [str(name) for name in await client.keys(f"{place}:*")]
        return sorted(name for name in names if name.split(":")[1] in WORKING)

    def _places(self) -> dict[str, Node]:
        """Return the primary of each partition that has one."""
        found: dict[str, Node] = {}
        with suppress(*AWAY):
            for place in self.partitions:
                owners = self.cluster.owners(place)
                if len(owners) == 1:
                    found[place] = owners[0]
        return found


@asynccontextmanager
async def _looking(node: Node) -> AsyncIterator[Redis]:
    client = Redis(host=HOST, port=node.port, socket_timeout=1, socket_connect_timeout=1, decode_responses=True)
    try:
        yield client
    finally:
        await client.aclose()


@asynccontextmanager
async def running_cluster(folder: Path) -> AsyncIterator[ClusterStore]:
    # Sync each write. Otherwise a primary that returns before its replacement has less data than its replica had.
    cluster = ValkeyCluster(folder, options={"appendfsync": "always"})
    await asyncio.to_thread(cluster.__enter__)
    try:
        yield ClusterStore(cluster)
    finally:
        await asyncio.to_thread(cluster.end)
