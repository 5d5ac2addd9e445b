"""Table A: turns per second, CPU and latency of each contender at three concurrencies, in interleaved rounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, replace
from operator import attrgetter
from statistics import median, quantiles
from typing import TYPE_CHECKING

from benchmarks.client import Load, Talk
from benchmarks.contenders import HTTP_CONTENDERS, ROOT, server, store, store_pid
from benchmarks.cpu import SERVER_CORE, ServerCore, cpu_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.contenders import Server

CONTENDERS = (*HTTP_CONTENDERS, "bare")
CONCURRENCIES = (1, 16, 64)
TURNS = 4  # of a conversation; the next message starts a new one


@dataclass(frozen=True)
class Run:
    """One contender at one concurrency. Shares are of one core."""

    contender: str
    concurrency: int
    turns_per_s: float
    cpu_ms_per_turn: float
    p50_ms: float
    p99_ms: float
    server_share: float
    others_share: float
    """Use of the server's core by anything except the contender. A large share makes turns/s too low."""
    client_share: float = 0
    store_share: float = 0
    building_ms: float = 0
    """Bare only: the median time of making an agent, which is part of its figures once in four turns."""


def measure_throughput(rounds: int, seconds: float, warmup_s: float, progress: Callable[[str], None]) -> list[Run]:
    """Play all rounds. Contenders alternate, so that a slow minute of the machine affects all of them."""
    runs = []
    for number in range(1, rounds + 1):
        for concurrency in CONCURRENCIES:
            for contender in CONTENDERS:
                progress(f"throughput, round {number} of {rounds}: {contender} at concurrency {concurrency}")
                measure = _bare if contender == "bare" else _over_http
                runs.append(measure(contender, concurrency, seconds, warmup_s))
    return runs


def medians(runs: list[Run]) -> dict[tuple[str, int], Run]:
    """Return the median of each figure over the rounds, by contender and concurrency."""
    found: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in sorted(runs, key=attrgetter("concurrency")):
        found[run.contender, run.concurrency].append(run)
    return {key: _middle(same) for key, same in found.items()}


def _middle(same: list[Run]) -> Run:
    figures = [name for name, value in vars(same[0]).items() if isinstance(value, float | int)]
    return replace(same[0], **{name: median(getattr(run, name) for run in same) for name in figures})


def _over_http(contender: str, concurrency: int, seconds: float, warmup_s: float) -> Run:
    with store() as socket_path, server(contender, socket_path) as running:
        return run_of(contender, running, [store_pid(socket_path)], concurrency, (seconds, warmup_s))


def run_of(
    contender: str, running: Server, stores: Sequence[int], concurrency: int, times_s: tuple[float, float]
) -> Run:
    """Measure a contender on the server's core, with its stores on the other. `times_s`: measurement and warm-up."""
    seconds, warmup_s = times_s
    load = Load([Talk(running.port, TURNS - i % TURNS, TURNS) for i in range(concurrency)])
    load.run(warmup_s)
    core, client, before = ServerCore(running.pid), cpu_ms(os.getpid()), [cpu_ms(pid) for pid in stores]
    elapsed_s = load.run(seconds)
    server_ms, others_share = core.taken()
    client_ms = cpu_ms(os.getpid()) - client
    store_ms = sum(cpu_ms(pid) - at for pid, at in zip(stores, before, strict=True))
    turns = len(load.latencies_ms)
    p50, p99 = percentiles(load.latencies_ms)
    load.finish()
    return Run(
        contender,
        concurrency,
        turns_per_s=turns / elapsed_s,
        cpu_ms_per_turn=server_ms / turns,
        p50_ms=p50,
        p99_ms=p99,
        server_share=server_ms / 1000 / elapsed_s,
        others_share=others_share,
        client_share=client_ms / 1000 / elapsed_s,
        store_share=store_ms / 1000 / elapsed_s,
    )


def _bare(contender: str, concurrency: int, seconds: float, warmup_s: float) -> Run:
    options = {"concurrency": concurrency, "turns": TURNS, "warmup": warmup_s, "seconds": seconds}
    command = [sys.executable, "-m", "benchmarks.bare", *(f"--{name}={value}" for name, value in options.items())]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        os.sched_setaffinity(process.pid, [SERVER_CORE])
        printed, _ = process.communicate(timeout=seconds + warmup_s + 60)
    found = json.loads(printed)
    turns = len(found["latencies_ms"])
    p50, p99 = percentiles(found["latencies_ms"])
    return Run(
        contender,
        concurrency,
        turns_per_s=turns / seconds,
        cpu_ms_per_turn=found["cpu_ms"] / turns,
        p50_ms=p50,
        p99_ms=p99,
        server_share=found["cpu_ms"] / 1000 / seconds,
        others_share=found["others_share"],
        building_ms=median(found["building_ms"]),
    )


def percentiles(latencies_ms: list[float]) -> tuple[float, float]:
    parts = quantiles(latencies_ms, n=100)
    return parts[49], parts[98]
