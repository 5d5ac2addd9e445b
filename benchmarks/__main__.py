"""Runs the benchmark: `python -m benchmarks [--quick] [--json FILE]`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.agents import CALL_MS
from benchmarks.code import goals_of as code_goals
from benchmarks.code import measure_code
from benchmarks.cpu import OTHER_CORE
from benchmarks.goals import at_most
from benchmarks.growth import MARKS, measure_growth
from benchmarks.growth import goals_of as growth_goals
from benchmarks.memory import LONG_MARKS, measure_policies
from benchmarks.readers import TOPICS, measure_readers
from benchmarks.replays import measure_replays
from benchmarks.replicated import measure_replicated
from benchmarks.report import Row, Tables, as_text, machine, rows_of, spread
from benchmarks.startup import measure_startup
from benchmarks.streams import FIRST_ORDERS, LONG_ORDERS, figures_of, measure_open_streams, measure_streams
from benchmarks.takeover import LEASE_S, measure_takeovers
from benchmarks.throughput import TURNS, measure_throughput, measure_waiting, medians, readme_rows
from benchmarks.throughput import goals_of as throughput_goals
from benchmarks.workers import measure_workers

GOALS = 'Goals. A figure "to" another contender\'s is the quotient of both; 1 KB is 1,000 bytes'


@dataclass(frozen=True)
class Extent:
    """Amount of measurement. The naive service's long turns far exceed the noise, so few conversations suffice."""

    rounds: int
    seconds: float
    warmup_s: float
    conversations: int
    naive_marks: tuple[int, ...]
    starts: int
    first_answers: int
    long_answers: int
    readers: tuple[int, ...]
    reading_s: float
    kills: int
    restarts: int
    handovers: int
    replays: int
    memories: int
    memory_marks: tuple[int, ...]
    scale_rounds: int
    """Of many processes on one store."""
    scale_s: float


FULL = Extent(3, 5, 1, 20, MARKS, 5, 100, 5, (50, 1000, 5000), 10, 12, 5, 12, 7, 2, LONG_MARKS, 2, 3)
QUICK = Extent(1, 2, 0.5, 5, MARKS[:-1], 3, 60, 3, (50, 1000), 4, 3, 2, 3, 2, 1, LONG_MARKS[:5], 1, 2)


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="some ten minutes; naive goes up to turn 100 only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this part alone (repeatable)")
    options = parser.parse_args()
    about = {**machine(), "load": f"{os.getloadavg()[0]:.2f} before the start ({os.cpu_count()} cores)"}
    os.sched_setaffinity(0, [OTHER_CORE])  # of this process and its store
    tables: Tables = {}
    goals: list[Row] = []
    for part in options.only or PARTS:
        for title, rows in PARTS[part](QUICK if options.quick else FULL):
            if title == GOALS:
                goals += rows
            else:
                tables[title] = rows
    if goals:
        tables[GOALS] = goals
    sys.stderr.write("\n")
    print(as_text(about, {title: rows_of(figures) for title, figures in tables.items()}))
    if options.json:
        options.json.write_text(json.dumps({"machine": about, "tables": tables}, indent=2, default=vars) + "\n")


def _throughput(extent: Extent) -> Iterator[tuple[str, list[Any]]]:
    runs = measure_throughput(extent.rounds, extent.seconds, extent.warmup_s, _progress)
    title = f"A. Throughput: a tool call and an answer a turn, a new conversation every {TURNS} turns; shares of a core"
    found = medians(runs)
    yield title, [*found.values()]
    waiting = [*medians(measure_waiting(extent.rounds, extent.seconds, extent.warmup_s, _progress)).values()]
    yield f"   The same turns of the service with a model of {CALL_MS} ms a call", waiting
    yield "   The same for the README, at 16 / 64 clients (the last column: 1 client)", [*readme_rows(found)]
    yield GOALS, throughput_goals(found, waiting)


def _growth(extent: Extent) -> Iterator[tuple[str, list[Any]]]:
    found = measure_growth("service", extent.conversations, MARKS, _progress)
    naive = measure_growth("naive", 1, extent.naive_marks, _progress)
    title = "B. One conversation: its size after a turn, and the cost of that turn (mean of the 5 up to it)"
    yield title, found.marks + naive.marks
    turns = {f"in a restarted process, turn {MARKS[-1] + 1}": found.cold_ms, "the turn after it": found.warm_ms}
    yield "   ms of a turn", [spread(what, times) for what, times in turns.items()]
    yield GOALS, growth_goals(found)


