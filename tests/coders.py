"""Agents for the tests whose models write code: with imports, limits, helpers, and classes that are carried or not.

PYTEST_DONT_REWRITE: the service, which is another process, imports this too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smolagents import CodeAgent, LogLevel, Tool, ToolCallingAgent, tool

from tests import agents

if TYPE_CHECKING:
    from collections.abc import Mapping

LIBRARIES = ["numpy", "pandas"]
HOST = ["os", "posix", "socket", "io", "pathlib", "ctypes", "signal", "threading"]
SCRIPTED_TASK = {"task": "{{task}}", "report": "{{final_answer}}"}


@dataclass
class Parcel:
    """A class that agents carry."""

    weight: int
    label: str


class LostError(KeyError):
    """A tool's own kind of error."""


@tool
def lose(name: str) -> str:
    """Fail in a way of its own.

    Args:
        name: of what was lost.
    """
    raise LostError(name)


@tool
def parcel(weight: int) -> Any:
    """Make a parcel.

    Args:
        weight: of it.
    """
    return Parcel(weight, "fragile")


@tool
def weigh(thing: Any) -> Any:
    """Say what it is.

    Args:
        thing: anything.
    """
    return f"{type(thing).__name__}: {thing}"


@tool
def large(length: int) -> str:
    """Make a large text.

    Args:
        length: of it.
    """
    return "x" * length


TOOLS: list[Tool] = [*agents.TOOLS, lose, parcel, weigh, large]


def make_coder(
    imports: tuple[str, ...] = ("time", "threading"),
    limits: Mapping[str, float] | None = None,
    **options: Any,
) -> CodeAgent:
    templates = {**agents._templates("code_agent.yaml"), "managed_agent": SCRIPTED_TASK}  # noqa: SLF001 - one set
    agent = CodeAgent(
        tools=options.pop("tools", TOOLS),
        model=agents.ScriptedModel(),
        prompt_templates=templates,  # type: ignore[arg-type]
        additional_authorized_imports=[*imports],
        verbosity_level=LogLevel.OFF,
        executor_kwargs={"timeout_seconds": None},
        **({"max_steps": 20} | options),
    )
    vars(agent)["carries"] = [Parcel]
    if limits is not None:
        vars(agent)["code_limits"] = dict(limits)
    return agent


def make_whole() -> CodeAgent:
    """Make a coder that manages another one."""
    helper = make_coder(name="helper", description="Computes.")
    return make_coder((*LIBRARIES, "time", "threading"), managed_agents=[helper], max_print_outputs_length=2000)


def make_lead() -> ToolCallingAgent:
    """Make an agent that calls tools and manages a coder."""
    templates = {**agents._templates("toolcalling_agent.yaml"), "managed_agent": SCRIPTED_TASK}  # noqa: SLF001
    return ToolCallingAgent(
        tools=agents.TOOLS,
        model=agents.ScriptedModel(),
        prompt_templates=templates,  # type: ignore[arg-type]
        managed_agents=[make_coder(name="helper", description="Computes.")],
        verbosity_level=LogLevel.OFF,
        max_steps=6,
    )


def make_threaded() -> CodeAgent:
    """Make a coder whose code runs as smolagents has it."""
    agent = make_coder()
    vars(agent)["executor"] = "thread"
    return agent


def make_walker(*imports: str) -> CodeAgent:
    """Make a coder whose code may import the walk of tests/walks.py."""
    helper = make_coder(name="helper", description="Computes.")
    return make_coder(("tests.walks", *imports), {"cpu_s": 60}, managed_agents=[helper])


def make_walker_with_libraries() -> CodeAgent:
    return make_walker(*LIBRARIES, "decimal", "fractions", "functools", "json", "string")


def make_walker_in_a_thread() -> CodeAgent:
    agent = make_walker()
    vars(agent)["executor"] = "thread"
    return agent


def make_hasty() -> CodeAgent:
    return make_coder(limits={"cpu_s": 0.5, "wall_s": 1})


def make_small() -> CodeAgent:
    return make_coder(limits={"memory_mb": 200, "output_mb": 1, "variables_mb": 0.5})


def make_walled() -> CodeAgent:
    """Make a coder whose code may use what smolagents warns of."""
    return make_coder(("*",), {"open_files": 20, "cpu_s": 60})


def make_misspelt() -> CodeAgent:
    agent = make_coder()
    vars(agent)["executor"] = "proces"
    return agent


def make_unlimited() -> CodeAgent:
    return make_coder(limits={"cpu": 5})


def make_worded() -> CodeAgent:
    return make_coder(limits={"cpu_s": "five"})  # type: ignore[dict-item]


def make_endless() -> CodeAgent:
    return make_coder(limits={"wall_s": float("nan")})


def make_halved() -> CodeAgent:
    return make_coder(limits={"processes": 0.5})
