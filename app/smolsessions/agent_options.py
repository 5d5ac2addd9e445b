"""Options of an agent. Its factory sets them with `smolsessions.options`, or the decorator `smolsessions.agent`."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, ParamSpec, Protocol, Self, TypeVar, Unpack

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from typing_extensions import TypedDict

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

ATTRIBUTE = "_smolsessions_options"
_NAME = "_smolsessions_name"
_ALIKE = 0.81
"""Similarity that makes a name a misspelt option. `policies` is less like `own_policies` than this."""


def _line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("is empty or holds control characters; write one line")
    return text


Text = Annotated[str, Field(min_length=1, max_length=100_000)]
Line = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_line)]
Lines = Annotated[tuple[Line, ...], Field(strict=False, max_length=1000)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
_Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_CountLimit = Annotated[int, Field(ge=0)]


class CodeLimitValues(TypedDict, total=False):
    """Limits of a CodeAgent's code in its child process. docs/security.md lists the defaults."""

    cpu_s: _Limit
    wall_s: _Limit
    memory_mb: _Limit
    output_mb: _Limit
    variables_mb: _Limit
    processes: _CountLimit
    open_files: _CountLimit


class WorkspaceValues(TypedDict, total=False):
    """Keyword arguments of `WorkspaceOptions`."""

    editable: list[str] | tuple[str, ...]
    readonly: list[str] | tuple[str, ...]
    hidden: list[str] | tuple[str, ...]
    path: str | None


class SummaryModel(Protocol):
    """A smolagents model."""

    @property
    def generate(self) -> Callable[..., Any]:
        """The method that calls the model."""


class OptionValues(TypedDict, total=False):
    """Keyword arguments of `options` and `agent`, as a type checker knows them. `Options` documents them."""

    memory_policy: PolicyRules
    own_policies: list[str] | tuple[str, ...]
    summary_model: SummaryModel | None
    prompt_cache: bool
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
    client_tools: bool
    output_schema: dict[str, Any] | None
    remembers: bool


class Table(BaseModel):
    """Strict model of options. No error shows a value, because any value could be a key."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True, defer_build=True)

    @property
    def given(self) -> frozenset[str]:
        """Names of the keys that the file sets."""
        return frozenset(self.model_fields_set)


class WorkspaceOptions(Table):
    """A directory of each conversation and its file tools. A path that no pattern lists is denied."""

    editable: Lines = Field((), description="Patterns (as in .gitignore) of files that the agent may write.")
    readonly: Lines = Field((), description="Patterns of files that it may read.")
    hidden: Lines = Field((), description="Patterns of files that it cannot notice. They win over the others.")
    path: Line | None = Field(None, description="A given directory, read-only, instead of one for each conversation.")

    @model_validator(mode="after")
    def _is_usable(self) -> Self:
        if self.path and self.editable:
            raise ValueError("path is read-only, so nothing is editable; remove one of the two")
        if not self.editable and not self.readonly:
            raise ValueError("lists no file that the agent may read; add readonly or editable patterns")
        return self


class SharedOptions(Table):
    """Options that factories set and that are keys of agents.toml, too."""

    examples: Annotated[tuple[Text, ...], Field(strict=False, max_length=20)] = Field(
        (), description="Questions that the page offers."
    )
    code_limits: CodeLimitValues = Field(default_factory=CodeLimitValues, description="Limits of code.")
    scratchpad: bool = Field(False, description="Add the tools note_write and note_read.")
    model_retries: int = Field(2, ge=0, le=10, description="How often a failed model call is repeated.")
    unsafe_to_repeat: Lines = Field((), description="Tools that are not called again after a crash.")
    deadline_s: Seconds | None = Field(None, description="Longest time of a turn. Else the service's own.")
    workspace: WorkspaceOptions | None = Field(None, description="Files of the agent's conversations.")
    ask_user: bool = Field(False, description="Add the tool ask_user, whose question a person answers.")
    client_tools: bool = Field(True, description="Take tools that a client describes and runs.")
    output_schema: dict[str, Any] | None = Field(None, description="JSON Schema of the answers of its turns.")
    remembers: bool = Field(False, description="As a managed agent, keep the memory between calls.")


class Options(SharedOptions):
    """All options of one agent, with their defaults. The check of the agent validates the values."""

    memory_policy: Any = Field((), description="Rules that bound the memory that the model sees.")
    own_policies: Lines = Field((), description="Functions `(steps) -> steps` that a policy may name: module:function.")
    summary_model: Any = Field(None, description="Model that summarizes. None: the agent's own.")
    prompt_cache: bool = Field(False, description="Ask the model's provider to cache prompts.")
    executor: Literal["child", "thread"] = Field("child", description="Place where a CodeAgent's code runs.")
    stored_classes: Annotated[tuple[Any, ...], Field(strict=False)] = Field(
        (), description="Classes of which memory and variables keep instances. Others are kept as data or text."
    )
    fingerprint: str | None = Field(None, description="Text that replaces the hash of prompts and tools.")
    approve: Any = Field(
        (),
        description="Tools whose calls wait for a person's approval: names, patterns such as `delete_*`, or a function "
        "of name, arguments and caller. It holds for managed agents, too.",
    )

    @field_validator("stored_classes")
    @classmethod
    def _are_top_level_classes(cls, kinds: tuple[object, ...]) -> tuple[object, ...]:
        for kind in kinds:
            if not isinstance(kind, type) or "." in kind.__qualname__:
                raise ValueError(f"holds {kind!r}; list classes, each a class at the top of its module")
        return kinds

    @field_validator("approve")
    @classmethod
    def _is_rule(cls, rule: Any) -> Any:
        if callable(rule):
            return rule
        if not isinstance(rule, list | tuple | set | frozenset) or not all(isinstance(one, str) for one in rule):
            raise ValueError("is neither a list of names of tools, nor a function of name, arguments and caller")
        return tuple(rule)


NAMES = tuple(OptionValues.__annotations__)
_DEFAULTS = Options.model_construct()


def options(agent: Agent, **values: Unpack[OptionValues]) -> Agent:
    """Set options of an agent, and return the agent. A later call keeps the options that it does not name."""
    if not hasattr(agent, "run") or not hasattr(agent, "memory"):
        raise TypeError(f"{agent!r} is no smolagents agent; pass one, and decorate a factory with @smolsessions.agent")
    _check_names("options", values)
    setattr(agent, ATTRIBUTE, options_of(agent).model_copy(update=dict(values)))
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
    found: Options = getattr(agent, ATTRIBUTE, _DEFAULTS)
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
