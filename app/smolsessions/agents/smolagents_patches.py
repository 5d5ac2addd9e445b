"""Patches for values that smolagents rebuilds for each run: prompts, messages of old steps, lines of a log."""

from __future__ import annotations

import importlib.resources
import inspect
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy, deepcopy
from functools import cache, lru_cache, partial
from operator import attrgetter
from textwrap import indent
from typing import Any

import smolagents.agents
import smolagents.monitoring
import smolagents.tools
from jinja2 import Template
from rich.console import Console
from rich.panel import Panel
from rich.text import Text
from smolagents import CodeAgent, MultiStepAgent, Tool, ToolCallingAgent
from smolagents.agent_types import handle_agent_output_types
from smolagents.default_tools import FinalAnswerTool
from smolagents.memory import CallbackRegistry, MemoryStep
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.utils import Retrying

from smolsessions.agents.memory.policies import PolicyFunction
from smolsessions.agents.memory.prompt_builder import PromptBuilder
from smolsessions.agents.models.token_usage import note_reports
from smolsessions.agents.run.proxy import unproxied

MAX_CACHED_PROMPTS = 1000
_SILENT = frozenset({LogLevel.OFF, LogLevel.INFO})
"""Levels at which a default logger prints nothing. INFO is smolagents' default, and a service is no console."""
_PLAIN = frozenset({int, float, bool, type(None), dict, list, tuple})
_WRAPPED = frozenset({"string", "image", "audio"})
_TOOL_INPUTS = attrgetter("name", "description", "inputs", "output_type", "output_schema")
_PROMPTS = attrgetter("to_code_prompt.__func__", "to_tool_calling_prompt.__func__")
_USUAL_PROMPTS = (Tool.to_code_prompt, Tool.to_tool_calling_prompt)
_OWN_TEMPLATES = [
    file.read_text("utf-8")
    for file in importlib.resources.files("smolagents.prompts").iterdir()
    if file.name.endswith(".yaml")
]


@cache
def patch_smolagents() -> None:
    """Replace parts of smolagents that cost time at each new agent, run or answer. The results stay the same.

    A warm turn takes some 5.6 M instructions, and each patch saves more than 3 % of them: the compiled template
    several M, the rendered prompt 200 k, signatures 100 k a step, the search for torch 400 k a plain output.
    One more patch notes the token counts of providers, of which smolagents drops the details.
    """
    names: Any = smolagents.agents
    names.Template = lru_cache(maxsize=MAX_CACHED_PROMPTS)(Template)
    names.FinalAnswerTool = partial(copy, FinalAnswerTool())  # a new one is checked, which takes 25 us of 260
    names.AgentLogger = DefaultLogger
    monitoring: Any = smolagents.monitoring
    names.Text = monitoring.Text = _deferred(Text)
    names.Panel = _deferred(Panel)
    Retrying.__call__ = note_reports(Retrying.__call__)  # type: ignore[method-assign]
    tools: Any = smolagents.tools

    def wrap_output(output: Any, output_type: str | None = None) -> Any:
        is_plain = type(output) in _PLAIN and output_type not in _WRAPPED  # smolagents would search the path for torch
        return output if is_plain else handle_agent_output_types(output, output_type)

    names.handle_agent_output_types = tools.handle_agent_output_types = wrap_output

    def substitute(agent: ToolCallingAgent, arguments: Any) -> Any:
        """Replace names by values of `agent.state`, as smolagents does."""
        state = agent.state
        if not (state and isinstance(arguments, dict)):
            return arguments
        named = {key: state.get(value, value) if isinstance(value, str) else value for key, value in arguments.items()}
        values = _Arguments(named)
        values.written = arguments
        return values

    ToolCallingAgent._substitute_state_variables = substitute  # type: ignore[method-assign, assignment]  # noqa: SLF001
    for kind in (ToolCallingAgent, CodeAgent):
        kind.initialize_system_prompt = _cached(kind.initialize_system_prompt)  # type: ignore[method-assign, assignment]


def patch_agent(agent: MultiStepAgent, own_policies: Mapping[str, PolicyFunction]) -> PromptBuilder | None:
    """Patch this agent and its managed agents, and return the agent's prompt builder.

    The prompts stay the same. An author's logger stays, and so do methods that the agent's class overrides.
    Returns None if the class builds its messages itself.
    """
    if type(agent.logger) is DefaultLogger and agent.logger.level in _SILENT:
        agent.logger = agent.monitor.logger = SilentLogger()
    if type(agent.step_callbacks) is CallbackRegistry:
        agent.step_callbacks = CachedCallbacks(agent.step_callbacks)
    for managed in agent.managed_agents.values():
        patch_agent(managed, {})
    if type(agent).write_memory_to_messages is not MultiStepAgent.write_memory_to_messages:
        return None
    builder = PromptBuilder(agent, own_policies)
    agent.write_memory_to_messages = builder  # type: ignore[method-assign]
    return builder


