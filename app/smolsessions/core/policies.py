"""Memory policies as data: rules that bound the steps in a prompt. `agents/memory` applies them."""

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
)

MOST_RULES = 8
MOST_NAME_CHARS = 300
MOST_MEMBERS = 10  # each unknown one of a rule is an error of its own
NAME = "Name of the rule."
NONE_SENTENCE = (
    "is no policy: use no_pruning, keep_last_n_steps, prune_old_observations, token_budget, summarize, or a function "
    "of the agent's as module:function"
)
_IMPORT = re.compile(r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$")


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class NoPruning(_Rule):
    """All steps are shown."""

    name: Literal["no_pruning"] = Field(description=NAME)


class KeepLastNSteps(_Rule):
    """The last `n` steps are shown beside the system prompt, all tasks and notes."""

    name: Literal["keep_last_n_steps"] = Field(description=NAME)
    n: int = Field(ge=1, le=1_000_000, description="Number of the last steps that are shown.")


class PruneOldObservations(_Rule):
    """Observations are cut to `max_length` characters, except those of the last `keep_last_n` actions."""

    name: Literal["prune_old_observations"] = Field(description=NAME)
    keep_last_n: int = Field(ge=0, le=1_000_000, description="Number of the last actions whose observations stay.")
    max_length: int = Field(100, ge=0, le=1_000_000, description="Most characters of other observations.")


class TokenBudget(_Rule):
    """The oldest turns are left out, then the oldest steps of the running turn, until the prompt fits."""

    name: Literal["token_budget"] = Field(description=NAME)
    max_tokens: int = Field(ge=1, le=100_000_000, description="Most tokens of the prompt.")


class Summarize(_Rule):
    """Above `after_tokens`, the agent's model summarizes all steps except the newest."""

    name: Literal["summarize"] = Field(description=NAME)
    after_tokens: int = Field(ge=1, le=100_000_000, description="Tokens of the prompt above which it is summarized.")


def _import_string(name: str) -> str:
    if len(name) > MOST_NAME_CHARS or not _IMPORT.fullmatch(name):
        raise ValueError(NONE_SENTENCE)
    return name


class OwnRule(_Rule):
    """A function `(steps) -> steps` of the operator by import string. The agent lists the allowed ones."""

    name: Annotated[
        str,
        AfterValidator(_import_string),
        Field(description="The function: `module:function`.", json_schema_extra={"pattern": _IMPORT.pattern}),
    ]


_KINDS: tuple[type[_Rule], ...] = (NoPruning, KeepLastNSteps, PruneOldObservations, TokenBudget, Summarize)
NAMES = tuple(kind.model_fields["name"].annotation.__args__[0] for kind in _KINDS)  # type: ignore[union-attr]

OWN = "own"
TAGS = frozenset((*NAMES, OWN))
"""Names that pydantic adds to the path of an error."""


def _kind_of(rule: Any) -> str:
    name = rule.get("name") if isinstance(rule, dict) else getattr(rule, "name", None)
    return str(name) if name in NAMES else OWN


def _listed(value: Any) -> Any:
    """Return a tuple for a single rule, and a rule for a bare name."""
    rules = value if isinstance(value, list | tuple) else [value]
    few = rules[: MOST_RULES + 1]  # enough to be refused, before each of very many becomes an error of its own
    return tuple({"name": rule} if isinstance(rule, str) else rule for rule in few)


def _named(rule: Any) -> Any:
    if not isinstance(rule, dict | BaseModel) or (isinstance(rule, dict) and len(rule) > MOST_MEMBERS):
        raise ValueError(NONE_SENTENCE)
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
Policy = Annotated[
    tuple[Annotated[Rule, BeforeValidator(_named)], ...],
    Field(max_length=MOST_RULES),
    BeforeValidator(
        _listed, json_schema_input_type=str | Rule | Annotated[list[str | Rule], Field(max_length=MOST_RULES)]
    ),
]
"""Rules in their order. Each is applied to the result of the one before."""

_POLICY: TypeAdapter[Policy] = TypeAdapter(Policy)


def policy_of(data: Any) -> Policy:
    """Raises `pydantic.ValidationError`."""
    return _POLICY.validate_python(data)


def policy_data(policy: Policy) -> list[dict[str, Any]]:
    return [rule.model_dump() for rule in policy]
