"""Agents with a scratchpad."""

from typing import TypeVar

from smolagents import CodeAgent, MultiStepAgent, ToolCallingAgent

import smolsessions
from tests.support import agents, ledgers

A = TypeVar("A", bound=MultiStepAgent)

AGENTS = ",".join(
    f"{name}=tests.support.noters:make_{name.replace('-', '_')}"
    for name in "noter code-noter thread-noter boss killed killed-writer killed-planner".split()
)


def make_noter() -> ToolCallingAgent:
    return _noting(agents.make_scripted())


def make_code_noter() -> CodeAgent:
    return _noting(agents.make_code())


def make_thread_noter() -> CodeAgent:
    return smolsessions.options(make_code_noter(), executor="thread")


def make_boss() -> ToolCallingAgent:
    """Make an agent that manages a helper, which would have a scratchpad if it ran alone."""
    helper = _noting(agents.make_scripted(name="helper", description="Helps."))
    return _noting(agents.make_scripted(managed_agents=[helper]))


def make_killed() -> ToolCallingAgent:
    return _noting(ledgers.make_teller())


def make_killed_writer() -> CodeAgent:
    return _noting(ledgers.make_writer())


def make_killed_planner() -> ToolCallingAgent:
    return _noting(ledgers.make_planner())


def _noting(agent: A) -> A:
    return smolsessions.options(agent, scratchpad=True)
