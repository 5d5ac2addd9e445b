"""Checks between the tables of agents.toml: names that they use of each other, and parts that do not go together."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter

from smolsessions.agents.config.mistakes import Place, sentence_at
from smolsessions.agents.config.schema import REMOTE_EXECUTORS, AgentsFile, AgentTable, ModelTable

_NO_STRUCTURED_OUTPUT = frozenset({"bedrock", "huggingface", "transformers"})
_STRUCTURED_OUTPUT_BEHIND_HUGGINGFACE = frozenset({"cerebras", "fireworks-ai"})


def wrong_references(file: AgentsFile) -> Iterator[str]:
    """Yield a sentence for each mistake."""
    for name, table in file.models.items():
        yield from _wrong_fallbacks(file, ("models", name), table, own=name)
    for name, agent in file.agents.items():
        yield from _wrong_names(file, name, agent)
        yield from _wrong_managed_agents(file, name, agent)
        yield from _out_of_reach(name, agent)
    yield from _cycles(file)


def unsuitable(model: ModelTable, *, writes_code: bool, structured: bool) -> str | None:
    """Return why an agent of this kind cannot work on a model, with the mend."""
    if model.provider == "bedrock" and not writes_code:
        return 'provider = "bedrock" calls no tools; make it kind = "code", or use provider = "litellm"'
    behind = model.options.inference_provider
    if structured and model.provider in _NO_STRUCTURED_OUTPUT and behind not in _STRUCTURED_OUTPUT_BEHIND_HUGGINGFACE:
        return f'provider = "{model.provider}" has no structured output; remove structured_output = true'
    return None


def models_of(file: AgentsFile, agent: AgentTable) -> list[ModelTable]:
    """Return the model of an agent and its fallbacks, in their order."""
    return [table for _, table in placed_models(file, "", agent)]


def placed_models(file: AgentsFile, name: str, agent: AgentTable) -> list[tuple[Place, ModelTable]]:
    """Return the model of an agent and its fallbacks, in their order, each with the place of its table."""
    by_name = isinstance(agent.model, str)
    model = file.models.get(agent.model) if isinstance(agent.model, str) else agent.model
    if model is None:
        return []
    place: Place = ("models", str(agent.model)) if by_name else ("agents", name, "model")
    fallbacks = [each for each in model.fallbacks if each in file.models]
    return [(place, model), *((("models", each), file.models[each]) for each in fallbacks)]


def _wrong_names(file: AgentsFile, name: str, agent: AgentTable) -> Iterator[str]:
    place = ("agents", name)
    if isinstance(agent.model, str):
        yield from _unknown((*place, "model"), [agent.model], "models", file.models)
    elif agent.model:
        yield from _wrong_fallbacks(file, (*place, "model"), agent.model, own="")
    yield from _unknown((*place, "mcp"), agent.mcp, "mcp", file.mcp)
    for model in models_of(file, agent) if agent.kind else ():
        if sentence := unsuitable(model, writes_code=agent.kind == "code", structured=agent.structured_output):
            yield sentence_at((*place, "model"), sentence)


def _wrong_fallbacks(file: AgentsFile, place: Place, table: ModelTable, own: str) -> Iterator[str]:
    place = (*place, "fallbacks")
    yield from _unknown(place, table.fallbacks, "models", file.models)
    for name in table.fallbacks:
        if name == own or table.fallbacks.count(name) > 1:
            yield sentence_at(place, f"{name} is {'the model itself' if name == own else 'named twice'}; remove it")
            return
        if name in file.models and file.models[name].fallbacks:
            yield sentence_at(place, f"{name} has fallbacks itself; list all in one place")


def _wrong_managed_agents(file: AgentsFile, name: str, agent: AgentTable) -> Iterator[str]:
    place = ("agents", name, "managed_agents")
    yield from _unknown(place, agent.managed_agents, "agents", file.agents)
    if len(set(agent.managed_agents)) < len(agent.managed_agents):
        yield sentence_at(place, "names an agent twice; remove one")
    for each in dict.fromkeys(name for name in agent.managed_agents if name in file.agents):
        if not each.isidentifier() or keyword.iskeyword(each):
            yield sentence_at(place, f"{each} is no Python name, as models call it; rename it with letters and _")
        elif file.agents[each].kind and not file.agents[each].description:
            yield sentence_at(("agents", each, "description"), f"is missing, and {name} manages this agent; add it")


def _out_of_reach(name: str, agent: AgentTable) -> Iterator[str]:
    """Yield a sentence for each part of an agent that its remote executor cannot reach."""
    if agent.executor not in REMOTE_EXECUTORS:
        return
    for key, what in {"managed_agents": "agents", "mcp": "MCP servers", "workspace": "a workspace"}.items():
        if getattr(agent, key):
            sentence = f'executor = "{agent.executor}" cannot call {what}; use executor = "child"'
            yield sentence_at(("agents", name, key), sentence)


def _unknown(place: Place, names: Iterable[str], kind: str, known: Iterable[str]) -> Iterator[str]:
    if any(name not in known for name in names):
        there = ", ".join(known) or "none"
        yield sentence_at(place, f"names no [{kind}.NAME] of this file; there are: {there}")


def _cycles(file: AgentsFile) -> Iterator[str]:
    graph = {
        name: [each for each in agent.managed_agents if each in file.agents] for name, agent in file.agents.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1][::-1]
        sentence = f"leads back to itself ({' → '.join(cycle)}); remove one of them"
        yield sentence_at(("agents", cycle[0], "managed_agents"), sentence)
