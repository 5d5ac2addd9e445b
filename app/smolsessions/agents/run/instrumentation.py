"""An agent and those that it manages, equipped: what they do is seen, and their code runs elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from smolagents import CodeAgent
from smolagents.local_python_executor import MAX_EXECUTION_TIME_SECONDS, LocalPythonExecutor
from smolagents.memory import ActionStep, PlanningStep
from smolagents.remote_executors import RemotePythonExecutor

from smolsessions.agents.memory.steps import finished
from smolsessions.agents.run.model_proxy import ModelProxy
from smolsessions.agents.run.tool_proxy import (
    AgentProxy,
    CallbacksProxy,
    InterpreterProxy,
    Seat,
    see_tools,
    seen_check,
)
from smolsessions.agents.sandbox import guard
from smolsessions.agents.sandbox.interpreter import ChildInterpreter
from smolsessions.agents.sandbox.limits import limits_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smolagents import MultiStepAgent
    from smolagents.memory import MemoryStep

    from smolsessions.agents.sandbox.fork_client import Nursery


@dataclass
class Member:
    """An agent of the family. `path` is behind the first one's: `` for that one, `helper/searcher`."""

    path: str
    agent: MultiStepAgent
    seat: Seat
    interpreter: ChildInterpreter | None = None


@dataclass
class Family:
    """All agents of a session, the first one first."""

    nursery: Nursery
    carries: tuple[type, ...]
    members: list[Member] = field(default_factory=list)

    @property
    def head(self) -> Member:
        return self.members[0]

    @property
    def interpreters(self) -> Iterator[ChildInterpreter]:
        return (member.interpreter for member in self.members if member.interpreter)


def equip(agent: MultiStepAgent, nursery: Nursery, carries: tuple[type, ...]) -> Family:
    """Put proxies into an agent and into all that it manages, once."""
    family = Family(nursery, carries)
    _equip(agent, family, "")
    return family


def runs_in_child(agent: MultiStepAgent) -> bool:
    """Tell whether an agent's code runs in a process of its own: where it has smolagents' local executor."""
    executor = getattr(agent, "python_executor", None)
    return type(executor) is LocalPythonExecutor and getattr(agent, "executor", "process") != "thread"


def code_runs_in(agent: MultiStepAgent) -> Literal["process", "thread", "remote"] | None:
    """Tell where an agent's code runs; None for one that writes no code."""
    if not isinstance(agent, CodeAgent):
        return None
    if isinstance(agent.python_executor, RemotePythonExecutor):
        return "remote"
    return "process" if runs_in_child(agent) else "thread"


def _equip(agent: MultiStepAgent, family: Family, path: str) -> Seat:
    known = next((member for member in family.members if member.agent is agent), None)
    if known:  # one agent, managed by two
        return known.seat
    seat = Seat(family.carries, code_runs_in=code_runs_in(agent))
    seat.unsafe = frozenset(getattr(agent, "unsafe_to_repeat", ()))
    member = Member(path, agent, seat)
    family.members.append(member)
    agent.model = ModelProxy(agent.model, seat, agent)  # type: ignore[assignment]  # passes for one
    seat.author_streams = getattr(agent, "stream_outputs", False)
    agent.stream_outputs = False  # the model proxy streams, at a cost that grows with the text and not with its square
    agent.final_answer_checks = [seen_check(check, seat) for check in agent.final_answer_checks]
    agent.step_callbacks = CallbacksProxy(agent.step_callbacks, seat)  # type: ignore[assignment]  # passes for one
    executor: Any = getattr(agent, "python_executor", None)
    see_tools(agent, seat)
    for name, managed in agent.managed_agents.items():
        inner = _equip(managed, family, f"{path}/{name}" if path else name)
        agent.managed_agents[name] = AgentProxy(managed, seat, inner)
    if isinstance(agent, CodeAgent):
        if runs_in_child(agent):
            limits = limits_of(getattr(agent, "code_limits", {}))
            executor = member.interpreter = ChildInterpreter(
                executor, family.nursery, limits, family.carries, seat.check, timeout_s=_timeout_of(agent)
            )
        elif seat.code_runs_in == "thread":
            guard.install()
        agent.python_executor = InterpreterProxy(executor, seat)  # type: ignore[assignment]  # passes for one
    if path:
        agent.step_callbacks.register(ActionStep, lambda step: _show_finished(seat, step))
        agent.step_callbacks.register(PlanningStep, lambda step: _show_finished(seat, step))
    return seat


def _timeout_of(agent: CodeAgent) -> float | None:
    """Return the time that the author allows a block; None for smolagents' default, which `code_limits` replace."""
    timeout_s: float | None = agent.python_executor.timeout_seconds  # type: ignore[attr-defined]  # the local one
    is_default = timeout_s == MAX_EXECUTION_TIME_SECONDS and "timeout_seconds" not in agent.executor_kwargs
    return None if is_default else timeout_s


def _show_finished(seat: Seat, step: MemoryStep) -> None:
    """Show a managed agent's step, which is kept nowhere."""
    track = seat.track
    if track and finished(step) and (event := track.finish(step)):
        track.recorder.tell(event)
