"""Memory policies as data: what bounds the steps that the model is shown. What they do is the agents' room's."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
)

MOST_RULES = 8
MOST_NAME_CHARS = 300
NONE_SENTENCE = (
    "is no policy: use no_pruning, keep_last_n_steps, prune_old_observations, token_budget, summarize, or a function "
    "of the agent's as module:function"
)
_IMPORT = re.compile(r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$")


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class NoPruning(_Rule):
    """All steps are shown."""

    name: Literal["no_pruning"]


class KeepLastNSteps(_Rule):
    """The last `n` steps are shown beside the system prompt, all tasks and notes."""

    name: Literal["keep_last_n_steps"]
    n: int = Field(ge=1, le=1_000_000)


class PruneOldObservations(_Rule):
    """Observations are cut to `max_length` characters, but for those of the last `keep_last_n` actions."""

    name: Literal["prune_old_observations"]
    keep_last_n: int = Field(ge=0, le=1_000_000)
    max_length: int = Field(100, ge=0, le=1_000_000)


class TokenBudget(_Rule):
    """The oldest turns are left out, then the oldest steps of the one that is played, until the prompt fits."""

    name: Literal["token_budget"]
    max_tokens: int = Field(ge=1, le=100_000_000)


class Summarize(_Rule):
    """Where more than `after_tokens` would be shown, the agent's model sums up all but the newest steps."""

    name: Literal["summarize"]
    after_tokens: int = Field(ge=1, le=100_000_000)


def _import_string(name: str) -> str:
    if len(name) > MOST_NAME_CHARS or not _IMPORT.fullmatch(name):
        raise ValueError(NONE_SENTENCE)
    return name


class OwnRule(_Rule):
    """A function `(steps) -> steps` of the operator's, by import string; the agent lists those that may be named."""

    name: Annotated[str, AfterValidator(_import_string), Field(json_schema_extra={"pattern": _IMPORT.pattern})]


_KINDS: tuple[type[_Rule], ...] = (NoPruning, KeepLastNSteps, PruneOldObservations, TokenBudget, Summarize)
NAMES = tuple(kind.model_fields["name"].annotation.__args__[0] for kind in _KINDS)  # type: ignore[union-attr]

OWN = "own"
TAGS = frozenset((*NAMES, OWN))
"""What pydantic puts into the place of an error beside the names of members."""


def _kind_of(rule: Any) -> str:
    name = rule.get("name") if isinstance(rule, dict) else getattr(rule, "name", None)
    return str(name) if name in NAMES else OWN


def _listed(value: Any) -> Any:
    """Take one rule for a list of it, and a bare name for a rule without parameters."""
    rules = value if isinstance(value, list | tuple) else [value]
    few = rules[: MOST_RULES + 1]  # enough to be refused, before each of very many becomes an error of its own
    return [{"name": rule} if isinstance(rule, str) else rule for rule in few]


def _named(rule: Any) -> Any:
    if not isinstance(rule, dict | BaseModel):
        raise ValueError(NONE_SENTENCE)  # noqa: TRY004 - pydantic tells of these
    return rule


Rule = Annotated[
    Annotated[NoPruning, Tag("no_pruning")]
    | Annotated[KeepLastNSteps, Tag("keep_last_n_steps")]
    | Annotated[PruneOldObservations, Tag("prune_old_observations")]
    | Annotated[TokenBudget, Tag("token_budget")]
    | Annotated[Summarize, Tag("summarize")]
    | Annotated[OwnRule, Tag("own")],
    Discriminator(_kind_of),
]
Rules = Annotated[
    list[Annotated[Rule, BeforeValidator(_named)]],
    BeforeValidator(_listed, json_schema_input_type=str | Rule | list[str | Rule]),
    Field(max_length=MOST_RULES),
]
"""Rules in the order in which they are applied, each to what the one before it left."""

Policy = tuple[Rule, ...]
_RULES: TypeAdapter[list[Rule]] = TypeAdapter(Rules)


def policy_of(data: Any) -> Policy:
    """Read a policy as it is written in JSON, or by an agent's author. Raises `pydantic.ValidationError`."""
    return tuple(_RULES.validate_python(data))


def what_is_wrong(error: ValidationError) -> str:
    """Say in a line what pydantic found."""
    problems = [
        f"{'/'.join(str(part) for part in problem['loc'] if part not in TAGS)}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    return "; ".join(problem.replace("Value error, ", "").removeprefix(": ") for problem in problems)


def policy_data(policy: Policy) -> list[dict[str, Any]]:
    """Give a policy as it is written in JSON."""
    return [rule.model_dump() for rule in policy]
