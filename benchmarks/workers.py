"""Table I: turns per second of one `web` and several `work` processes, and of sets of `serve`, on one store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from benchmarks.client import Load, Talk
from benchmarks.cpu import Meter, on_all_cores
from benchmarks.fleet import family, role
from benchmarks.outside import outside
from benchmarks.throughput import TURNS, percentiles

COUNTS = (1, 2, 4)
WARM_UP_S = 3.0  # with many clients, the first seconds are spent on making as many agents


@dataclass(frozen=True)
class Bound:
    """Resource that is to limit a set-up."""

    name: str
    threads: int
    clients: int
    """For each playing process."""
    roles: tuple[str, ...]


BY_THREADS = Bound("threads", 4, 8, ("work",))
BY_CPU = Bound("CPU", 128, 0, ("work", "serve"))
MANY_CLIENTS = 256  # the same for all where CPU is the bound
BOUNDS = (BY_THREADS, BY_CPU)


@dataclass(frozen=True)
class Scaled:
    """Figures of a number of playing processes under a number of clients."""

    bound: str
    role: str
    """`work` beside one `web`, or `serve`."""
    count: int
    clients: int
    turns_per_s: float
    p50_ms: float
    p99_ms: float
    shares: dict[str, float]
    """CPU of each kind of process, and of `others` on the machine. 1 is one core."""

    def cpu_ms(self, kind: str) -> float:
        """Return the CPU time of a turn."""
        return self.shares.get(kind, 0) * 1000 / self.turns_per_s


@dataclass(frozen=True)
class _Setup:
    """Running processes, and the port of their HTTP interface."""

    bound: Bound
    role: str
    count: int
    port: int
    processes: dict[str, list[int]]


def measure_workers(rounds: int, seconds: float, progress: Callable[[str], None]) -> list[Scaled]:
    """Return the median of all rounds for each set-up. Processes, store and client are on all cores."""
    found: list[Scaled] = []
    with on_all_cores():
        for number in range(1, rounds + 1):
            for bound in BOUNDS:
                for name in bound.roles:
                    progress(f"workers, round {number} of {rounds}: {name}, bound by {bound.name}")
                    found += _sets(bound, seconds) if name == "serve" else _crews(bound, seconds)
    each = len(found) // rounds
    return [_middle(found[at::each]) for at in range(each)]


def _crews(bound: Bound, seconds: float) -> Iterator[Scaled]:
    """Measure one `web` with more and more workers."""
    settings = {"THREADS": str(bound.threads)}
    with outside() as store, ExitStack() as stack:
        web = stack.enter_context(role("web", store))
        workers: list[int] = []
        for count in COUNTS:
            while len(workers) < count:
                workers.append(stack.enter_context(role("work", store, settings)).pid)
            processes = {"web": [web.pid], "work": workers, "store": store.pids}
            yield _scaled(_Setup(bound, "work", count, web.port, processes), seconds)


def _sets(bound: Bound, seconds: float) -> Iterator[Scaled]:
    """Measure sets of `serve`, each started anew."""
    settings = {"THREADS": str(bound.threads)}
    for count in COUNTS:
        with outside() as store, role("serve", store, settings, processes=count) as serving:
            processes = {"serve": family(serving.pid), "store": store.pids}
            yield _scaled(_Setup(bound, "serve", count, serving.port, processes), seconds)


def _scaled(setup: _Setup, seconds: float) -> Scaled:
    bound, clients = setup.bound, setup.bound.clients * setup.count or MANY_CLIENTS
    load = Load([Talk(setup.port, TURNS - at % TURNS, TURNS) for at in range(clients)])
    load.run(WARM_UP_S)
    meter = Meter({**setup.processes, "client": [os.getpid()]})
    elapsed_s = load.run(seconds)
    shares, latencies_ms = meter.shares(), list(load.latencies_ms)
    load.finish()
    p50, p99 = percentiles(latencies_ms)
    turns_per_s = len(latencies_ms) / elapsed_s
    return Scaled(bound.name, setup.role, setup.count, clients, turns_per_s, p50, p99, shares)


def _middle(same: list[Scaled]) -> Scaled:
    first = same[0]
    turns_per_s, p50, p99 = (
        median(getattr(each, name) for each in same) for name in ("turns_per_s", "p50_ms", "p99_ms")
    )
    shares = {kind: median(each.shares[kind] for each in same) for kind in first.shares}
    return Scaled(first.bound, first.role, first.count, first.clients, turns_per_s, p50, p99, shares)
