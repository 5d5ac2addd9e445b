"""Table F as text."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from benchmarks.code import AT_ONCE, CHANGES, PROBES, percentiles
from benchmarks.coders import FURTHER, TICKS, VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.code import Code

MB = 1_000_000


def code(found: Code) -> Iterator[str]:
    """Lay out table F."""
    yield (
        "F. A CodeAgent's code in a process of its own and in the turn's thread; service and processes on all cores, "
        f"load {found.load:.1f}"
    )
    yield from _costs(found)
    yield from _memory(found)
    yield f"   {AT_ONCE} conversations at once     turns/s (from-to)   p50 ms   p99 ms   load"
    for mode in dict.fromkeys(crush.mode for crush in found.crushes):
        runs = [crush for crush in found.crushes if crush.mode == mode]
        each = [run.turns_per_s for run in runs]
        yield (
            f"   {mode:<27} {median(each):8.0f} {f'({min(each):.0f}-{max(each):.0f})':<10} "
            f"{median(run.p50_ms for run in runs):8.1f} {median(run.p99_ms for run in runs):8.1f} "
            f"{max(run.load for run in runs):6.1f}"
        )
    yield f"   /livez, {PROBES} requests, beside    p50 ms     p99 ms     max ms   load"
    for delay in found.delays:
        beside = f"{delay.burn or 'nothing'}, {delay.mode}"
        yield f"   {beside:<27} {delay.p50_ms:10.2f} {delay.p99_ms:10.2f} {delay.max_ms:10.2f} {delay.load:6.1f}"
    yield from _changes(found)


def _costs(found: Code) -> Iterator[str]:
    turns = len(found.costs[0].turn)
    yield f"   ms, p50 / p99, {turns} turns     " + "  ".join(f"{costs.mode:>16}" for costs in found.costs)
    for what, name in (
        ("first block of a turn", "first"),
        ("each further block", "further"),
        ("each tool call", "call"),
        (f"turn, {FURTHER + 3} blocks, {TICKS} calls", "turn"),
    ):
        shown = (percentiles(getattr(costs, name)) for costs in found.costs)
        yield f"   {what:<28}" + "  ".join(f"{p50:8.2f}{p99:8.2f}" for p50, p99 in shown)


def _memory(found: Code) -> Iterator[str]:
    yield "   MB, sessions in a tool   each: all   child: own  proportional  (resident)   forking server, proportional"
    for one in found.memory:
        yield (
            f"   {f'{one.mode}, {one.sessions}':<22} {one.whole / MB:11.2f} {one.child_own / MB:12.2f} "
            f"{one.child_proportional / MB:13.2f} {one.child_resident / MB:11.1f} {one.server_proportional / MB:20.1f}"
        )


def _changes(found: Code) -> Iterator[str]:
    turns = len(found.changes[0].turn_ms)
    yield (
        f"   changed of {VARIABLES} variables   turn ms p50      p99  its block p50   fields       KB   list KB   "
        f"all written KB   ({turns} turns)"
    )
    for name in CHANGES:
        for one in (change for change in found.changes if change.change == name):
            p50, p99 = percentiles(one.turn_ms)
            yield (
                f"   {f'{name}, {one.mode}':<27} {p50:11.1f} {p99:8.1f} {median(one.block_ms):14.1f} "
                f"{median(one.fields):8.0f} {median(one.field_bytes) / 1000:8.1f} {median(one.list_bytes) / 1000:9.1f} "
                f"{median(one.log_bytes) / 1000:16.1f}"
            )