class CachedCallbacks(CallbackRegistry):  # type: ignore[misc, unused-ignore]
    """Callback registry that inspects each signature once, not at every step as smolagents does.

    The callbacks run inside the context manager that `around` returns for the step.
    """

    def __init__(self, registry: CallbackRegistry) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        vars(self).update(vars(registry))
        self._takes_one: dict[int, bool] = {}  # by identity: the registry keeps them alive
        self.around: Callable[[MemoryStep], AbstractContextManager[None]] | None = None

    def callback(self, memory_step: MemoryStep, **kwargs: Any) -> None:
        with self.around(memory_step) if self.around else nullcontext():
            for kind in type(memory_step).__mro__:
                for call in self._callbacks.get(kind, ()):
                    if id(call) not in self._takes_one:
                        self._takes_one[id(call)] = len(inspect.signature(call).parameters) == 1
                    call(memory_step, **({} if self._takes_one[id(call)] else kwargs))


class DefaultLogger(AgentLogger):  # type: ignore[misc, unused-ignore]
    """Logger of an agent whose author passed none. Silent ones share a console: a new one takes 20 us of 260."""

    def __init__(self, level: LogLevel = LogLevel.INFO, console: Console | None = None) -> None:
        super().__init__(level, console or (_CONSOLE if level in _SILENT else None))


class SilentLogger(AgentLogger):  # type: ignore[misc, unused-ignore]
    """Logger that neither prints nor formats: prompts and answers do not belong in a service's output."""

    def __init__(self) -> None:
        super().__init__(level=LogLevel.OFF, console=_QUIET_CONSOLE)

    def log(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    log_error = log_markdown = log_code = log_rule = log_task = log_messages = log


_CONSOLE, _QUIET_CONSOLE = Console(highlight=False), Console(quiet=True)


def _deferred(kind: Any) -> type:
    """Return a subclass whose objects are initialized once they are read: a silent logger reads none."""

    def keep(self: Any, *args: Any, **kwargs: Any) -> None:
        self._given = args, kwargs

    def initialize(self: Any, name: str) -> Any:
        if (given := vars(self).pop("_given", None)) is None:
            raise AttributeError(name)
        args, kwargs = given
        kind.__init__(self, *args, **kwargs)
        return getattr(self, name)

    return type(kind.__name__, (kind,), {"__init__": keep, "__getattr__": initialize})


class _Arguments(dict[str, Any]):
    """Arguments of a tool call whose text, in an error for the model, has the names that the model wrote."""

    written: Any = None

    def __repr__(self) -> str:
        return repr(self.written)


def _cached(render: Callable[[Any], str]) -> Callable[[Any], str]:
    """Return a method that renders a system prompt once for all agents with the same inputs.

    It renders others each time: templates of the author's own, and tools that write their prompts themselves.
    """
    rendered: dict[tuple[Hashable, ...], tuple[list[Any], str]] = {}

    def initialize_system_prompt(agent: MultiStepAgent) -> str:
        template, tools = agent.prompt_templates["system_prompt"], list(map(unproxied, agent.tools.values()))
        try:
            is_known = _is_smolagents_own(template) and all(_PROMPTS(tool) == _USUAL_PROMPTS for tool in tools)
        except AttributeError:  # a function in place of a method
            is_known = False
        if not is_known:
            return render(agent)
        inputs = [
            *map(_TOOL_INPUTS, tools),
            *(
                (one.name, one.description, getattr(one, "inputs", None), getattr(one, "output_type", None))
                for one in agent.managed_agents.values()
            ),
            getattr(agent, "authorized_imports", None),
            getattr(agent, "code_block_tags", None),
        ]
        key = (type(agent), template, agent.instructions, *agent.tools, None, *agent.managed_agents)
        try:
            known = rendered.get(key)
            if known and known[0] == inputs:
                return known[1]
            if len(rendered) >= MAX_CACHED_PROMPTS:
                rendered.clear()
            prompt = render(agent)
            rendered[key] = deepcopy(inputs), prompt
        except TypeError:  # an input without a hash or a copy, as a list of instructions
            return render(agent)
        return prompt

    return initialize_system_prompt


@lru_cache(maxsize=64)
def _is_smolagents_own(template: str) -> bool:
    """Return whether smolagents' files hold the template, and so all expressions in it are known."""
    part = indent(template, "  ")
    return any(part in text for text in _OWN_TEMPLATES)
