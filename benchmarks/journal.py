"""Table H: what a tool call costs in the service, where it is journaled and logged, beside bare `agent.run`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.contenders import ROOT, server, store, store_pid
from benchmarks.cpu import SERVER_CORE, cpu_ms
from benchmarks.players import PLAYERS, Order, done
from benchmarks.watching import Caller

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.contenders import Server

JOURNAL_CONTENDERS = ("service", "bare")
ORDERS = (Order(1), Order(10), Order(50), Order(1, "block"), Order(50, "block"))
WARM_UP = 3


@dataclass(frozen=True)
class Cost:
    """A contender's turns of one order, each in a new conversation with a new agent."""

    contender: str
    order: Order
    wall_ms: list[float]
    cpu_ms: float
    """Of one turn. Without what the process for model-written code took."""
    store_ms: float = 0
    """Of the store's CPU."""


def measure_journal(rounds: int, times: int, progress: Callable[[str], None]) -> list[Cost]:
    """Give each order so often to each contender; they take turns, so that a slow minute meets both."""
    found = []
    with store() as socket_path, server("service", socket_path, PLAYERS) as running:
        pid = store_pid(socket_path)
        for order in ORDERS:
            _over_http(running, pid, order, WARM_UP)
        for number in range(1, rounds + 1):
            for order in ORDERS:
                for contender in JOURNAL_CONTENDERS:
                    progress(f"journal, round {number} of {rounds}: {contender}, {order.calls} calls in {order.kind}")
                    bare = contender == "bare"
                    found.append(_bare(order, times) if bare else _over_http(running, pid, order, times))
    return [_together(found, contender, order) for order in ORDERS for contender in JOURNAL_CONTENDERS]


def _together(found: list[Cost], contender: str, order: Order) -> Cost:
    same = [each for each in found if (each.contender, each.order) == (contender, order)]
    wall_ms = [each for cost in same for each in cost.wall_ms]
    cpu, store_cpu = (median(getattr(cost, name) for cost in same) for name in ("cpu_ms", "store_ms"))
    return Cost(contender, order, wall_ms, cpu, store_cpu)


def _over_http(running: Server, store: int, order: Order, times: int) -> Cost:
    with closing(Caller(running)) as caller:
        before = [cpu_ms(pid) for pid in (running.pid, store)]
        wall_ms = []
        for _ in range(times):
            took_ms, reply = caller.play(order)
            last = done(reply)
            if not last or last.number != order.calls:
                raise RuntimeError(f"{order} was answered with {reply!r}")
            wall_ms.append(took_ms)
        spent = [(cpu_ms(pid) - at) / times for pid, at in zip((running.pid, store), before, strict=True)]
    return Cost("service", order, wall_ms, *spent)


def _bare(order: Order, times: int) -> Cost:
    options = {"kind": order.kind, "calls": order.calls, "times": times}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "benchmarks.bare_player", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        os.sched_setaffinity(process.pid, [SERVER_CORE])
        printed, _ = process.communicate(timeout=600)
    figures = json.loads(printed)
    return Cost("bare", order, figures["wall_ms"], figures["cpu_ms"] / times)
