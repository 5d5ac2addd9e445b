"""All results as text and as JSON data: machine, tables, startup, and the goals."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.code_report import code
from benchmarks.cpu import CORES, OTHER_CORE, SERVER_CORE
from benchmarks.memory_report import FLAT_FROM, memories
from benchmarks.scale_report import replicated, workers
from benchmarks.stream_report import beginnings, crowds, growth_per_piece, lengths, percentiles
from benchmarks.takeover import LEASE_S
from benchmarks.takeover_report import takeovers
from benchmarks.throughput import CONCURRENCIES, CONTENDERS, TURNS, medians
from smolsessions.store.embedded.server import find_binary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from benchmarks.code import Code
    from benchmarks.growth import Mark
    from benchmarks.memory_report import Memories
    from benchmarks.readers import Crowd
    from benchmarks.replays import Replay
    from benchmarks.streams import Streamed
    from benchmarks.takeover import Takeovers
    from benchmarks.throughput import Run
    from benchmarks.workers import Scaled

PACKAGES = ("smolsessions", "smolagents", "fastapi", "uvicorn", "uvloop", "redis", "pydantic")
KB, MB = 1000, 1_000_000
MOST_GROWTH = 1.5  # counts as flat: allows for the machine's noise, and for prompts that some policies let grow


@dataclass(frozen=True)
class Results:
    """All figures of one run of the benchmark."""

    runs: list[Run]
    marks: list[Mark]
    startup_s: list[float]
    load_before: float
    """The machine's load average before the first measurement. A load near 1 or above distorts the figures."""
    first: list[Streamed]
    long: list[Streamed]
    crowds: list[Crowd]
    code: Code | None
    takeovers: Takeovers | None
    replays: list[Replay]
    workers: list[Scaled]
    replicated: list[Run]
    memory: Memories | None

    def mark(self, contender: str, turn: int) -> Mark | None:
        return next((mark for mark in self.marks if (mark.contender, mark.turn) == (contender, turn)), None)


