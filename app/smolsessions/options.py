"""Options of an agent. Its factory sets them with `smolsessions.options`, or the decorator `smolsessions.agent`."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack

__all__ = [
    "CodeLimitValues",
    "OptionValues",
    "Options",
    "WorkspaceValues",
    "agent",
    "factory_name",
    "nearest",
    "options",
    "options_of",
]

Agent = TypeVar("Agent")
P = ParamSpec("P")
PolicyRules = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]
"""Name of a rule, a rule with its parameters, or several rules in their order."""

ApproveRule = Sequence[str] | Callable[[str, Any, Any], bool]
"""Names and patterns of tools, or a function `(name, arguments, caller) -> bool`."""

_ATTRIBUTE = "_smolsessions_options"
_NAME = "_smolsessions_name"
_ALIKE = 0.81
"""Similarity that makes a name a misspelt option. `policies` is less like `own_policies` than this."""


class SummaryModel(Protocol):
    """A smolagents model."""

    @property
    def generate(self) -> Callable[..., Any]:
        """The method that calls the model."""


class CodeLimitValues(TypedDict, total=False):
    """Limits of a CodeAgent's code in its child process. docs/security.md lists the defaults."""

    cpu_s: float
    wall_s: float
    memory_mb: float
    output_mb: float
    variables_mb: float
    processes: int
    open_files: int


class WorkspaceValues(TypedDict, total=False):
    """Files of an agent's conversations: gitignore patterns, without `!`. A path that none lists is denied."""

    editable: list[str] | tuple[str, ...]
    """Files that the agent may write and read."""
    readonly: list[str] | tuple[str, ...]
    """Files that it may read."""
    hidden: list[str] | tuple[str, ...]
    """Files that it cannot notice. They win over the others."""
    path: str | None
    """A given directory, read-only, instead of one for each conversation."""


class OptionValues(TypedDict, total=False):
    """Keyword arguments of `options` and `agent`."""

    memory_policy: PolicyRules
    own_policies: list[str] | tuple[str, ...]
    summary_model: SummaryModel | None
    scratchpad: bool
    executor: Literal["child", "thread"]
    code_limits: CodeLimitValues
    stored_classes: list[type] | tuple[type, ...] | set[type] | frozenset[type]
    unsafe_to_repeat: list[str] | tuple[str, ...] | set[str] | frozenset[str]
    model_retries: int
    workspace: WorkspaceValues | None
    fingerprint: str | None
    examples: list[str] | tuple[str, ...]
    deadline_s: float | None
    approve: ApproveRule
    ask_user: bool


@dataclass(frozen=True)
class Options:
    """All options of one agent, with their defaults. The check at start validates the values."""

    memory_policy: PolicyRules = ()
    """Rules that bound the memory that the model sees."""
    own_policies: Sequence[str] = ()
    """Functions `(steps) -> steps` that a policy may name, as `module:function`."""
    summary_model: Any = None
    """Model that summarizes. None: the agent's own."""
    scratchpad: bool = False
    """The agent gets the tools `note_write` and `note_read`."""
    executor: Literal["child", "thread"] = "child"
    """Place where a CodeAgent's code runs: a child process, or the thread of its turn."""
    code_limits: CodeLimitValues = field(default_factory=CodeLimitValues)
    """Limits of code in its child process."""
    stored_classes: Sequence[type] | set[type] | frozenset[type] = ()
    """Classes of which memory and variables keep instances. Others are kept as data or text."""
    unsafe_to_repeat: Sequence[str] | set[str] | frozenset[str] = ()
    """Tools whose calls are not repeated after a crash that left their outcome unknown."""
    model_retries: int = 0
    """Number of times that a model call that failed in transit is repeated."""
    workspace: WorkspaceValues | None = None
    """The agent gets the tools `read_file`, `write_file`, `edit_file`, `glob` and `grep` for these files."""
    fingerprint: str | None = None
    """Text that replaces the hash of prompts and tools: an agent of another one replays no turn of this one."""
    examples: Sequence[str] = ()
    """Questions that a page may offer."""
    deadline_s: float | None = None
    """Longest time of a turn whose caller sets none. None: the service's."""
    approve: ApproveRule = ()
    """Tools whose calls wait for a person's approval: names, patterns such as `delete_*`, or a function of name,
    arguments and caller. It holds for managed agents, too."""
    ask_user: bool = False
    """The agent gets the tool `ask_user(question, choices=None)`, and its turn waits for the answer."""


NAMES = tuple(each.name for each in fields(Options))
_DEFAULTS = Options()


def options(agent: Agent, **values: Unpack[OptionValues]) -> Agent:
    """Set options of an agent, and return the agent. A later call keeps the options that it does not name."""
    if not hasattr(agent, "run") or not hasattr(agent, "memory"):
        raise TypeError(f"{agent!r} is no smolagents agent; pass one, and decorate a factory with @smolsessions.agent")
    _check_names("options", values)
    setattr(agent, _ATTRIBUTE, replace(options_of(agent), **values))
    return agent


def agent(name: str, **values: Unpack[OptionValues]) -> Callable[[Callable[P, Agent]], Callable[P, Agent]]:
    """Decorate a factory: name its agent, and set options of each agent that it makes."""
    if not isinstance(name, str):
        raise TypeError(f'smolsessions.agent got {name!r} for a name; write @smolsessions.agent("shop")')
    _check_names("agent", values)

    def decorate(factory: Callable[P, Agent]) -> Callable[P, Agent]:
        @functools.wraps(factory)
        def make(*args: P.args, **kwargs: P.kwargs) -> Agent:
            return options(factory(*args, **kwargs), **values)

        setattr(make, _NAME, name)
        return make

    return decorate


def options_of(agent: object) -> Options:
    """Return the options that were set on an agent, by default those without a change."""
    found: Options = getattr(agent, _ATTRIBUTE, _DEFAULTS)
    return found


def factory_name(factory: object) -> str | None:
    """Return the name that the decorator gave to a factory's agent."""
    return getattr(factory, _NAME, None)


def nearest(name: str) -> str | None:
    """Return the option that has this name, or one that is spelt like it."""
    return next(iter(difflib.get_close_matches(name, NAMES, 1, _ALIKE)), None)


def _check_names(function: str, values: Mapping[str, object]) -> None:
    for name in values:
        if name not in NAMES:
            advice = f"did you mean {near}?" if (near := nearest(name)) else f"use one of {', '.join(NAMES)}"
            raise TypeError(f"smolsessions.{function} has no option {name!r}; {advice}")
