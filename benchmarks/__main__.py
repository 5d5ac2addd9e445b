"""Runs the benchmark: `python -m benchmarks [--quick] [--json FILE]`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.code import measure_code
from benchmarks.cpu import OTHER_CORE
from benchmarks.growth import MARKS, measure_growth
from benchmarks.memory import LONG_MARKS, measure_policies
from benchmarks.memory_report import Memories
from benchmarks.readers import measure_readers
from benchmarks.replays import measure_replays
from benchmarks.replicated import measure_replicated
from benchmarks.report import Results, as_data, as_text
from benchmarks.startup import measure_startup
from benchmarks.streams import FIRST_ORDERS, LONG_ORDERS, measure_streams
from benchmarks.takeover import measure_takeovers
from benchmarks.throughput import measure_throughput
from benchmarks.workers import measure_workers

if TYPE_CHECKING:
    from collections.abc import Collection

PARTS = ("throughput", "growth", "startup", "streams", "readers", "code", "takeover", "memory")
SCALE_PARTS = ("workers", "replicated")


@dataclass(frozen=True)
class Extent:
    """Amount of measurement. The naive service's long turns far exceed the noise, so few conversations suffice."""

    rounds: int
    seconds: float
    warmup_s: float
    conversations: int
    naive_conversations: int
    naive_marks: tuple[int, ...]
    starts: int
    first_answers: int
    long_answers: int
    readers: tuple[int, ...]
    reading_s: float
    code_turns: int
    code_changes: int
    kills: int
    restarts: int
    handovers: int
    replays: int
    memories: int
    memory_marks: tuple[int, ...]


@dataclass(frozen=True)
class ScaleExtent:
    """Amount of measurement of many processes on one store."""

    rounds: int
    seconds: float


FULL = Extent(3, 5, 1, 20, 1, MARKS, 5, 100, 5, (50, 1000, 5000), 10, 200, 30, 12, 5, 12, 7, 2, LONG_MARKS)
QUICK = Extent(1, 2, 0.5, 5, 1, MARKS[:-1], 3, 60, 3, (50, 1000), 4, 40, 8, 3, 2, 3, 2, 1, LONG_MARKS[:5])
FULL_SCALE = ScaleExtent(2, 3)
QUICK_SCALE = ScaleExtent(1, 2)


def main() -> None:
    """Measure and print the figures. The exit status is 0 whether or not the goals are met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="some eight minutes; naive goes up to turn 100 only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    parser.add_argument(
        "--only", choices=(*PARTS, *SCALE_PARTS), action="append", help="measure this part alone (repeatable)"
    )
    options = parser.parse_args()
    extents = (QUICK, QUICK_SCALE) if options.quick else (FULL, FULL_SCALE)
    results = measure(*extents, options.only or (*PARTS, *SCALE_PARTS))
    sys.stderr.write("\n")
    print(as_text(results))
    if options.json:
        options.json.write_text(json.dumps(as_data(results), indent=2) + "\n")


def measure(extent: Extent, scale: ScaleExtent, parts: Collection[str]) -> Results:
    """Measure the parts one after the other. This process and its store stay on their core."""
    load_before = os.getloadavg()[0]
    os.sched_setaffinity(0, [OTHER_CORE])
    runs, marks, startup_s, first, long, crowds, replays = [], [], [], [], [], [], []
    if "throughput" in parts:
        runs = measure_throughput(extent.rounds, extent.seconds, extent.warmup_s, _progress)
    if "growth" in parts:
        marks = measure_growth("service", extent.conversations, MARKS, _progress)
        marks += measure_growth("naive", extent.naive_conversations, extent.naive_marks, _progress)
    if "startup" in parts:
        _progress(f"startup, {extent.starts} times")
        startup_s = measure_startup(extent.starts)
    if "streams" in parts:
        first = measure_streams(FIRST_ORDERS, extent.rounds, extent.first_answers, _progress)
        long = measure_streams(LONG_ORDERS, extent.rounds, extent.long_answers, _progress)
    if "readers" in parts:
        crowds = measure_readers(extent.readers, extent.reading_s, _progress)
    code = takeovers = None
    if "code" in parts:
        code = measure_code(extent.code_turns, extent.rounds, extent.seconds, extent.code_changes, _progress)
    if "takeover" in parts:
        takeovers = measure_takeovers(extent.kills, extent.restarts, extent.handovers, _progress)
        replays = measure_replays(extent.replays, _progress)
    memory = _measure_memory(extent) if "memory" in parts else None
    return Results(
        *(runs, marks, startup_s, load_before, first, long, crowds, code, takeovers, replays),
        **_measure_scale(scale, parts),
        memory=memory,
    )


def _measure_memory(extent: Extent) -> Memories:
    return Memories(*measure_policies(extent.memories, extent.memory_marks, _progress))


def _measure_scale(scale: ScaleExtent, parts: Collection[str]) -> dict[str, Any]:
    """Return the figures of many processes, by their names in the results."""
    return {
        "workers": measure_workers(scale.rounds, scale.seconds, _progress) if "workers" in parts else [],
        "replicated": measure_replicated(scale.rounds, scale.seconds, _progress) if "replicated" in parts else [],
    }


def _progress(text: str) -> None:
    sys.stderr.write(f"\r\x1b[K{text}" if sys.stderr.isatty() else f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
