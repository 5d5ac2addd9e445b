"""Table F: code blocks in a process of their own, and conversations of 1,000 variables or 1,000 steps."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.agents import question
from benchmarks.coders import MODES, VARIABLES
from benchmarks.contenders import server, store
from benchmarks.cpu import CORES
from benchmarks.goals import at_most
from benchmarks.report import Row, spread
from benchmarks.watching import Caller

AGENTS = ",".join(["bench=benchmarks.agents:make_agent", *(f"{mode}=benchmarks.coders:make_{mode}" for mode in MODES)])
STEPS_A_TURN, TURNS = 3, 334


def measure_code(times: int, progress: Callable[[str], None]) -> list[Row]:
    """Measure on all cores, so that a child process may run beside the service."""
    with store() as socket_path, server("service", socket_path, {"AGENTS": AGENTS}, CORES) as running:
        client, prober = Caller(running), Caller(running)
        progress("code: blocks and variables")
        rows = [*_blocks_of(client, times), *_variables_of(client, times)]
        progress("code: export and import")
        return [*rows, *_documents_of(client, prober, times)]


def goals_of(rows: list[Row]) -> Iterator[Row]:
    first, more, _, more_in_thread, variables, _, exported, beside, imported, _ = [row["median"] for row in rows]
    yield at_most("a first block, ms", 6, first)
    yield at_most("a further block over smolagents' own interpreter, ms", 0.6, more - more_in_thread)
    yield at_most(f"a turn that changes 1 of {VARIABLES:,} variables, ms", 10, variables)
    yield at_most("an export of 1,000 steps, ms", 30, exported)
    yield at_most("/livez beside it, ms", 5, beside)
    yield at_most("an import of 1,000 steps, ms", 60, imported)


def _blocks_of(client: Caller, times: int) -> Iterator[Row]:
    found: dict[str, list[list[float]]] = {mode: [] for mode in MODES}
    for _ in range(times + 1):
        for mode in MODES:
            found[mode].append(json.loads(_play(client, mode, "Run count 1")[1]["reply"]))
    for mode in MODES:  # the first turn of each loads all that is loaded once
        yield spread(f"ms: first block of a turn, {mode}", [first for first, *_ in found[mode][1:]])
        yield spread(f"ms: each further block, {mode}", [ms for _, *more in found[mode][1:] for ms in more])


def _variables_of(client: Caller, times: int) -> Iterator[Row]:
    for mode in MODES:
        conversation = _play(client, mode, "Run all 0")[1]["conversation_id"]
        turns = [_play(client, mode, f"Run one {number}", conversation)[0] for number in range(times)]
        yield spread(f"ms: turn that changes 1 of {VARIABLES:,} variables, {mode}", turns)


def _documents_of(client: Caller, prober: Caller, times: int) -> Iterator[Row]:
    conversation = ""
    for number in range(1, TURNS + 1):
        conversation = _play(client, "bench", question(number), conversation)[1]["conversation_id"]
    document = json.dumps(_timed(client, f"/conversations/{conversation}/export")[1]).encode()
    calls = {"export": (f"/conversations/{conversation}/export", None), "import": ("/imports", document)}
    for name, call in calls.items():
        yield spread(f"ms: {name} of {TURNS * STEPS_A_TURN:,} steps", [_timed(client, *call)[0] for _ in range(times)])
        thread = threading.Thread(target=lambda call=call: [_timed(client, *call) for _ in range(times)])
        thread.start()
        probes = [0.0]
        while thread.is_alive():
            probes.append(_timed(prober, "/livez")[0])
            time.sleep(0.001)
        yield spread(f"ms: /livez beside that {name}", probes[1:])


def _play(client: Caller, agent: str, message: str, conversation: str = "") -> tuple[float, Any]:
    begun = {"conversation_id": conversation} if conversation else {"agent": agent}
    return _timed(client, "/turn", json.dumps({"message": message, **begun}).encode())


def _timed(client: Caller, path: str, body: bytes | None = None) -> tuple[float, Any]:
    """Return the milliseconds of a call, and its answer. A body makes it a POST."""
    start = time.perf_counter()
    said = client.raw("GET" if body is None else "POST", path, body)
    return (time.perf_counter() - start) * 1000, json.loads(said)
