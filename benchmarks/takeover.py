"""Table G: delay until a turn continues after its process was killed or stopped."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.contenders import Server, running, server, store
from benchmarks.cpu import CORES
from benchmarks.players import PLAYERS, Order, done
from benchmarks.watching import Caller, Event, Watcher
from smolsessions.settings import Settings
from smolsessions.store.seal import new_key

LEASE_S: float = Settings.model_fields["lease_s"].default
RENEWAL_S = LEASE_S / 3
WARM_UP = Order(3)
BUSY = Order(1000, call_ms=50)
RESTING = Order(1000, call_ms=800)
TRIES = 5
NS_PER_MS, NS_PER_S = 1e6, 1e9


@dataclass(frozen=True)
class Site:
    """A store, a process on it that survives, and the settings for starting others beside it."""

    socket_path: Path
    settings: Mapping[str, str]
    survivor: Server

    def doomed(self) -> AbstractContextManager[Server]:
        return _serving(self.socket_path, self.settings)


def measure_takeovers(
    kills: int, restarts: int, handovers: int, progress: Callable[[str], None]
) -> dict[str, list[float]]:
    """Kill, stop and restart the given numbers of processes. The service's processes are on all cores."""
    killed, stopped, restarted = [], [], []
    with site() as where:
        for number in range(kills):
            progress(f"takeover: SIGKILL {number + 1} of {kills}")
            killed.append(_kill(where, (number + random.random()) / kills))
        for number in range(handovers):
            progress(f"takeover: SIGTERM {number + 1} of {handovers}")
            stopped.append(_hand_over(where, (number + random.random()) / handovers))
    for number in range(restarts):
        progress(f"takeover: SIGKILL with the embedded store, {number + 1} of {restarts}")
        restarted.append(_restart())
    return {
        "s: SIGKILL, a process beside it: from the kill": killed,
        "s: SIGKILL, embedded store: from the kill": [from_kill for from_kill, _ in restarted],
        "s: the same, from the start of serving": [from_start for _, from_start in restarted],
        "ms: SIGTERM, a process beside it: from the call's end": [waited for _, waited in stopped],
        "ms: the rest of that call": [rest for rest, _ in stopped],
    }


@contextmanager
def site(**more: str) -> Iterator[Site]:
    """Run a store and the surviving process. `more` are settings of all processes."""
    with store() as socket_path:
        settings = {**PLAYERS, "SEAL_KEYS": new_key(), **more}
        with _serving(socket_path, settings) as survivor:
            yield Site(socket_path, settings, survivor)


def begin(server: Server, order: Order) -> tuple[Watcher, int]:
    """Begin a turn that this very server plays. Return a reader that has received its first result, and its start."""
    for _ in range(TRIES):
        watcher = Watcher.of_new(server, order)
        started_ns, _ = watcher.wait_for("turn.started")
        _, event = watcher.wait_for("tool.result")
        made = done(event["result"])
        if made and made.pid == server.pid:
            return watcher, started_ns
        end(server, watcher)
    raise RuntimeError("another process takes all turns")


def end(server: Server, watcher: Watcher) -> None:
    """Cancel a watched turn."""
    with closing(watcher), closing(Caller(server)) as caller:
        caller.ask("POST", f"{watcher.path}/cancel", {})
        watcher.wait_for("turn.cancelled")


def is_second(event: Event) -> bool:
    return int(event["attempt"]) == 2


@contextmanager
def _serving(socket_path: Path, settings: Mapping[str, str]) -> Iterator[Server]:
    with server("service", socket_path, settings, CORES) as found, closing(Caller(found)) as caller:
        caller.ask("POST", "/turn", {"message": str(WARM_UP)})  # loads everything that is loaded once
        yield found


def _kill(where: Site, phase: float) -> float:
    """Kill a process at a phase (0 to 1) of a renewal interval, with which the lease's renewals are not in step."""
    with where.doomed() as doomed:
        first, _ = begin(doomed, BUSY)
        with closing(first):
            watcher = Watcher.of(where.survivor, first.path)
            time.sleep(RENEWAL_S * (1 + phase))
            killed_ns = _kill_now(doomed)
            at_ns, _ = watcher.wait_for("turn.started", is_second)
        end(where.survivor, watcher)
    return (at_ns - killed_ns) / NS_PER_S


def _hand_over(where: Site, phase: float) -> tuple[float, float]:
    """Send SIGTERM early (0) or late (1) in a call. Return the rest of the call, and the wait for the next attempt."""
    with where.doomed() as doomed:
        first, _ = begin(doomed, RESTING)
        with closing(first):
            watcher = Watcher.of(where.survivor, first.path)
            watcher.wait_for("tool.call", lambda event: event["arguments"]["number"] == 2)
            time.sleep(RESTING.call_ms / 1000 * phase * 0.75)
            told_ns = time.monotonic_ns()
            os.kill(doomed.pid, signal.SIGTERM)
            at_ns, _ = watcher.wait_for("turn.started", is_second)
            made = done(watcher.last["tool.result"]["result"])
        end(where.survivor, watcher)
    assert made
    ended_ns = max(made.ended_ns, told_ns)  # on a busy machine the signal may arrive between two calls
    return ((ended_ns - told_ns) / NS_PER_MS, (at_ns - ended_ns) / NS_PER_MS)


def _restart() -> tuple[float, float]:
    """Kill a process with an embedded store, and start it again. Return the wait from the kill, and from serving."""
    with TemporaryDirectory(prefix="smolbench-") as folder:
        command = [sys.executable, "-m", "smolsessions", "serve"]
        settings = {**PLAYERS, "PORT": "0", "DATA_DIR": f"{folder}/data"}
        with running(command, CORES, settings) as doomed:
            first, _ = begin(doomed, BUSY)
            first.close()
            time.sleep(RENEWAL_S * random.random())
            killed_ns = _kill_now(doomed)
            with running(command, CORES, settings) as restarted:
                ready_ns = time.monotonic_ns()
                watcher = Watcher.of(restarted, first.path)
                at_ns, _ = watcher.wait_for("turn.started", is_second)
                end(restarted, watcher)
    return (at_ns - killed_ns) / NS_PER_S, (at_ns - ready_ns) / NS_PER_S


def _kill_now(server: Server) -> int:
    """Kill a server and return the moment."""
    at_ns = time.monotonic_ns()
    os.kill(server.pid, signal.SIGKILL)
    return at_ns
