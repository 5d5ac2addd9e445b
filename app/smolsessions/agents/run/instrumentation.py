"""Instrumentation of an agent and its managed agents: proxies for all calls, and child processes for code."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from smolagents import CodeAgent, MultiStepAgent
from smolagents.local_python_executor import MAX_EXECUTION_TIME_SECONDS, LocalPythonExecutor
from smolagents.memory import ActionStep, MemoryStep, PlanningStep

from smolsessions.agents.memory.step_fields import repair_fields
from smolsessions.agents.memory.steps import is_finished
from smolsessions.agents.run.agent_run import AgentRun
from smolsessions.agents.run.clean_ups import in_background
from smolsessions.agents.run.model_proxy import ModelProxy
from smolsessions.agents.run.remote_interpreter import RemoteInterpreter
from smolsessions.agents.run.tool_proxy import (
    AgentProxy,
    CallbacksProxy,
    InterpreterProxy,
    proxy_check,
    proxy_tools,
    unproxied,
)
from smolsessions.agents.sandbox import guard
from smolsessions.agents.sandbox.fork_client import ForkClient
from smolsessions.agents.sandbox.interpreter import ChildInterpreter
from smolsessions.agents.sandbox.limits import limits_of
from smolsessions.core.errors import StartError
from smolsessions.options import options_of

if TYPE_CHECKING:
    from smolsessions.agents.run.agent_state import AgentState


CodePlace = Literal["child", "thread", "remote"]

log = logging.getLogger(__name__)


@dataclass(eq=False)
class AgentNode:
    """One agent of a session, as its proxies see it. Its path is empty for the root, `helper/searcher` below it."""

    path: str
    agent: MultiStepAgent
    stored_classes: tuple[type, ...]
    code_runs_in: CodePlace | None
    author_streams: bool
    """True if smolagents would stream: it then joins an answer without text to an empty one."""
    busy: threading.Lock = field(default_factory=threading.Lock)
    """Held during a run of a managed agent."""
    agent_run: AgentRun | None = None
    interpreter: ChildInterpreter | None = None
    state: AgentState = field(init=False)
    made: dict[str, Any] = field(init=False)
    """`agent.state` as the factory made it."""
    journaled: dict[str, bytes] = field(default_factory=dict)
    """`agent.state` as the journal has it."""
    unkept: set[str] = field(default_factory=set)
    """Names in `agent.state` whose values cannot be stored."""
    lost: set[str] = field(default_factory=set)
    """Lost names of an agent without a child process."""

    def __post_init__(self) -> None:
        self.made = self.agent.state.copy()

    def check(self) -> None:
        """Raise `TurnStopped` if a stop was requested."""
        if self.agent_run:
            self.agent_run.recorder.check()


def instrument(agent: MultiStepAgent, fork_client: ForkClient, stored_classes: tuple[type, ...]) -> list[AgentNode]:
    """Put proxies into an agent and all its managed agents, once. Return their nodes, the root first."""
    nodes: list[AgentNode] = []
    _visit(agent, "", nodes, fork_client, stored_classes)
    return nodes


def _visit(
    agent: MultiStepAgent, path: str, nodes: list[AgentNode], fork_client: ForkClient, stored_classes: tuple[type, ...]
) -> AgentNode:
    for known in nodes:
        if known.agent is agent:  # two agents manage this one
            return known
    node = AgentNode(path, agent, stored_classes, code_runs_in(agent), getattr(agent, "stream_outputs", False))
    nodes.append(node)
    _put_proxies(node)
    for name, managed in agent.managed_agents.items():
        inner = _visit(managed, f"{path}/{name}" if path else name, nodes, fork_client, stored_classes)
        agent.managed_agents[name] = AgentProxy(managed, node, inner)
    if isinstance(agent, CodeAgent):
        _put_interpreter(node, agent, fork_client)
    return node


def code_runs_in(agent: MultiStepAgent) -> CodePlace | None:
    """Return where an agent's code runs, before it is instrumented. None for one that writes no code."""
    if not isinstance(agent, CodeAgent):
        return None
    if isinstance(agent.python_executor, RemoteInterpreter):
        return "remote"
    is_local = type(agent.python_executor) is LocalPythonExecutor
    return "child" if is_local and options_of(agent).executor != "thread" else "thread"


