"""What smolagents builds anew on every run and need not: the system prompt, finished steps' messages, log panels."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import smolagents.agents
from jinja2 import Template
from rich.console import Console
from smolagents import CodeAgent, MultiStepAgent, ToolCallingAgent
from smolagents.memory import CallbackRegistry
from smolagents.monitoring import AgentLogger, LogLevel

from smolsessions.agents.memory.prompt_builder import ShownMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from contextlib import AbstractContextManager

    from smolagents.memory import MemoryStep

    from smolsessions.agents.memory.policies import Function

MOST_PROMPTS = 1000
_SILENT = frozenset({LogLevel.OFF, LogLevel.INFO})
"""The levels of default loggers that print nothing: INFO is smolagents' default, and a service's output no console."""


def forget_torch() -> None:
    """Where torch is not installed, let that be known: smolagents looks for it on the whole path at every answer."""
    if importlib.util.find_spec("torch") is None:
        sys.modules["torch"] = None  # type: ignore[assignment]


def keep_templates() -> None:
    """Compile each text of a template once: smolagents does it at every use, which is most of making an agent."""
    smolagents.agents.Template = lru_cache(maxsize=MOST_PROMPTS)(Template)  # type: ignore[attr-defined, assignment]


def mark_default_loggers() -> None:
    """Have agents make loggers that can be told from those that an author passes as `logger=`."""
    smolagents.agents.AgentLogger = DefaultLogger  # type: ignore[attr-defined]


def make_thrifty(agent: MultiStepAgent) -> None:
    """Replace two public methods and the default logger on this instance, and on its managed agents.

    Prompts stay the same, and so does a logger that the author passed.
    An agent class with methods of its own keeps them.
    """
    if type(agent.logger) is DefaultLogger and agent.logger.level in _SILENT:
        agent.logger = agent.monitor.logger = SilentLogger()
    kind = type(agent)
    if kind.initialize_system_prompt in _KNOWN_PROMPTS:
        agent.initialize_system_prompt = _KeptPrompt(agent)  # type: ignore[method-assign]
    if kind.write_memory_to_messages is MultiStepAgent.write_memory_to_messages:
        agent.write_memory_to_messages = ShownMemory(agent)  # type: ignore[method-assign]
    if type(agent.step_callbacks) is CallbackRegistry:
        agent.step_callbacks = KeptCallbacks(agent.step_callbacks)
    for managed in agent.managed_agents.values():
        make_thrifty(managed)


def shown_memory_of(agent: MultiStepAgent, own_policies: dict[str, Function]) -> ShownMemory | None:
    """Give what stands for a thrifty agent's `write_memory_to_messages`; nothing where its class has its own."""
    shown = agent.write_memory_to_messages
    if not isinstance(shown, ShownMemory):
        return None
    shown.own(own_policies)
    return shown


class KeptCallbacks(CallbackRegistry):  # type: ignore[misc, unused-ignore]
    """Calls an agent's callbacks, each of which is looked at once: smolagents inspects its signature at every step.

    They run inside the context manager that `around` returns for the step.
    """

    def __init__(self, registry: CallbackRegistry) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        vars(self).update(vars(registry))
        self._takes_one: dict[int, bool] = {}  # by identity: the registry keeps them alive
        self.around: Callable[[MemoryStep], AbstractContextManager[None]] | None = None

    def callback(self, memory_step: MemoryStep, **kwargs: Any) -> None:
        if self.around is None:
            self._call_all(memory_step, kwargs)
            return
        with self.around(memory_step):
            self._call_all(memory_step, kwargs)

    def _call_all(self, memory_step: MemoryStep, kwargs: dict[str, Any]) -> None:
        for kind in type(memory_step).__mro__:
            for call in self._callbacks.get(kind, ()):
                takes_one = self._takes_one.get(id(call))
                if takes_one is None:
                    takes_one = self._takes_one[id(call)] = len(inspect.signature(call).parameters) == 1
                if takes_one:
                    call(memory_step)
                else:
                    call(memory_step, **kwargs)


class DefaultLogger(AgentLogger):  # type: ignore[misc, unused-ignore]
    """The logger of an agent whose author passed none."""


class SilentLogger(AgentLogger):  # type: ignore[misc, unused-ignore]
    """Prints nothing and builds nothing to print: prompts and answers are not for a service's output."""

    def __init__(self) -> None:
        super().__init__(level=LogLevel.OFF, console=Console(quiet=True))

    def log(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    log_error = log_markdown = log_code = log_rule = log_task = log_messages = log


class _KeptPrompt:
    """The rendered system prompt, shared by all agents into whose prompt the same goes."""

    def __init__(self, agent: MultiStepAgent) -> None:
        self._agent = agent

    def __call__(self) -> str:
        ingredients = _ingredients(self._agent)
        prompt = _rendered.get(ingredients)
        if prompt is None:
            prompt = type(self._agent).initialize_system_prompt(self._agent)
            if len(_rendered) >= MOST_PROMPTS:
                _rendered.clear()
            _rendered[ingredients] = prompt
        return prompt


def _ingredients(agent: MultiStepAgent) -> tuple[Hashable, ...]:
    tools = [
        (name, tool.__class__, tool.description, str(tool.inputs), tool.output_type, str(tool.output_schema))
        for name, tool in agent.tools.items()
    ]
    return (
        type(agent),
        agent.prompt_templates["system_prompt"],
        agent.instructions,
        tuple(tools),
        tuple((name, managed.description) for name, managed in agent.managed_agents.items()),
        tuple(getattr(agent, "authorized_imports", ())),
        getattr(agent, "code_block_tags", None),
    )


_rendered: dict[tuple[Hashable, ...], str] = {}
_KNOWN_PROMPTS = (ToolCallingAgent.initialize_system_prompt, CodeAgent.initialize_system_prompt)
