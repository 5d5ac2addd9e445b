"""Table K: cost of a turn by the store's shape: replicas that acknowledge writes, partitions, a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.cpu import SERVER_CORE
from benchmarks.fleet import role
from benchmarks.outside import Outside, outside
from benchmarks.throughput import Run, medians, run_of
from tests.topology.cluster import ValkeyCluster

CONCURRENCIES = (1, 16)
WARM_UP_S = 0.5


@dataclass(frozen=True)
class Shape:
    """A store, and the settings with which the service uses it."""

    name: str
    replicas: int = 0
    durability: str = "primary"
    partitions: int = 1
    cluster: bool = False

    @property
    def settings(self) -> dict[str, str]:
        return {
            "AGENTS": "bench=benchmarks.agents:make_agent",
            "DURABILITY": self.durability,
            "PARTITIONS": str(self.partitions),
        }


SHAPES = (
    Shape("no replica"),
    Shape("1 replica, primary", 1),
    Shape("1 replica, replicated", 1, "replicated"),
    Shape("2 replicas, primary", 2),
    Shape("2 replicas, replicated", 2, "replicated"),
    Shape("no replica, 16 partitions", partitions=16),
    Shape("cluster of 6, primary", partitions=16, cluster=True),
    Shape("cluster of 6, replicated", durability="replicated", partitions=16, cluster=True),
)


def measure_replicated(rounds: int, seconds: float, progress: Callable[[str], None]) -> list[Run]:
    """Return the medians of all rounds. `serve` has one core, the store's servers and the client share the other."""
    found = []
    for number in range(1, rounds + 1):
        for shape in SHAPES:
            with _store(shape) as store, role("serve", store, shape.settings, cores=[SERVER_CORE]) as running:
                for concurrency in CONCURRENCIES:
                    progress(f"replicated, round {number} of {rounds}: {shape.name}, at concurrency {concurrency}")
                    found.append(run_of(shape.name, running, store.pids, concurrency, (seconds, WARM_UP_S)))
    return list(medians(found).values())


@contextmanager
def _store(shape: Shape) -> Iterator[Outside]:
    if not shape.cluster:
        with outside(shape.replicas) as store:
            yield store
        return
    with TemporaryDirectory(prefix="smolbench-") as folder, ValkeyCluster(Path(folder)) as cluster:
        pids = [node.process.pid for node in cluster.nodes if node.process]
        yield Outside(cluster.settings, pids)