def with_managed(agent: MultiStepAgent) -> Iterator[MultiStepAgent]:
    """Yield an agent and the agents that it manages, at all levels. Raises `StartError` for one of another kind."""
    if not isinstance(agent, MultiStepAgent):
        raise StartError(
            f"{getattr(agent, 'name', agent)!r} among the managed agents is a {type(agent).__name__} and no "
            "MultiStepAgent of smolagents; give it to the agent as a tool"
        )
    yield agent
    for managed in agent.managed_agents.values():
        yield from with_managed(unproxied(managed))


def clean_up(agent: MultiStepAgent) -> None:
    """Call `cleanup` of an agent and of the agents that it manages, in threads: that of a remote executor is slow."""
    for each in with_managed(agent):
        _clean_up(each)


def _clean_up(agent: MultiStepAgent) -> None:
    executor = getattr(agent, "python_executor", None)
    if not hasattr(agent, "cleanup") or (type(agent) is CodeAgent and not hasattr(executor, "cleanup")):
        return

    def run() -> None:
        try:
            agent.cleanup()
        except BaseException:
            log.exception("an agent could not be cleaned up", extra={"action": "agent.cleanup"})

    in_background(run)


def _put_proxies(node: AgentNode) -> None:
    agent = node.agent
    agent.model = ModelProxy(agent.model, node)  # type: ignore[assignment]  # passes for one
    agent.stream_outputs = False  # the model proxy streams, in linear time
    agent.final_answer_checks = [proxy_check(check, node) for check in agent.final_answer_checks]
    agent.step_callbacks = CallbacksProxy(agent.step_callbacks, node)  # type: ignore[assignment]  # passes for one
    proxy_tools(node)
    if node.path:
        for kind in (ActionStep, PlanningStep):
            agent.step_callbacks.register(kind, lambda step: _emit_finished(node, step))


def _put_interpreter(node: AgentNode, agent: CodeAgent, fork_client: ForkClient) -> None:
    executor: Any = agent.python_executor
    if node.code_runs_in == "child":
        limits = limits_of(options_of(agent).code_limits)
        executor = node.interpreter = ChildInterpreter(
            executor, fork_client, limits, node.stored_classes, node.check, timeout_s=_timeout_of(agent)
        )
    elif node.code_runs_in == "remote":
        imports, limits = agent.additional_authorized_imports, limits_of(options_of(agent).code_limits)
        executor.attach(imports, limits, node.stored_classes, node.check, node.lost.update)
    elif node.code_runs_in == "thread":
        guard.install()
    agent.python_executor = InterpreterProxy(executor, node)  # type: ignore[assignment]  # passes for one


def _timeout_of(agent: CodeAgent) -> float | None:
    """Return the author's timeout of a code block. None for smolagents' default, which `code_limits` replace."""
    timeout_s: float | None = agent.python_executor.timeout_seconds  # type: ignore[attr-defined]  # the local one
    is_default = timeout_s == MAX_EXECUTION_TIME_SECONDS and "timeout_seconds" not in agent.executor_kwargs
    return None if is_default else timeout_s


def _emit_finished(node: AgentNode, step: MemoryStep) -> None:
    """Emit a finished step of a managed agent, which is not stored."""
    agent_run = node.agent_run
    repair_fields(step)  # other steps are repaired before they are packed
    if agent_run and is_finished(step):
        agent_run.add_replayed_time(step)
        if event := agent_run.finish(step):
            agent_run.recorder.emit(event)
