"""Agents whose models write code: with imports, limits, helpers, and classes carried or not. PYTEST_DONT_REWRITE."""

import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import PIL.Image
from smolagents import CodeAgent, MultiStepAgent, Tool, ToolCallingAgent
from smolagents.agent_types import AgentImage
from smolagents.memory import ActionStep, FinalAnswerStep

import smolsessions
from smolsessions.agent_options import CodeLimitValues
from tests.support import agents
from tests.support.tools import tool

A = TypeVar("A", bound=MultiStepAgent)
LIBRARIES = ["numpy", "pandas"]
HOST = ["os", "posix", "socket", "io", "pathlib", "ctypes", "signal", "threading"]


@dataclass
class Parcel:
    weight: int
    label: str


class LostError(KeyError):
    """A tool's own kind of error."""


@tool
def lose(name: str) -> str:
    """Fail in a way of its own."""
    raise LostError(name)


@tool
def parcel(weight: int) -> Any:
    """Make a parcel."""
    return Parcel(weight, "fragile")


@tool
def weigh(thing: Any) -> Any:
    """Say what it is."""
    return f"{type(thing).__name__}: {thing}"


@tool
def large(length: int) -> str:
    """Make a large text."""
    return "x" * length


TOOLS: list[Tool] = [*agents.TOOLS, lose, parcel, weigh, large]


def make_coder(
    imports: tuple[str, ...] = ("time", "threading"), limits: CodeLimitValues | None = None, **options: Any
) -> CodeAgent:
    own = {"tools": TOOLS, "prompt_templates": agents.script_templates("code_agent.yaml"), "max_steps": 20}
    agent = agents.make_code(additional_authorized_imports=[*imports], **(own | options))
    return smolsessions.options(agent, stored_classes=[Parcel], code_limits=limits or {})


def make_whole() -> CodeAgent:
    helper = make_coder(name="helper", description="Computes.")
    return make_coder((*LIBRARIES, "time", "threading"), managed_agents=[helper], max_print_outputs_length=2000)


def make_lead() -> ToolCallingAgent:
    templates = agents.script_templates("toolcalling_agent.yaml")
    helper = make_coder(name="helper", description="Computes.")
    return agents.make_scripted(prompt_templates=templates, managed_agents=[helper])


def make_threaded() -> CodeAgent:
    """Make a coder whose code runs in a thread, as smolagents runs it."""
    return smolsessions.options(make_coder(), executor="thread")


def make_walker(*imports: str) -> CodeAgent:
    """Make a coder whose code may import the walk of tests/support/walks.py."""
    helper = make_coder(name="helper", description="Computes.")
    return make_coder(("tests.support.walks", *imports), {"cpu_s": 60}, managed_agents=[helper])


class Keep(Tool):  # type: ignore[misc, unused-ignore]
    name = "keep"
    description = "Keeps something."
    inputs = {  # noqa: RUF012 - smolagents' way
        "under": {"type": "string", "description": "its name"},
        "what": {"type": "string", "description": "a connection, a parcel, or a text; nothing: only look"},
    }
    output_type = "string"

    def __init__(self, agent: MultiStepAgent) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.agent = agent

    def forward(self, under: str, what: str) -> str:
        makers: dict[str, Any] = {
            "connection": _connection,
            "money": lambda: agents.Money(1, "EUR"),
            "parcel": lambda: Parcel(1, "kept"),
            "text": lambda: "kept",
        }
        state = self.agent.state
        if what:
            state[f"my_{under}"] = makers[what]()  # a ToolCallingAgent replaces an argument that names a key
        return f"{under} is {type(state.get(f'my_{under}')).__name__}"


def _connection() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", check_same_thread=False)


def keeping(agent: A) -> A:
    agent.tools["keep"] = Keep(agent)
    agent.state["my_made"] = _connection()
    return smolsessions.options(agent, stored_classes=[Parcel])


def make_caller() -> ToolCallingAgent:
    """Make an agent that calls tools, with a connection in its state."""
    return keeping(agents.make_scripted())


NOTED = "CODERS_NOTED"  # names the file in which `make_observed` notes what its author's functions get


def make_observed(**options: Any) -> CodeAgent:
    """Make a coder whose check and callbacks note the answers and outputs that they get."""
    return make_coder(
        (*LIBRARIES, "PIL.*", "datetime", "decimal", "dataclasses"),
        final_answer_checks=[_note_check],
        step_callbacks={ActionStep: _note_output, FinalAnswerStep: _note_answer},
        **options,
    )


def _note_check(answer: Any, _memory: Any, agent: Any) -> bool:
    assert isinstance(agent, CodeAgent)
    return _note("check", answer)


def _note_output(step: ActionStep) -> None:
    _note("output", step.action_output)


def _note_answer(step: FinalAnswerStep, agent: Any) -> None:
    assert isinstance(agent, CodeAgent)
    _note("answer", step.output)


def _note(place: str, value: Any) -> bool:
    with Path(os.environ[NOTED]).open("a") as file:
        file.write(f"{place}: {_described(value)}\n")
    return True


def _described(value: Any) -> str:
    if isinstance(value, PIL.Image.Image):
        raw: Any = value.to_raw() if isinstance(value, AgentImage) else value
        return f"{type(value).__name__} of {raw.mode} {raw.size} {raw.tobytes().hex()}"
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__} of {sorted(map(str, value))}"
    size = f" of {len(value)}" if hasattr(value, "__len__") else ""
    return f"{type(value).__qualname__}{size}: {value!r}".replace("\n", " ")


FACTORIES: dict[str, Callable[[], MultiStepAgent]] = {
    "walker_libraries": lambda: make_walker(*LIBRARIES, "decimal", "fractions", "functools", "json", "string"),
    "walker_thread": lambda: smolsessions.options(make_walker(), executor="thread"),
    "hasty": lambda: make_coder(limits={"cpu_s": 0.5, "wall_s": 1}),
    "small": lambda: make_coder(limits={"memory_mb": 200, "output_mb": 1, "variables_mb": 0.5}),
    # A coder whose code may import everything, even modules that smolagents warns about.
    "walled": lambda: make_coder(("*",), {"open_files": 20, "cpu_s": 60}),
    # A walled coder whose code may start processes: the system counts those of other services, too.
    "forking": lambda: make_coder(("*",), {"processes": 1000}),
    "misspelt": lambda: smolsessions.options(make_coder(), executor="proces"),  # type: ignore[arg-type]  # wrong
    # A coder with a connection in its state.
    "keeper": lambda: keeping(make_coder()),
    "threaded_keeper": lambda: keeping(make_threaded()),
    # A coder that manages an observed one.
    "observed_lead": lambda: make_coder(managed_agents=[make_observed(name="helper", description="Computes.")]),
}
globals().update({f"make_{name}": factory for name, factory in FACTORIES.items()})
