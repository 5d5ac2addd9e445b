"""Instrumentation of an agent and its managed agents: proxies for all calls, and child processes for code."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from smolagents import CodeAgent
from smolagents.local_python_executor import MAX_EXECUTION_TIME_SECONDS, LocalPythonExecutor
from smolagents.memory import ActionStep, PlanningStep
from smolagents.remote_executors import RemotePythonExecutor

from smolsessions.agents.memory.steps import is_finished
from smolsessions.agents.run.model_proxy import ModelProxy
from smolsessions.agents.run.tool_proxy import (
    AgentProxy,
    CallbacksProxy,
    InterpreterProxy,
    RunContext,
    proxy_check,
    proxy_tools,
)
from smolsessions.agents.sandbox import guard
from smolsessions.agents.sandbox.interpreter import ChildInterpreter
from smolsessions.agents.sandbox.limits import limits_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smolagents import MultiStepAgent
    from smolagents.memory import MemoryStep

    from smolsessions.agents.sandbox.fork_client import ForkClient

log = logging.getLogger(__name__)


@dataclass
class AgentNode:
    """One agent of the tree. Its path is empty for the root, `helper/searcher` below it."""

    path: str
    agent: MultiStepAgent
    context: RunContext
    interpreter: ChildInterpreter | None = None


@dataclass
class AgentTree:
    """All agents of a session, the root first."""

    fork_client: ForkClient
    carries: tuple[type, ...]
    nodes: list[AgentNode] = field(default_factory=list)

    @property
    def root(self) -> AgentNode:
        return self.nodes[0]

    @property
    def interpreters(self) -> Iterator[ChildInterpreter]:
        return (node.interpreter for node in self.nodes if node.interpreter)


def instrument(agent: MultiStepAgent, fork_client: ForkClient, carries: tuple[type, ...]) -> AgentTree:
    """Put proxies into an agent and all its managed agents, once."""
    tree = AgentTree(fork_client, carries)
    _instrument(agent, tree, "")
    return tree


def runs_in_child(agent: MultiStepAgent) -> bool:
    """True if an agent's code runs in a child process: it has smolagents' local executor."""
    executor = getattr(agent, "python_executor", None)
    return type(executor) is LocalPythonExecutor and getattr(agent, "executor", "process") != "thread"


def code_runs_in(agent: MultiStepAgent) -> Literal["process", "thread", "remote"] | None:
    """Return where an agent's code runs. None for one that writes no code."""
    if not isinstance(agent, CodeAgent):
        return None
    if isinstance(agent.python_executor, RemotePythonExecutor):
        return "remote"
    return "process" if runs_in_child(agent) else "thread"


def clean_up(agent: MultiStepAgent) -> None:
    """Call an agent's `cleanup` in a thread: that of a remote executor is slow."""
    executor = getattr(agent, "python_executor", None)
    if not hasattr(agent, "cleanup") or (type(agent) is CodeAgent and not hasattr(executor, "cleanup")):
        return

    def run() -> None:
        try:
            agent.cleanup()
        except BaseException:
            log.exception("an agent could not be cleaned up", extra={"action": "agent.cleanup"})

    threading.Thread(target=run, name="cleanup", daemon=True).start()


def _instrument(agent: MultiStepAgent, tree: AgentTree, path: str) -> RunContext:
    known = next((node for node in tree.nodes if node.agent is agent), None)
    if known:  # two agents manage this one
        return known.context
    context = RunContext(agent, tree.carries, code_runs_in(agent))
    node = AgentNode(path, agent, context)
    tree.nodes.append(node)
    agent.model = ModelProxy(agent.model, context, agent)  # type: ignore[assignment]  # passes for one
    agent.stream_outputs = False  # the model proxy streams, in linear time
    agent.final_answer_checks = [proxy_check(check, context) for check in agent.final_answer_checks]
    agent.step_callbacks = CallbacksProxy(agent.step_callbacks, context)  # type: ignore[assignment]  # passes for one
    executor: Any = getattr(agent, "python_executor", None)
    proxy_tools(agent, context)
    for name, managed in agent.managed_agents.items():
        inner = _instrument(managed, tree, f"{path}/{name}" if path else name)
        agent.managed_agents[name] = AgentProxy(managed, context, inner)
    if isinstance(agent, CodeAgent):
        if runs_in_child(agent):
            limits = limits_of(getattr(agent, "code_limits", {}))
            executor = node.interpreter = ChildInterpreter(
                executor, tree.fork_client, limits, tree.carries, context.check, timeout_s=_timeout_of(agent)
            )
        elif context.code_runs_in == "thread":
            guard.install()
        agent.python_executor = InterpreterProxy(executor, context)  # type: ignore[assignment]  # passes for one
    if path:
        agent.step_callbacks.register(ActionStep, lambda step: _emit_finished(context, step))
        agent.step_callbacks.register(PlanningStep, lambda step: _emit_finished(context, step))
    return context


def _timeout_of(agent: CodeAgent) -> float | None:
    """Return the author's timeout of a code block. None for smolagents' default, which `code_limits` replace."""
    timeout_s: float | None = agent.python_executor.timeout_seconds  # type: ignore[attr-defined]  # the local one
    is_default = timeout_s == MAX_EXECUTION_TIME_SECONDS and "timeout_seconds" not in agent.executor_kwargs
    return None if is_default else timeout_s


def _emit_finished(context: RunContext, step: MemoryStep) -> None:
    """Emit a finished step of a managed agent, which is not stored."""
    agent_run = context.agent_run
    if agent_run and is_finished(step) and (event := agent_run.finish(step)):
        agent_run.recorder.emit(event)
