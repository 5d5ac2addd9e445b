"""Sentences about mistakes in agents.toml: table, key and mend, without the value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from smolsessions.agents.config.schema import (
    BY_NAME,
    IN_PLACE,
    AgentsFile,
    AgentTable,
    CodeLimitsTable,
    McpTable,
    ModelOptions,
    ModelTable,
    WorkspaceTable,
)
from smolsessions.core.errors import StartError
from smolsessions.core.policies import TAGS

Place = tuple[int | str, ...]

_TABLES: Mapping[Place, type[BaseModel]] = {
    (): AgentsFile,
    ("models", "*"): ModelTable,
    ("models", "*", "options"): ModelOptions,
    ("agents", "*"): AgentTable,
    ("agents", "*", "model"): ModelTable,
    ("agents", "*", "model", "options"): ModelOptions,
    ("agents", "*", "code_limits"): CodeLimitsTable,
    ("agents", "*", "workspace"): WorkspaceTable,
    ("mcp", "*"): McpTable,
}
_SENTENCES = {
    "missing": "is missing; add it",
    "string_type": "is no text; write one in quotes",
    "bool_type": "is neither true nor false; write one of them without quotes",
    "int_type": "is no whole number; write one without quotes",
    "int_from_float": "is no whole number; write one",
    "float_type": "is no number; write one without quotes",
    "tuple_type": 'is no list; write ["…", "…"]',
    "list_type": 'is no list; write ["…", "…"]',
    "dict_type": "is no table; write {NAME = …}",
    "model_type": "is no table; write {key = …}",
    "model_attributes_type": "is no table; write {key = …}",
    "string_too_short": "is empty; write a text, or remove it",
    "string_too_long": "is too long; shorten it",
}
_VARIABLE = "is no name of an environment variable; write the name of the variable that holds the key, not the key"
_SENTENCES_OF_KEYS = {
    "api_key_env": _VARIABLE,
    "executor_key_env": _VARIABLE,
    "authorized_imports": "is no name of a module; write one such as math or numpy.*",
    "env": _VARIABLE,
    "headers": _VARIABLE,
    "base": "is no address; it begins with http:// or https://",
    "url": "is no address; it begins with http:// or https://",
    "factory": 'is no import string; write "module:factory"',
    "tools": 'is no import string; write "module:name", or "smolagents:NAME"',
    "approve": 'is neither a list of tools nor an import string; write ["send_*", …], or "module:function"',
    "hub": 'is no repository; write "owner/name"',
    "revision": "is no commit; write its 40 hexadecimal digits, as a branch or tag can change",
    "agents": "is no name; use 1 to 64 letters, digits, - and _",
    "models": "is no name; use 1 to 64 letters, digits, - and _",
    "mcp": "is no name; use 1 to 64 letters, digits, - and _",
    "model": "is no name; use 1 to 64 letters, digits, - and _",
    "fallbacks": "is no name; use 1 to 64 letters, digits, - and _",
    "managed_agents": "is no name; use 1 to 64 letters, digits, - and _",
}
_CODE_BLOCK_TAGS = 'is neither "markdown" nor two texts; write "markdown" or ["<code>", "</code>"]'
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_TABLE_DEPTH = 2
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HARMLESS = re.compile(r"[A-Za-z][A-Za-z_-]{0,39}")
"""Names of table keys that a sentence may repeat. Keys of providers have digits, and do not match."""


class PlacedStartError(StartError, code="cannot_start"):
    """A start error that names its file, agent and key."""


def placed(error: StartError, name: str, factory: object) -> StartError:
    """Return the error with the place of its agent: in agents.toml, if the factory is of this file."""
    place = getattr(factory, "place", "") or f"the agent {name!r}:"
    if isinstance(error, PlacedStartError) or (place.endswith(":") and name in error.message):
        return error
    sentence = re.sub(f"^the agent {name!r}:? | of agent {name!r}", "", error.message)
    return PlacedStartError(f"{place} {sentence}")


def mistakes_in(error: ValidationError) -> list[str]:
    """Return a sentence for each mistake, in the order of the file, without repeats."""
    problems = error.errors(include_url=False, include_input=False)
    return list(dict.fromkeys(_sentence(problem) for problem in problems))


def sentence_at(place: Place, text: str) -> str:
    """Return `[agents.shop] key: text` for the place ("agents", "shop", "key")."""
    table, keys = place[:_TABLE_DEPTH], place[_TABLE_DEPTH:]
    head = f"[{'.'.join(_shown(part, _NAME) for part in table)}]" if place else ""
    return " ".join(part for part in (head, _path(keys), text) if part)


def _sentence(problem: ErrorDetails) -> str:
    place = tuple(part for part in problem["loc"] if part not in {*TAGS, BY_NAME, IN_PLACE})
    if problem["type"] == "extra_forbidden":
        return sentence_at(place[:-1], _unknown(place))
    if "code_block_tags" in place:
        return sentence_at(place[: place.index("code_block_tags") + 1], _CODE_BLOCK_TAGS)
    if place and place[-1] == "[key]":
        place = place[:-1]
    return sentence_at(place, _text(problem, place))


def _text(problem: ErrorDetails, place: Place) -> str:
    kind: str = problem["type"]
    key = next((part for part in reversed(place) if part in _SENTENCES_OF_KEYS), "")
    if kind == "value_error":
        return problem["msg"].removeprefix("Value error, ")
    if kind == "string_pattern_mismatch" and key:
        return _SENTENCES_OF_KEYS[str(key)]
    if kind == "string_too_long" and key in {"api_key_env", "executor_key_env", "env", "headers"}:
        return _VARIABLE
    if kind == "literal_error":
        return f"is none of {problem['ctx']['expected'].replace(' or ', ', ')}; write one of them".replace("'", '"')
    if kind in {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}:
        return f"is out of range; write {_range(problem, place)}"
    sentence = problem["msg"].replace("Input should", "should")
    return _SENTENCES.get(kind, f"{sentence}; mend it")


def _range(problem: ErrorDetails, place: Place) -> str:
    """Return the numbers that a key takes, from the schema of its table. A rule of a policy tells one bound alone."""
    bounds = {_BOUNDS[name]: bound for name, bound in problem["ctx"].items() if name in _BOUNDS}
    if table := _table(place[:-1]):
        schema = table.model_json_schema()["properties"][str(place[-1])]
        for each in (schema, *schema.get("anyOf", ())):
            bounds |= {name: bound for name, bound in each.items() if name in _BOUNDS.values()}
    low, high = bounds.get("minimum"), bounds.get("maximum", bounds.get("exclusiveMaximum"))
    if "exclusiveMinimum" in bounds:
        words = f"more than {bounds['exclusiveMinimum']:g}"
        return words if high is None else f"{words}, up to {high}"
    if low is None or high is None:
        return f"{low:g} or more" if high is None else f"{high:g} or less"
    return f"{low:g} to {high:g}"


def _unknown(place: Place) -> str:
    name, table = str(place[-1]), _table(place[:-1])
    shown = _shown(name, _HARMLESS)
    if table is None:
        return f"{shown} is no key here; remove it"
    known = list(table.model_fields)
    near = difflib.get_close_matches(name, known, 1)
    return f"{shown} is no key here; " + (f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}")


def _table(place: Place) -> type[BaseModel] | None:
    return _TABLES.get(tuple("*" if number == 1 else part for number, part in enumerate(place)))


def _path(keys: Place) -> str:
    text = ""
    for key in keys:
        if isinstance(key, int):
            text += f", entry {key + 1}"
        else:
            text += f"{'.' if text else ''}{_shown(key, _HARMLESS)}"
    return f"{text}:" if text else ""


def _shown(part: int | str, pattern: re.Pattern[str]) -> str:
    return str(part) if pattern.fullmatch(str(part)) else "…"
