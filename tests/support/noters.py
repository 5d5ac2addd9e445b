"""Agents with a scratchpad."""

import functools
from collections.abc import Callable
from typing import TypeVar

from smolagents import MultiStepAgent, ToolCallingAgent

import smolsessions
from tests.support import agents, ledgers

A = TypeVar("A", bound=MultiStepAgent)


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
    return f"{name}=tests.support.noters:make_{name.replace('-', '_')}"


def make(name: str) -> MultiStepAgent:
    return _noting(FACTORIES[name]())


globals().update({f"make_{name.replace('-', '_')}": functools.partial(make, name) for name in FACTORIES})
AGENTS = ",".join(map(_path_of, FACTORIES))
