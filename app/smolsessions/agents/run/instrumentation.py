"""Instrumentation of an agent and its managed agents: proxies for all calls, and child processes for code."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from smolagents import CodeAgent, MultiStepAgent
from smolagents.local_python_executor import MAX_EXECUTION_TIME_SECONDS, LocalPythonExecutor
from smolagents.memory import ActionStep, MemoryStep, PlanningStep

from smolsessions.agent_options import options_of
from smolsessions.agents.memory.step_bytes import is_finished, repair
from smolsessions.agents.models.prompt_cache import cache_prompts
from smolsessions.agents.models.providers import with_fallbacks
from smolsessions.agents.run.agent_state import AgentNode, CodePlace
from smolsessions.agents.run.model_proxy import ModelProxy
from smolsessions.agents.run.proxy import unproxied
from smolsessions.agents.run.remote_interpreter import RemoteInterpreter, clean_up_in_background
from smolsessions.agents.run.tool_proxy import AgentProxy, CallbacksProxy, InterpreterProxy, proxy_check, proxy_tools
from smolsessions.agents.sandbox import guard
from smolsessions.agents.sandbox.fork_client import ForkClient
from smolsessions.agents.sandbox.interpreter import ChildInterpreter
from smolsessions.agents.sandbox.limits import CodeLimits
from smolsessions.core.errors import StartError

log = logging.getLogger(__name__)


def instrument(
    agent: MultiStepAgent,
    fork_client: ForkClient,
    stored_classes: tuple[type, ...],
    nodes: list[AgentNode],
    path: str = "",
) -> AgentNode:
    """Put proxies into an agent and all its managed agents, once. Append their nodes to `nodes`, and return its own."""
    for known in nodes:
        if known.agent is agent:  # two agents manage this one
            return known
    node = AgentNode(path, agent, stored_classes, code_runs_in(agent), getattr(agent, "stream_outputs", False))
    nodes.append(node)
    if options_of(agent).prompt_cache:
        for model in with_fallbacks(agent.model):
            cache_prompts(model)
    agent.model = ModelProxy(agent.model, node)  # type: ignore[assignment]  # passes for one
    agent.stream_outputs = False  # the model proxy streams, in linear time
    agent.final_answer_checks = [proxy_check(check, node) for check in agent.final_answer_checks]
    agent.step_callbacks = CallbacksProxy(agent.step_callbacks, node)  # type: ignore[assignment]  # passes for one
    proxy_tools(node)
    if path:

        def emit_finished(step: MemoryStep) -> None:
            """Emit a finished step of a managed agent, which is not stored."""
            agent_run = node.agent_run
            repair(step)  # other steps are repaired before they are packed
            if agent_run and is_finished(step):
                agent_run.complete(step)
                if event := agent_run.finish(step):
                    agent_run.turn_run.emit(event)

        for kind in (ActionStep, PlanningStep):
            agent.step_callbacks.register(kind, emit_finished)
    for name, managed in agent.managed_agents.items():
        inner = instrument(managed, fork_client, stored_classes, nodes, f"{path}/{name}" if path else name)
        agent.managed_agents[name] = AgentProxy(managed, node, inner)
    if not isinstance(agent, CodeAgent):
        return node
    executor: Any = agent.python_executor
    limits = CodeLimits(**options_of(agent).code_limits)
    if node.code_runs_in == "child":
        # `code_limits` replace smolagents' default timeout, and not one of the author's.
        timeout_s: float | None = executor.timeout_seconds
        if timeout_s == MAX_EXECUTION_TIME_SECONDS and "timeout_seconds" not in agent.executor_kwargs:
            timeout_s = None
        executor = node.interpreter = ChildInterpreter(
            executor, fork_client, limits, stored_classes, node.check, timeout_s=timeout_s
        )
    elif node.code_runs_in == "remote":
        imports = agent.additional_authorized_imports
        executor.attach(imports, limits, stored_classes, node.check, node.lost.update)
    else:
        guard.install()
    agent.python_executor = InterpreterProxy(executor, node)  # type: ignore[assignment]  # passes for one
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
    """Call `cleanup` of an agent and of the agents that it manages, in threads."""
    for each in with_managed(agent):
        executor = getattr(each, "python_executor", None)
        if hasattr(each, "cleanup") and (type(each) is not CodeAgent or hasattr(executor, "cleanup")):
            clean_up_in_background(each)
