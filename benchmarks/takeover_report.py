"""Table G as text."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from benchmarks.replays import MODELS_MS, STEPS
from benchmarks.takeover import LEASE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

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
