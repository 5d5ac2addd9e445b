"""Agents that remember in every way: steps, plans, notes, variables, states, a scratchpad. PYTEST_DONT_REWRITE."""

import functools
import gc
from collections.abc import Callable
from typing import TypeVar

from smolagents import CodeAgent, LogLevel, MultiStepAgent, Tool, ToolCallingAgent, tool

import smolsessions
from tests.support import agents, ledgers, service
from tests.support.agents import ScriptedModel, echo

A = TypeVar("A", bound=MultiStepAgent)


class Shelf(Tool):  # type: ignore[misc, unused-ignore]
    name = "shelf"
    description = "Keeps a word and gives all of them."
    inputs = {"word": {"type": "string", "description": "a word to keep"}}  # noqa: RUF012 - smolagents' way
    output_type = "string"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.words: list[str] = []

    def forward(self, word: str) -> str:
        self.words.append(word)
        return " ".join(self.words)

    def get_state(self) -> list[str]:
        return list(self.words)

    def set_state(self, state: list[str]) -> None:
        self.words = list(state)


def make_rememberer() -> ToolCallingAgent:
    return _remembering(agents.make_scripted(planning_interval=2))


def make_code_rememberer() -> CodeAgent:
    return _remembering(agents.make_code(planning_interval=2))


def _remembering(agent: A) -> A:
    agent.tools["shelf"] = Shelf()
    return smolsessions.options(agent, scratchpad=True)


@tool
def collect() -> str:
    """Collect garbage, and count the objects that only the collector could free, and the turns that are left."""
    gc.disable()
    found = gc.collect()
    return f"{found} {sum(type(each).__name__ == 'LoopEventBridge' for each in gc.get_objects())}"


def make_collector() -> ToolCallingAgent:
    return ToolCallingAgent(tools=[echo, collect], model=ScriptedModel(), verbosity_level=LogLevel.OFF)


def _boss() -> ToolCallingAgent:
    """Make an agent that manages a helper, which would have a scratchpad if it ran alone."""
    helper = _noting(agents.make_scripted(name="helper", description="Helps."))
    return agents.make_scripted(managed_agents=[helper])


FACTORIES: dict[str, Callable[[], MultiStepAgent]] = {
    "noter": agents.make_scripted,
    "code-noter": agents.make_code,
    "thread-noter": lambda: smolsessions.options(agents.make_code(), executor="thread"),
    "boss": _boss,
    "killed": ledgers.make_teller,
    "killed-writer": ledgers.make_writer,
    "killed-planner": ledgers.make_planner,
}


def _noting(agent: A) -> A:
    return smolsessions.options(agent, scratchpad=True)


def _path_of(name: str) -> str:
    return f"{name}=tests.support.rememberers:make_{name.replace('-', '_')}"


def make(name: str) -> MultiStepAgent:
    return _noting(FACTORIES[name]())


globals().update({f"make_{name.replace('-', '_')}": functools.partial(make, name) for name in FACTORIES})
NOTERS = ",".join(map(_path_of, FACTORIES))
AGENTS = ",".join([service.AGENTS, NOTERS, *map(_path_of, ("rememberer", "code-rememberer"))])
