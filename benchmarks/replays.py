"""The rest of table G: the time that a turn needs to catch up after its process was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from benchmarks.players import Order, done
from benchmarks.takeover import NS_PER_MS, Site, begin, is_second, site
from benchmarks.watching import Watcher

STEPS = 20
MODELS_MS = (0, 50)
LAST_CALL_MS = 500


@dataclass(frozen=True)
class Replay:
    """A turn that was killed in the call of its last step. The times run from an attempt's start to that call."""

    model_ms: int
    first_ms: float
    again_ms: float


def measure_replays(times: int, progress: Callable[[str], None]) -> list[Replay]:
    """Kill `times` turns with each model. The lease is short, since the wait for its expiry is not measured here."""
    found = []
    with site(LEASE_S="1") as where:
        for number in range(times):
            for model_ms in MODELS_MS:
                progress(f"takeover: replay {number + 1} of {times}, a model of {model_ms} ms")
                found.append(_replay(where, model_ms))
    return found


def _replay(where: Site, model_ms: int) -> Replay:
    order = Order(STEPS, model_ms=model_ms, last_ms=LAST_CALL_MS)
    with where.doomed() as doomed:
        first, started_ns = begin(doomed, order)
        with closing(first):
            called_ns, _ = first.wait_for("tool.call", lambda event: event["arguments"].get("number") == STEPS)
            os.kill(doomed.pid, signal.SIGKILL)
        with closing(Watcher.of(where.survivor, first.path)) as watcher:
            again_ns, _ = watcher.wait_for("turn.started", is_second)
            _, event = watcher.wait_for("tool.result", lambda event: event["call_id"].startswith(f"{STEPS}."))
            watcher.wait_for("turn.finished")
    made = done(event["result"])
    if not made or made.pid != where.survivor.pid or not event["repeated"]:
        raise RuntimeError(f"no replay: {event}")
    return Replay(model_ms, (called_ns - started_ns) / NS_PER_MS, (made.begun_ns - again_ns) / NS_PER_MS)
