"""Store as operators run it: a Valkey server on a port of its own, on disk, with any number of replicas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from smolsessions.store.seal import new_key
from tests.topology.node import DURABLE, HOST, Node, until


@dataclass(frozen=True)
class Outside:
    """A running store, and the settings with which processes share it."""

    settings: dict[str, str]
    pids: list[int]


@contextmanager
def outside(replicas: int = 0) -> Iterator[Outside]:
    """Run an empty store on the caller's cores. Yield it once all replicas follow."""
    with TemporaryDirectory(prefix="smolbench-") as folder, ExitStack() as stack:
        primary = Node(Path(folder, "0"), DURABLE)
        followed = DURABLE | {"replicaof": f"{HOST} {primary.port}"}
        nodes = [primary, *(Node(Path(folder, str(number)), followed) for number in range(1, replicas + 1))]
        for node in nodes:
            stack.callback(node.kill)
            node.start()
        until(lambda: _followers(primary) == replicas, "all replicas follow")
        pids = [node.process.pid for node in nodes if node.process]
        yield Outside({"REDIS_URL": f"redis://{HOST}:{primary.port}", "SEAL_KEYS": new_key()}, pids)


def _followers(primary: Node) -> int:
    with primary.client() as client:
        about = client.info("replication")
    return sum(isinstance(value, dict) and value.get("state") == "online" for value in about.values())
