"""Sentences about mistakes in agents.toml and in options: place, key and what to do, without the value."""

from __future__ import annotations

import difflib
import keyword
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from pydantic import ValidationError

from smolsessions.agent_options import CodeLimitValues, Options, WorkspaceOptions
from smolsessions.agents.config import schema
from smolsessions.core.errors import StartError
from smolsessions.core.policies import TAGS

Place = tuple[int | str, ...]

_KEYS: Mapping[Place, Collection[str]] = {
    (): schema.AgentsFile.model_fields,
    ("models", "*"): schema.ModelTable.model_fields,
    ("models", "*", "options"): schema.ModelOptions.model_fields,
    ("agents", "*"): schema.AgentTable.model_fields,
    ("agents", "*", "model"): schema.ModelTable.model_fields,
    ("agents", "*", "model", "options"): schema.ModelOptions.model_fields,
    ("agents", "*", "code_limits"): CodeLimitValues.__annotations__,
    ("agents", "*", "workspace"): WorkspaceOptions.model_fields,
    ("mcp", "*"): schema.McpTable.model_fields,
    ("options", "*"): Options.model_fields,
    ("options", "*", "code_limits"): CodeLimitValues.__annotations__,
    ("options", "*", "workspace"): WorkspaceOptions.model_fields,
}
"""Keys of each table. `options` are those that code sets."""
_SENTENCES = {
    "missing": "is missing; add it",
    **dict.fromkeys(("tuple_type", "list_type"), 'is no list; write ["…", "…"]'),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "is no table; write {key = …}"),
}
"""Sentences in place of pydantic's, which name types of Python."""
_VARIABLE = "is no name of an environment variable; write the name of the variable that holds the key, not the key"
_NAME_OF_TABLE = "is no name; use 1 to 64 letters, digits, - and _"
_ADDRESS = "is no address; it begins with http:// or https://"
_SENTENCES_OF_KEYS = {
    **dict.fromkeys(("api_key_env", "executor_key_env", "env", "headers"), _VARIABLE),
    **dict.fromkeys(("agents", "models", "mcp", "model", "fallbacks", "managed_agents"), _NAME_OF_TABLE),
    **dict.fromkeys(("base", "url"), _ADDRESS),
    "authorized_imports": "is no name of a module; write one such as math or numpy.*",
    "factory": 'is no import string; write "module:factory"',
    "tools": 'is no import string; write "module:name", or "smolagents:NAME"',
    "approve": 'is neither a list of tools nor an import string; write ["send_*", …], or "module:function"',
    "hub": 'is no repository; write "owner/name"',
    "revision": "is no commit; write its 40 hexadecimal digits, as a branch or tag can change",
}
_CODE_BLOCK_TAGS = (
    'is neither "markdown" nor two texts without characters of regular expressions; write "markdown" or '
    '["<code>", "</code>"]'
)
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


def mistakes_in(error: ValidationError, table: Place = ()) -> list[str]:
    """Return a sentence for each mistake, in the order of the file, without repeats. `table` is the checked table."""
    problems = error.errors(include_url=False, include_input=False)
    sentences = []
    for problem in problems:
        place = (
            *table,
            *(part for part in problem["loc"] if part not in {*TAGS, schema.BY_NAME, schema.IN_PLACE, "[key]"}),
        )
        kind = problem["type"]
        key = next((str(part) for part in reversed(place) if part in _SENTENCES_OF_KEYS), "")
        if kind == "extra_forbidden":
            place, name = place[:-1], str(place[-1])
            known = keys_at(place)
            near = difflib.get_close_matches(name, known, 1)
            advice = f"use one of {', '.join(known)}" if known else "remove it"
            text = f"{_shown(name, _HARMLESS)} is no key here; {f'did you mean {near[0]}?' if near else advice}"
        elif "code_block_tags" in place:
            place, text = place[: place.index("code_block_tags") + 1], _CODE_BLOCK_TAGS
        elif kind == "value_error":
            text = problem["msg"].removeprefix("Value error, ")
        elif (kind == "string_pattern_mismatch" and key) or (
            kind == "string_too_long" and _SENTENCES_OF_KEYS.get(key) == _VARIABLE
        ):
            text = _SENTENCES_OF_KEYS[key]
        else:
            text = _SENTENCES.get(kind, re.sub("^(Input|String) should", "should", problem["msg"]))
        sentences.append(sentence_at(place, text))
    return list(dict.fromkeys(sentences))


