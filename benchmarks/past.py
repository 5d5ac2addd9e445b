"""Table M, its end: sessions built anew, forks, exports and imports by length, and what building the messages costs."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from smolagents.memory import ActionStep, TaskStep, ToolCall
from smolagents.monitoring import Timing, TokenUsage

from benchmarks.contenders import server, store
from benchmarks.memory import POLICIES, Client
from benchmarks.rememberer import REMEMBERER, answer, article, make_rememberer, order
from smolsessions.agents.smolagents_patches import make_thrifty, shown_memory_of
from smolsessions.core.policies import policy_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from smolagents import MultiStepAgent

    from benchmarks.contenders import Server

ARTICLES = 8
STEPS_A_TURN = ARTICLES + 2
LENGTHS = (1, 10, 100)  # turns
BUILT_TURNS = 500


@dataclass(frozen=True)
class Took:
    """Milliseconds of each of several times, and the server's CPU for one."""

    ms: list[float]
    cpu_ms: float


@dataclass(frozen=True)
class Aged:
    """Conversations of so many steps: forks, and the first two turns of each: with a session built for it, and warm."""

    steps: int
    fork: Took
    cold: Took
    warm: Took


@dataclass(frozen=True)
class Carried:
    """The longest conversation as a document."""

    steps: int
    document_bytes: int
    export: Took
    import_: Took


@dataclass(frozen=True)
class Built:
    """The messages of a long memory under a policy: the first time, and when a step has come since the last."""

    policy: str
    messages: int
    first_ms: list[float]
    again_ms: list[float]


def measure_past(times: int, progress: Callable[[str], None]) -> tuple[list[Aged], Carried]:
    """Play one long conversation; what is measured is done so often with it, or its forks."""
    with store() as socket_path, server("service", socket_path, REMEMBERER) as running, closing(Client(running)) as one:
        origin = str(one.ask("POST", "/conversations", {})["id"])
        for turn in range(1, LENGTHS[-1] + 1):
            if turn % 10 == 0:
                progress(f"memory: turn {turn} of {LENGTHS[-1]}, {STEPS_A_TURN} steps each")
            one.play(origin, turn, ARTICLES)
        found: dict[int, list[list[tuple[float, float]]]] = {turns: [] for turns in LENGTHS}
        for number in range(1, times + 1):
            progress(f"memory: forks, round {number} of {times}")
            for turns in LENGTHS:
                found[turns].append(_aged(running, one, origin, turns))
        aged = [Aged(turns * STEPS_A_TURN, *map(_took, zip(*each, strict=True))) for turns, each in found.items()]
        progress("memory: export and import")
        whole = f"/conversations/{origin}/export"
        document = one.raw("GET", whole)
        exports = [_timed(running, lambda: one.raw("GET", whole)) for _ in range(times)]
        imports = [_timed(running, lambda: one.raw("POST", "/conversations/import", document)) for _ in range(times)]
        return aged, Carried(LENGTHS[-1] * STEPS_A_TURN, len(document), _took(exports), _took(imports))


def _aged(running: Server, one: Client, origin: str, turns: int) -> list[tuple[float, float]]:
    path = f"/conversations/{origin}/fork"
    made: list[str] = []
    fork = _timed(running, lambda: made.append(one.ask("POST", path, {"turn": turns})["id"]))
    cold, warm = (_timed(running, partial(one.play, made[0], topic)) for topic in (turns + 1, turns + 2))
    return [fork, cold, warm]


def _timed(running: Server, act: Callable[[], object]) -> tuple[float, float]:
    cpu, start = running.cpu_ms(), time.perf_counter()
    act()
    return (time.perf_counter() - start) * 1000, running.cpu_ms() - cpu


def _took(times: Any) -> Took:
    ms, cpu = zip(*times, strict=True)
    return Took(list(ms), sum(cpu) / len(cpu))


def measure_building(times: int, progress: Callable[[str], None]) -> list[Built]:
    """Build the messages of a memory of so many turns, in this process; `smolagents` is its own way."""
    progress(f"memory: messages of {BUILT_TURNS} turns")
    found = []
    for name in ("smolagents", *(name for name in POLICIES if name != "summarize")):  # which would ask a model
        first, again, messages = [], [], 0
        for _ in range(times):
            agent = make_rememberer()
            agent.memory.steps = _steps()
            if name != "smolagents":
                make_thrifty(agent)
                shown = shown_memory_of(agent, {})
                assert shown
                shown.policy = policy_of(POLICIES[name])
            first.append(_built(agent)[0])
            agent.memory.steps.append(_step(BUILT_TURNS + 1, 0))
            took_ms, messages = _built(agent)
            again.append(took_ms)
        found.append(Built(name, messages, first, again))
    return found


def _built(agent: MultiStepAgent) -> tuple[float, int]:
    start = time.perf_counter()
    messages = agent.write_memory_to_messages()
    return (time.perf_counter() - start) * 1000, len(messages)


def _steps() -> list[Any]:
    turns = range(1, BUILT_TURNS + 1)
    return [step for turn in turns for step in (TaskStep(order(turn)), _step(turn, 0), _step(turn, 1))]


def _step(turn: int, number: int) -> ActionStep:
    name, said = ("look_up", article(turn, 1, 1)) if number == 0 else ("final_answer", answer(turn))
    return ActionStep(
        step_number=number + 1,
        timing=Timing(0, 1),
        tool_calls=[ToolCall(name, {"topic": turn}, f"call_{turn}_{number}")],
        observations=said,
        token_usage=TokenUsage(0, 0),
    )
