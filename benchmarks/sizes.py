"""Table L: what an operator sizes by: memory of a process and of a warm session, bytes stored, the time to be ready."""

from __future__ import annotations

import http.client
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from benchmarks.client import Load, Talk
from benchmarks.cpu import on_all_cores
from benchmarks.fleet import family, role
from benchmarks.growth import Stored, read_stored
from benchmarks.outside import outside, wait
from benchmarks.players import PLAYERS, Order
from benchmarks.watching import Caller, Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.contenders import Server

ROLES = ("web", "work", "serve")
MARKS = (1, 10, 100)
INSTANT = {"AGENTS": "bench=benchmarks.agents:make_agent"}  # nobody waits for a model
BUSY_CLIENTS, PASSING_CLIENTS = 64, 32
PASSING_S = 60.0  # at most
CODERS = 10
BLOCK = Order(1, "block", last_ms=60_000)  # it is cancelled
FIRST_ROUNDS = 2  # after which all code is loaded and all threads have played


@dataclass(frozen=True)
class Start:
    """A process of a role, from its command to its first 200 of /readyz; what it is then, and after a load."""

    role: str
    ready_s: float
    rest_bytes: int
    busy_bytes: int
    """The most that was seen while it played or passed on turns of so many clients."""


@dataclass(frozen=True)
class Kept:
    """A conversation after so many turns."""

    turns: int
    session_bytes: int
    """In the `work` process that holds its agent."""
    stored: Stored


@dataclass(frozen=True)
class Passed:
    """Processes through which conversations of one turn have passed that no session is kept of."""

    conversations: int
    web_bytes: int
    work_bytes: int


@dataclass(frozen=True)
class Sizes:
    """All of table L."""

    starts: list[Start]
    conversations: int
    kept: list[Kept]
    passed: Passed
    coders: tuple[int, int] | None
    """Of the process from which those for model-written code are forked; and of each turn with code that runs."""


def measure_sizes(
    starts: int, conversations: int, passing: int, busy_s: float, progress: Callable[[str], None]
) -> Sizes:
    """Processes are on all cores. Memory is resident, private and shared alike: what a container is charged for."""
    with on_all_cores():
        found = []
        for name in ROLES:
            for number in range(starts):
                progress(f"sizes: {name}, start {number + 1} of {starts}")
                found.append(_start(name, busy_s))
        progress(f"sizes: {conversations} conversations, up to turn {MARKS[-1]}")
        kept = _kept(conversations)
        progress(f"sizes: {passing} conversations that nothing keeps")
        return Sizes(found, conversations, kept, _passed(passing), _coders(CODERS))


def _start(name: str, busy_s: float) -> Start:
    with outside() as store, ExitStack() as stack:
        begun = time.perf_counter()
        server = stack.enter_context(role(name, store, INSTANT))
        _until_ready(server)
        ready_s = time.perf_counter() - begun
        rest = server.resident_bytes()
        if name == "web":
            stack.enter_context(role("work", store, INSTANT))
        front = stack.enter_context(role("web", store, INSTANT)) if name == "work" else server
        load = Load([Talk(front.port, at % 20 + 1, 20) for at in range(BUSY_CLIENTS)])
        most = 0
        end = time.monotonic() + busy_s
        while time.monotonic() < end:
            load.run(0.5)
            most = max(most, server.resident_bytes())
        load.finish()
    return Start(name, ready_s, rest, most)


def _until_ready(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", "/readyz")
    if connection.getresponse().status != 200:
        raise RuntimeError("a process that says that it serves is not ready")
    connection.close()


def _kept(conversations: int) -> list[Kept]:
    """Play conversations in lockstep, up to the last mark."""
    found = []
    warm = {**INSTANT, "WARM_SESSIONS": str((FIRST_ROUNDS + 1) * conversations)}
    with outside() as store, role("web", store, INSTANT) as web, role("work", store, warm) as work:
        for _ in range(FIRST_ROUNDS):
            play_round([Talk(web.port) for _ in range(conversations)], last=True)
        with store.client() as client:
            stored, resident = read_stored(client), work.resident_bytes()
            talks = [Talk(web.port) for _ in range(conversations)]
            for turn in range(1, MARKS[-1] + 1):
                play_round(talks, last=turn == MARKS[-1])
                if turn in MARKS:
                    grown = (work.resident_bytes() - resident) // conversations
                    found.append(Kept(turn, grown, read_stored(client).per(conversations, stored)))
    return found


def _passed(conversations: int) -> Passed:
    cold = {**INSTANT, "WARM_SESSIONS": "0"}
    with outside() as store, role("web", store, INSTANT) as web, role("work", store, cold) as work:
        load = Load([Talk(web.port, 1, 1) for _ in range(PASSING_CLIENTS)])
        turns, end = 0, time.monotonic() + PASSING_S
        while turns < conversations and time.monotonic() < end:
            load.run(0.5)
            turns += len(load.latencies_ms)
        found = Passed(turns, web.resident_bytes(), work.resident_bytes())
        load.finish()
    return found


def _coders(count: int) -> tuple[int, int] | None:
    """Give bytes, shared pages counted once; none without the right to look, since the service hides its memory."""
    with (
        suppress(psutil.AccessDenied),
        outside() as store,
        role("serve", store, PLAYERS) as serving,
        closing(Caller(serving)) as caller,
    ):
        caller.play(Order(1, "block"))
        wait(lambda: len(family(serving.pid)) == 2, "the process of the first turn's code has ended")
        before, nursery = (_proportional(pids) for pids in (family(serving.pid), family(serving.pid)[1:]))
        with ExitStack() as stack:
            watchers = [stack.enter_context(closing(Watcher.of_new(serving, BLOCK))) for _ in range(count)]
            for watcher in watchers:
                watcher.wait_for("tool.call", lambda event: event["name"] == "work")
            grown = _proportional(family(serving.pid)) - before
            for watcher in watchers:
                caller.cancel(watcher.path)
                watcher.wait_for("turn.cancelled")
        return nursery, grown // count
    return None


def _proportional(pids: list[int]) -> int:
    return sum(int(psutil.Process(pid).memory_full_info().pss) for pid in pids)


def play_round(talks: list[Talk], *, last: bool = False) -> None:
    """Play a turn in each, all at once; after the last one they are closed."""
    for talk in talks:
        talk.ask()
    for talk in talks:
        while not talk.hear():
            pass
        if last:
            talk.close()