def _startup(extent: Extent) -> Iterator[tuple[str, list[Any]]]:
    _progress(f"startup, {extent.starts} times")
    what = "serve on an empty folder to the first answered turn, embedded store, s"
    yield "Startup", [spread(what, measure_startup(extent.starts))]


def _streams(extent: Extent) -> Iterator[tuple[str, list[Any]]]:
    first = measure_streams(FIRST_ORDERS, extent.rounds, extent.first_answers, _progress)
    figures = [*map(figures_of, first)]
    yield "C. The beginning of a stream, from POST (bare: from run) on, 1 client", figures
    long = measure_streams(LONG_ORDERS, extent.rounds, extent.long_answers, _progress)
    yield "D. One long answer, streamed at the model's full speed", [*map(figures_of, long)]
    _progress("open streams")
    still = measure_open_streams()
    yield "   Open streams, with connection, turn, thread and session, while their models sleep", [still]
    first_event = at_most("ms to the first event, p50", 1.5, figures[0]["event_p50_ms"])
    yield GOALS, [first_event, at_most("resident KB of an open stream", 50, still.resident_bytes_each / 1000)]


def _readers(extent: Extent) -> Iterator[tuple[str, list[Any]]]:
    crowds = measure_readers(extent.readers, extent.reading_s, _progress)
    yield f"E. Readers of {TOPICS} running turns, an event a second each; one server process", crowds


def _code(extent: Extent) -> Iterator[tuple[str, list[Any]]]:
    rows = measure_code(extent.conversations, _progress)
    yield "F. Code in a process of its own (or the turn's thread), and long conversations, on all cores; 1 client", rows
    yield GOALS, [*code_goals(rows)]


def _takeover(extent: Extent) -> Iterator[tuple[str, list[Any]]]:
    found = measure_takeovers(extent.kills, extent.restarts, extent.handovers, _progress)
    replays = measure_replays(extent.replays, _progress)
    rows = [spread(what, times) for what, times in found.items()]
    for model_ms in dict.fromkeys(replay.model_ms for replay in replays):
        same = [replay for replay in replays if replay.model_ms == model_ms]
        what = f"ms: from an attempt's start to the last step's call, a model of {model_ms} ms"
        rows += [spread(f"{what}: first run", [replay.first_ms for replay in same])]
        rows += [spread(f"{what}: replay", [replay.again_ms for replay in same])]
    yield (
        f"G. From the end of a turn's process to `turn.started` of attempt 2 at a reader; a lease of {LEASE_S:g} s",
        rows,
    )


def _memory(extent: Extent) -> Iterator[tuple[str, list[Any]]]:
    bounded, missing = measure_policies(extent.memories, extent.memory_marks, _progress)
    yield "M. A conversation under each memory policy: a turn's cost, and its prompt (tokens are estimated)", bounded
    yield GOALS, [at_most("steps missing in …/steps, of all policies", 0, missing)]


def _workers(extent: Extent) -> Iterator[tuple[str, list[Any]]]:
    found = measure_workers(extent.scale_rounds, extent.scale_s, _progress)
    yield "I. Many processes on one store, two model calls a turn; shares of a core", found


def _replicated(extent: Extent) -> Iterator[tuple[str, list[Any]]]:
    found = measure_replicated(extent.scale_rounds, extent.scale_s, _progress)
    yield (
        "K. The store's shape: one `serve` on a core of its own, the store's servers and the client on the other",
        found,
    )


def _progress(text: str) -> None:
    sys.stderr.write(f"\r\x1b[K{text}" if sys.stderr.isatty() else f"{text}\n")
    sys.stderr.flush()


PARTS: dict[str, Callable[[Extent], Iterator[tuple[str, list[Any]]]]] = {
    "throughput": _throughput,
    "growth": _growth,
    "startup": _startup,
    "streams": _streams,
    "readers": _readers,
    "code": _code,
    "takeover": _takeover,
    "memory": _memory,
    "workers": _workers,
    "replicated": _replicated,
}

if __name__ == "__main__":
    main()