@dataclass(frozen=True)
class Goal:
    """A figure and its bound."""

    what: str
    value: float
    bound: float
    at_least: bool
    unit: str

    @property
    def met(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def goals(results: Results) -> list[Goal]:
    """Compare the results with the goals of issues 2 to 7. Goals of parts that were not measured are omitted."""
    found = []
    if results.runs:
        middle = medians(results.runs)
        service, naive, bare = (middle[name, 16].turns_per_s for name in CONTENDERS)
        found.append(Goal("turns/s at concurrency 16, service : naive", service / naive, 3, True, "x"))
        found.append(Goal("turns/s at concurrency 16, service : bare agent.run", service / bare, 2, True, "x"))
    early, middle_turn, late = (results.mark("service", turn) for turn in (2, 100, 200))
    if early and late:
        more = late.cpu_ms_per_turn - early.cpu_ms_per_turn
        found.append(Goal("CPU of turn 200 beyond that of turn 2", more, 5, False, "ms"))
    if middle_turn:
        stored = middle_turn.stored
        found.append(Goal("stored after 100 turns, all keys", stored.used / KB, 100, False, "KB"))
        found.append(
            Goal("stored after 100 turns, keys that do not expire", stored.used_lasting / KB, 100, False, "KB")
        )
    if results.startup_s:
        found.append(Goal("serve to first answered turn", median(results.startup_s), 2, False, "s"))
    return [
        *found,
        *_stream_goals(results),
        *_takeover_goals(results),
        *_memory_goals(results),
    ]


def _stream_goals(results: Results) -> Iterator[Goal]:
    for streamed in results.first:
        if streamed.contender == "service":
            what = f"first event after POST, p50, model's first piece after {streamed.order.first_ms} ms"
            yield Goal(what, percentiles(streamed, 0)[0], 3, False, "ms")
    if results.long:
        growth = growth_per_piece(results.long, "service")
        yield Goal("CPU per piece of the longest answer : of the shortest", growth, 1.1, False, "x")
    for crowd in results.crowds:
        if crowd.contender == "service" and crowd.readers >= 1000:
            yield Goal(f"resident per reader, {crowd.readers} readers", crowd.bytes_per_reader / KB, 50, False, "KB")
    for delay in results.code.delays if results.code else ():
        if delay.mode == "process" and delay.burn:
            yield Goal(f"/livez p99 beside a {delay.burn} that burns CPU", delay.p99_ms, 50, False, "ms")


def _takeover_goals(results: Results) -> Iterator[Goal]:
    if not (found := results.takeovers):
        return
    waits = [kill.waited_s for kill in found.kills]
    yield Goal(f"SIGKILL to the turn going on elsewhere, longest of {len(waits)}", max(waits), LEASE_S + 1, False, "s")
    starts = [kill.after_start_s for kill in found.restarts if kill.after_start_s is not None]
    what = f"embedded store started again to the turn going on, longest of {len(starts)}"
    yield Goal(what, max(starts), LEASE_S + 1, False, "s")
    waits_ms = [handover.waited_ms for handover in found.handovers]
    what = f"after SIGTERM, end of the step's call to the turn going on elsewhere, longest of {len(waits_ms)}"
    yield Goal(what, max(waits_ms), 100, False, "ms")


def _memory_goals(results: Results) -> Iterator[Goal]:
    if not (found := results.memory):
        return
    for record in found.records:
        turn, growth = found.growth(record.policy)
        yield Goal(f"CPU of turn {turn} : of turn {FLAT_FROM}, {record.policy}", growth, MOST_GROWTH, False, "x")
    missing = sum(record.missing for record in found.records)
    yield Goal(f"steps that are not in …/steps, of {sum(each.steps for each in found.records)}", missing, 0, False, "")


def machine() -> dict[str, str]:
    """Describe the machine and the versions of the measurement."""
    models = [line.partition(":")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return {
        "processor": f"{models[0].strip() if models else platform.machine()}, cores {', '.join(map(str, CORES))}",
        "pinned": f"server (and bare) to core {SERVER_CORE}; store and client to core {OTHER_CORE}",
        "system": platform.platform(),
        "python": platform.python_version(),
        "store": f"{find_binary().name} with an append-only file, on a unix socket with the embedded store's own "
        "options; I and K: on a port",
        "versions": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
    }


def as_data(results: Results) -> dict[str, Any]:
    """Return all results, including each run."""
    middle = medians(results.runs).values() if results.runs else ()
    return {
        "machine": machine(),
        "goals": [{**asdict(goal), "met": goal.met} for goal in goals(results)],
        "throughput_medians": [asdict(run) for run in middle],
        **asdict(results),
    }


def as_text(results: Results) -> str:
    """Lay the figures out for reading."""
    lines = [f"{name:<10} {value}" for name, value in machine().items()]
    load = f"{results.load_before:.2f} before the start, {os.getloadavg()[0]:.2f} at the end ({os.cpu_count()} cores)"
    lines.append(f"{'load':<10} {load}")
    for section in _sections(results):
        lines += ["", *section]
    lines += ["", "Goals"]
    for goal in goals(results):
        sign = ">=" if goal.at_least else "<="
        shown = f"{goal.value:8.2f} {goal.unit:<2} ({sign} {goal.bound:g} {goal.unit})"
        lines.append(f"  {'met   ' if goal.met else 'MISSED'} {shown:<26} {goal.what}")
    return "\n".join(lines)


def _sections(results: Results) -> Iterator[Iterable[str]]:
    if results.runs:
        yield _throughput(results.runs)
    if results.marks:
        yield _growth(results.marks)
    if results.startup_s:
        each = ", ".join(f"{seconds:.2f}" for seconds in results.startup_s)
        yield [f"Startup: serve on an empty folder to the first answered turn, embedded store: {each} s"]
    if results.first:
        yield beginnings(results.first)
    if results.long:
        yield lengths(results.long)
    if results.crowds:
        yield crowds(results.crowds)
    if results.code:
        yield code(results.code)
    if results.takeovers:
        yield takeovers(results.takeovers, results.replays)
    yield from _sections_of_scale(results)


def _sections_of_scale(results: Results) -> Iterator[Iterable[str]]:
    if results.workers:
        yield workers(results.workers)
    if results.replicated:
        yield replicated(results.replicated)
    if results.memory:
        yield memories(results.memory)


def _throughput(runs: list[Run]) -> Iterator[str]:
    middle = medians(runs)
    rounds = len(runs) // len(middle)
    yield f"A. Throughput: a tool call and an answer a turn, a new conversation every {TURNS} turns, {rounds} round(s)"
    yield "                                                                       server's core:  other core:"
    yield "   clients  contender  turns/s (from-to)   CPU ms/turn  p50 ms  p99 ms   server others   store client"
    for concurrency in CONCURRENCIES:
        for contender in CONTENDERS:
            run = middle[contender, concurrency]
            each = [one.turns_per_s for one in runs if (one.contender, one.concurrency) == (contender, concurrency)]
            spread = f"({min(each):.0f}-{max(each):.0f})"
            shares = [
                run.server_share,
                run.others_share,
                *((run.store_share, run.client_share) if run.store_share else ()),
            ]
            shown = " ".join(f"{share:{width}.0%}" for share, width in zip(shares, (8, 6, 7, 6), strict=False))
            yield (
                f"   {concurrency:7}  {contender:<9} {run.turns_per_s:8.0f} {spread:<12} {run.cpu_ms_per_turn:10.2f} "
                f"{run.p50_ms:7.1f} {run.p99_ms:7.1f} {shown}"
            )
        yield from _ratios([middle[name, concurrency] for name in CONTENDERS])
    yield (
        "   bare: agent.run as shipped, in process, no HTTP, no store, nothing durable; at 16, 16 conversations in 16 "
        f"threads;\n   includes making an agent every {TURNS} turns ({middle['bare', 1].building_ms:.1f} ms each)\n"
        "   others: what else ran on the server's core; where it is much, believe the ratios by CPU"
    )


def _ratios(of_one_concurrency: list[Run]) -> Iterator[str]:
    service, naive, bare = of_one_concurrency
    for what, figures in (
        ("by turns/s", (service.turns_per_s / naive.turns_per_s, service.turns_per_s / bare.turns_per_s)),
        ("by CPU", (naive.cpu_ms_per_turn / service.cpu_ms_per_turn, bare.cpu_ms_per_turn / service.cpu_ms_per_turn)),
    ):
        yield f"   {service.concurrency:7}  service is {figures[0]:.2f} x naive, {figures[1]:.2f} x bare, {what}"


def _growth(marks: list[Mark]) -> Iterator[str]:
    yield "B. One conversation: what it has come to after a turn, and what that turn costs (mean of the 5 up to it)"
    yield "   contender  turn   CPU ms       ms   stored KB: all    lasting  payload: all    lasting   resident MB"
    for mark in marks:
        stored = mark.stored
        sizes = (stored.used, stored.used_lasting, stored.payload, stored.payload_lasting)
        shown = " ".join(f"{size / KB:{width}.1f}" for size, width in zip(sizes, (16, 10, 13, 10), strict=True))
        yield (
            f"   {mark.contender:<9} {mark.turn:5} {mark.cpu_ms_per_turn:8.2f} {mark.ms_per_turn:8.2f} {shown} "
            f"{mark.resident_bytes / MB:13.2f}"
        )
    yield "   stored: MEMORY USAGE of all keys; lasting: without keys that expire; payload: names and values alone;"
    yield "   resident: growth of the server process"