def sentence_at(place: Place, text: str) -> str:
    """Return `[agents.shop] key: text` for the place ("agents", "shop", "key")."""
    table, keys = place[:_TABLE_DEPTH], place[_TABLE_DEPTH:]
    head = f"[{'.'.join(_shown(part, _NAME) for part in table)}]" if place else ""
    if table[:1] == ("options",):
        head = f"the agent {table[1]!r}:"
    path = ""
    for key in keys:
        if isinstance(key, int):
            path += f", entry {key + 1}"
        else:
            path += f"{'.' if path else ''}{_shown(key, _HARMLESS)}"
    return " ".join(part for part in (head, path and f"{path}:", text) if part)


def keys_at(table: Place) -> Collection[str]:
    """Return the keys that the table at a place may have. A rule of a policy has none here."""
    return _KEYS.get(tuple("*" if number == 1 else part for number, part in enumerate(table)), ())


def _shown(part: int | str, pattern: re.Pattern[str]) -> str:
    return str(part) if pattern.fullmatch(str(part)) else "…"


def wrong_references(file: schema.AgentsFile) -> Iterator[str]:
    """Yield a sentence for each name of a table that is none, and for parts that do not go together."""
    for name, table in file.models.items():
        yield from _wrong_fallbacks(file, ("models", name), table, own=name)
    for name, agent in file.agents.items():
        place = ("agents", name)
        if isinstance(agent.model, str):
            yield from _unknown_names((*place, "model"), [agent.model], "models", file.models)
        elif agent.model:
            yield from _wrong_fallbacks(file, (*place, "model"), agent.model, own="")
        yield from _unknown_names((*place, "mcp"), agent.mcp, "mcp", file.mcp)
        within = (*place, "managed_agents")
        yield from _unknown_names(within, agent.managed_agents, "agents", file.agents)
        if len(set(agent.managed_agents)) < len(agent.managed_agents):
            yield sentence_at(within, "names an agent twice; remove one")
        for each in dict.fromkeys(one for one in agent.managed_agents if one in file.agents):
            if not each.isidentifier() or keyword.iskeyword(each):
                yield sentence_at(within, f"{each} is no Python name, as models call it; rename it with letters and _")
            elif file.agents[each].kind and not file.agents[each].description:
                yield sentence_at(("agents", each, "description"), f"is missing, and {name} manages this agent; add it")
        unreachable = {"managed_agents": "agents", "mcp": "MCP servers", "workspace": "a workspace"}
        for key, what in unreachable.items() if agent.executor in schema.REMOTE_EXECUTORS else ():
            if getattr(agent, key):
                sentence = f'executor = "{agent.executor}" cannot call {what}; use executor = "child"'
                yield sentence_at((*place, key), sentence)
    managed = {name: [one for one in agent.managed_agents if one in file.agents] for name, agent in file.agents.items()}
    try:
        TopologicalSorter(managed).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1][::-1]
        sentence = f"leads back to itself ({' → '.join(cycle)}); remove one of them"
        yield sentence_at(("agents", cycle[0], "managed_agents"), sentence)


def _wrong_fallbacks(file: schema.AgentsFile, place: Place, table: schema.ModelTable, own: str) -> Iterator[str]:
    place = (*place, "fallbacks")
    yield from _unknown_names(place, table.fallbacks, "models", file.models)
    for name in table.fallbacks:
        if name == own or table.fallbacks.count(name) > 1:
            yield sentence_at(place, f"{name} is {'the model itself' if name == own else 'named twice'}; remove it")
            return
        if name in file.models and file.models[name].fallbacks:
            yield sentence_at(place, f"{name} has fallbacks itself; list all in one place")


def _unknown_names(place: Place, names: Iterable[str], kind: str, known: Iterable[str]) -> Iterator[str]:
    if any(name not in known for name in names):
        there = ", ".join(known) or "none"
        yield sentence_at(place, f"names no [{kind}.NAME] of this file; there are: {there}")
