"""Table I, its end: what a turn of a long conversation costs where several workers share in it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.client import Talk
from benchmarks.cpu import Meter, on_all_cores
from benchmarks.fleet import role
from benchmarks.growth import WINDOW
from benchmarks.outside import outside
from benchmarks.sizes import INSTANT, play_round
from benchmarks.workers import COUNTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONVERSATIONS = 16
SETTINGS = {**INSTANT, "THREADS": "8"}


@dataclass(frozen=True)
class Moved:
    """The CPU of a turn, the mean of the last few up to that one, with so many workers."""

    workers: int
    turn: int
    web_ms: float
    work_ms: float
    store_ms: float


def measure_moving(marks: tuple[int, ...], progress: Callable[[str], None]) -> list[Moved]:
    """Play conversations in lockstep, so that any worker may have any turn; all processes are on all cores."""
    with on_all_cores():
        return [moved for count in COUNTS for moved in _moving(count, marks, progress)]


def _moving(count: int, marks: tuple[int, ...], progress: Callable[[str], None]) -> Iterator[Moved]:
    with outside() as store, ExitStack() as stack:
        web = stack.enter_context(role("web", store, INSTANT))
        workers = [stack.enter_context(role("work", store, SETTINGS)).pid for _ in range(count)]
        play_round([Talk(web.port) for _ in range(CONVERSATIONS)], last=True)
        talks = [Talk(web.port) for _ in range(CONVERSATIONS)]
        played = 0
        for mark in marks:
            progress(f"workers: {count}, conversations up to turn {mark}")
            while played < mark - WINDOW:
                played += 1
                play_round(talks)
            meter, begun = Meter({"web": [web.pid], "work": workers, "store": store.pids}), time.perf_counter()
            while played < mark:
                played += 1
                play_round(talks)
            shares, elapsed_ms = meter.shares(), (time.perf_counter() - begun) * 1000
            each = {kind: share * elapsed_ms / CONVERSATIONS / WINDOW for kind, share in shares.items()}
            yield Moved(count, mark, each["web"], each["work"], each["store"])
        for talk in talks:
            talk.close()
