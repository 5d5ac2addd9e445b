"""Table A: turns per second, CPU and latency of each contender at three concurrencies, in interleaved rounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from statistics import median, quantiles
from typing import Any

from benchmarks.agents import CALL_MS, WAITING
from benchmarks.client import Load, Talk
from benchmarks.contenders import ROOT, Server, embedding_server, server, store, store_pid
from benchmarks.cpu import SERVER_CORE, Meter, server_meter
from benchmarks.goals import at_least, at_most
from benchmarks.report import Row

DESCRIPTIONS = {
    "floor": "HTTP, one read and one write of the store, no agent",
    "trimmed": "smolagents without its avoidable costs, one pickle a turn, no journal, no events",
    "service": "this service: every turn durable and journaled, events logged",
    "embedded": "the same with its embedded store",
    "naive": "naive service: a dict of agents, the whole memory pickled after each turn",
    "bare": "`agent.run` as smolagents ships it, in process, no HTTP, nothing stored",
}
WAITING_THREADS = (64, 256)
WAITING_CLIENTS = 64
CONCURRENCIES = (1, 16, 64)
TURNS = 4  # of a conversation; the next message starts a new one


@dataclass(frozen=True)
class Run:
    """One contender at one concurrency. Shares are of one core."""

    contender: str
    concurrency: int
    threads: int
    turns_per_s: float
    cpu_ms_per_turn: float
    p50_ms: float
    p99_ms: float
    server_share: float
    others_share: float
    """Use of the server's core by anything except the contender. A large share makes turns/s too low."""
    client_share: float = 0
    store_share: float = 0


def measure_throughput(rounds: int, seconds: float, warmup_s: float, progress: Callable[[str], None]) -> list[Run]:
    """Play all rounds. Contenders alternate, so that a slow minute of the machine affects all of them."""
    runs = []
    for number in range(1, rounds + 1):
        for concurrency in CONCURRENCIES:
            for contender in DESCRIPTIONS:
                progress(f"throughput, round {number} of {rounds}: {contender} at concurrency {concurrency}")
                measure = {"bare": _bare, "embedded": _embedded}.get(contender, _over_http)
                runs.append(measure(contender, concurrency, seconds, warmup_s))
    return runs


def measure_waiting(rounds: int, seconds: float, warmup_s: float, progress: Callable[[str], None]) -> list[Run]:
    """Play rounds with a model that takes its time, and enough threads for all clients."""
    runs = []
    for number in range(1, rounds + 1):
        for threads in WAITING_THREADS:
            progress(f"throughput, round {number} of {rounds}: a waiting model, {threads} threads")
            settings = {**WAITING, "THREADS": str(threads)}
            with store() as path, server("service", path, settings) as running:
                name = f"{threads} threads, model of {CALL_MS} ms"
                runs.append(run_of(name, running, [store_pid(path)], WAITING_CLIENTS, (seconds, warmup_s)))
    return runs


def readme_rows(found: dict[tuple[str, int], Run]) -> Iterator[Row]:
    """Return the lines of the README's table."""
    for contender, description in DESCRIPTIONS.items():
        alone, some, many = (found[contender, clients] for clients in CONCURRENCIES)
        rates = f"{some.turns_per_s:,.0f} / {many.turns_per_s:,.0f}"
        costs = f"{some.cpu_ms_per_turn:.2f} / {many.cpu_ms_per_turn:.2f}"
        yield {"README": f"| {description} | {rates} | {costs} | {alone.p50_ms:.2f} |"}


def goals_of(found: dict[tuple[str, int], Run], waiting: Sequence[Run]) -> list[Row]:
    """Compare the service with the other contenders."""

    def ratio(figure: str, other: str, concurrency: int, contender: str = "service") -> float:
        ours, theirs = (getattr(found[name, concurrency], figure) for name in (contender, other))
        return float(ours / theirs)

    rows = []
    for clients in (16, 64):
        for other, least in {"trimmed": 0.5, "naive": 3, "bare": 2}.items():
            rows.append(at_least(f"turns/s to {other}, {clients} clients", least, ratio("turns_per_s", other, clients)))
        for other, most in {"trimmed": 1.3 / 0.82, "floor": 1.3 / 0.3}.items():
            rows.append(at_most(f"CPU to {other}, {clients} clients", most, ratio("cpu_ms_per_turn", other, clients)))
        share = ratio("turns_per_s", "service", clients, "embedded")
        rows.append(at_least(f"turns/s of embedded to service, {clients} clients", 0.9, share))
    rows.append(at_most("p50 to trimmed, 1 client", 1.6, ratio("p50_ms", "trimmed", 1)))
    return rows + [at_least(f"turns/s, 64 clients, {run.contender}", 575, run.turns_per_s) for run in waiting]


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


def _embedded(contender: str, concurrency: int, seconds: float, warmup_s: float) -> Run:
    with embedding_server() as (running, store_of_it):
        return run_of(contender, running, [store_of_it], concurrency, (seconds, warmup_s))


def run_of(
    contender: str, running: Server, stores: Sequence[int], concurrency: int, times_s: tuple[float, float]
) -> Run:
    """Measure a contender on the server's core, with its stores on the other. `times_s`: measurement and warm-up."""
    seconds, warmup_s = times_s
    load = Load([Talk(running.port, TURNS - i % TURNS, TURNS) for i in range(concurrency)])
    load.run(warmup_s)
    core, rest = server_meter(running.pid), Meter({"client": [os.getpid()], "store": stores})
    elapsed_s = load.run(seconds)
    shares, latencies_ms = {**rest.shares(), **core.shares()}, list(load.latencies_ms)
    load.finish()
    return _run(contender, (concurrency, running.threads), latencies_ms, elapsed_s, shares)


def _bare(contender: str, concurrency: int, seconds: float, warmup_s: float) -> Run:
    command = [sys.executable, "-m", "benchmarks.bare", json.dumps([concurrency, TURNS, warmup_s, seconds])]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        os.sched_setaffinity(process.pid, [SERVER_CORE])
        printed, _ = process.communicate(timeout=seconds + warmup_s + 60)
    found = json.loads(printed)
    return _run(contender, (concurrency, concurrency), found["latencies_ms"], seconds, found["shares"])


def _run(
    contender: str, size: tuple[int, int], latencies_ms: list[float], seconds: float, shares: dict[str, float]
) -> Run:
    rate, percents = len(latencies_ms) / seconds, percentiles(latencies_ms)
    named: dict[str, Any] = {f"{name}_share": share for name, share in shares.items()}
    return Run(contender, *size, rate, shares["server"] * 1000 / rate, *percents, **named)


def percentiles(latencies_ms: list[float]) -> tuple[float, float]:
    parts = quantiles(latencies_ms, n=100)
    return parts[49], parts[98]
