"""Stores of a run, one server or a cluster, and an inspection of their keys that bypasses the proxy."""

import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from redis.exceptions import RedisError

from tests.support.data import data
from tests.support.store_server import StoreServer
from tests.support.waiting import PATIENCE_S
from tests.topology.cluster import ValkeyCluster
from tests.topology.node import Node

P = "{p000}"
PARTITIONS = [f"{{p{number:03d}}}" for number in range(16)]
SYNCED = {"appendfsync": "always"}  # a killed server may otherwise lose acknowledged writes
AWAY = (RedisError, OSError)
ASTRAY = data("astray.lua")
WORKING = ("ready", "owned", "owners", "leases", "waiting", "run", "journal", "queue", "pending", "watch")


class LoneStore(StoreServer):
    """Valkey server on disk. Its folder and its socket outlive its processes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.options |= SYNCED

    def end(self, number: signal.Signals) -> None:
        assert self.process
        self.process.send_signal(number)
        self.thaw()
        self.process.wait(PATIENCE_S)

    def places(self) -> dict[str, Node]:
        return {P: self}


class ClusterStore(ValkeyCluster):
    @property
    def frozen(self) -> bool:
        """True while a node is stopped, because an inspection would then take long."""
        return any(node.frozen for node in self.nodes)

    def places(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        with suppress(*AWAY):
            for place in PARTITIONS:
                owners = self.owners(place)
                if len(owners) == 1:
                    found[place] = owners[0]
        return found


def astray(places: Mapping[str, Node]) -> list[str]:
    """Look once for lost conversations. An unreachable partition is skipped."""
    found: list[str] = []
    for place, node in places.items():
        with suppress(*AWAY), node.client(decode_responses=True) as client:
            found += client.eval(ASTRAY.replace(P, place), 0)
    return found


def left_over(places: Mapping[str, Node]) -> list[str]:
    """Return the names of keys that only turns in progress have."""
    names: list[str] = []
    for place, node in places.items():
        with node.client(decode_responses=True) as client:
            names += client.keys(f"{place}:*")
    return sorted(name for name in names if name.split(":")[1] in WORKING)
