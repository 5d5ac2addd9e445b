"""Tables G and H as text."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.replays import MODELS_MS, STEPS
from benchmarks.takeover import LEASE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.journal import Cost
    from benchmarks.replays import Replay
    from benchmarks.takeover import Takeovers

_WIDTH = 76


def takeovers(found: Takeovers, replays: list[Replay]) -> Iterator[str]:
    """Lay out table G."""
    yield (
        f"G. A turn whose process ends, until `turn.started` of attempt 2 comes to a reader; a lease of {LEASE_S:g} s, "
        f"load {found.load:.1f}"
    )
    yield f"   {'':<{_WIDTH}} times   median    least     most"
    yield _row("s   SIGKILL, a process beside it: from the kill", [kill.waited_s for kill in found.kills], 2)
    yield _row("s   SIGKILL, embedded store: from the kill", [kill.waited_s for kill in found.restarts], 2)
    starts = [kill.after_start_s for kill in found.restarts if kill.after_start_s is not None]
    yield _row("s   SIGKILL, embedded store: from when the next process serves", starts, 2)
    waits_ms = [handover.waited_ms for handover in found.handovers]
    yield _row("ms  SIGTERM in a call, a process beside it: from the call's end", waits_ms, 1)
    yield _row("ms  what was left of that call", [handover.rest_ms for handover in found.handovers], 1)
    for model_ms in MODELS_MS:
        same = [replay for replay in replays if replay.model_ms == model_ms]
        what = f"ms  from an attempt's start to step {STEPS}'s call, a model of {model_ms} ms"
        yield _row(f"{what}: first run", [replay.first_ms for replay in same], 1)
        yield _row(f"{what}: replay", [replay.again_ms for replay in same], 1)
    yield "   processes on all cores; replay: in another process, which builds the agent, after SIGKILL in that call"


def _row(what: str, figures: list[float], digits: int) -> str:
    shown = "".join(f"{figure:9.{digits}f}" for figure in (median(figures), min(figures), max(figures)))
    return f"   {what:<{_WIDTH}} {len(figures):5}{shown}"


def journal(costs: list[Cost]) -> Iterator[str]:
    """Lay out table H."""
    services, bares = ([cost for cost in costs if cost.contender == name] for name in ("service", "bare"))
    pairs = list(zip(services, bares, strict=True))
    yield (
        f"H. Tool calls that do nothing, a new conversation each turn, {len(services[0].wall_ms)} turns each: "
        "ms of a turn"
    )
    yield "                        service:               bare:          service minus bare, ms a call:"
    yield "   calls in      calls  p50 ms     CPU   store  p50 ms     CPU        ms      CPU   CPU and store's"
    for service, bare in pairs:
        calls, wall, bare_wall = service.order.calls, median(service.wall_ms), median(bare.wall_ms)
        more = (wall - bare_wall, service.cpu_ms - bare.cpu_ms, service.cpu_ms + service.store_ms - bare.cpu_ms)
        yield (
            f"   {service.order.kind:<12} {calls:6} {wall:7.1f} {service.cpu_ms:7.1f} {service.store_ms:7.1f} "
            f"{bare_wall:7.1f} {bare.cpu_ms:7.1f} {more[0] / calls:9.2f} {more[1] / calls:8.2f} {more[2] / calls:17.2f}"
        )
    for (few, bare_few), (many, bare_many) in pairwise(pairs):
        if few.order.kind == many.order.kind:
            wall = (_wall(many) - _wall(few)) - (_wall(bare_many) - _wall(bare_few))
            cpu = (many.cpu_ms - few.cpu_ms) - (bare_many.cpu_ms - bare_few.cpu_ms)
            both = cpu + many.store_ms - few.store_ms
            shown = " ".join(
                f"{more / (many.order.calls - few.order.calls):{width}.2f}"
                for more, width in ((wall, 9), (cpu, 8), (both, 17))
            )
            span = f"each from {few.order.calls} to {many.order.calls}"
            yield f"   {few.order.kind:<12} {span:<38} {'':<8}{shown}"
    yield "   bare: agent.run in process, making the agent included, nothing stored; steps: one call a step; block: all"
    yield "   in one block of code, which the service runs in a process of its own: that is in its ms, not in its CPU"


def _wall(cost: Cost) -> float:
    return median(cost.wall_ms)
