"""Commands `agents check`, `agents show` and `agents schema`. None of them calls a model or a tool."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated

import typer
from pydantic_core import to_jsonable_python

from smolsessions.agents.catalog import Catalog
from smolsessions.cli.flags import with_settings
from smolsessions.cli.remote import out
from smolsessions.core.errors import StartError
from smolsessions.core.policies import policy_data
from smolsessions.core.records import AgentInfo, ToolInfo
from smolsessions.settings import Settings
from smolsessions.wiring import LoadedAgents

agents = typer.Typer(no_args_is_help=True, help="Check and show the agents of this configuration.")
Checked = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="An agent, or `my_agents:make_shop` and all others."),
]
Shown = Annotated[str, typer.Argument(metavar="NAME", help="The agent, or `my_agents:make_shop`.")]


@agents.command("check")
@with_settings
def check_agents(agent: Checked = None, *, settings: Settings) -> None:
    """Make each agent as a start does, and call nothing. Status 1 if one needs a mend."""
    from smolsessions.wiring import catalog_of, load_agents  # noqa: PLC0415 - other commands load no server

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    loaded = load_agents(settings)
    loaded.tool_servers.try_once()
    has_failed = False
    with closing(loaded.tool_servers):
        for name in _chosen(loaded, agent):
            try:
                info = _served(catalog_of(settings, loaded.only(name)))
            except StartError as error:
                has_failed = True
                out.print(f"{name}: FAIL  {error.message}", style="red", markup=False, soft_wrap=True)
            else:
                tools = ", ".join(tool.name for tool in info.tools) or "no tools"
                line = f"{name}: ok    {info.version.kind}, {tools}, fingerprint {info.version.fingerprint}"
                out.print(line, markup=False, soft_wrap=True)
    raise typer.Exit(int(has_failed))


@agents.command("show")
@with_settings
def show_agent(agent: Shown, *, settings: Settings) -> None:
    """Print an agent's model, tools, limits, fingerprint and prompts, and call nothing."""
    from smolsessions.wiring import catalog_of, load_agents  # noqa: PLC0415 - other commands load no server

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    loaded = load_agents(settings)
    loaded.tool_servers.try_once()
    name, *_ = _chosen(loaded, agent)
    with closing(loaded.tool_servers):
        catalog = catalog_of(settings, loaded.only(name))
        info = _served(catalog)
        for line in _lines(info):
            typer.echo(line)
        for path, prompt in catalog.system_prompts(info.version.name).items():
            typer.echo(f"\nsystem prompt{f' of {path}' if path else ''}:\n{prompt}")


@agents.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of agents.toml, for editors."""
    from smolsessions.agents.config.json_schema import schema_text  # noqa: PLC0415 - other commands load no agents

    typer.echo(schema_text(), nl=False)


def _chosen(loaded: LoadedAgents, name: str | None) -> list[str]:
    names = [each for each, _ in loaded.factories]
    chosen = [each for each in names if name in {None, each}]
    if not chosen:
        raise StartError(f"no agent has that name; there are: {', '.join(names) or 'none'}")
    return chosen


def _served(catalog: Catalog) -> AgentInfo:
    """Return the only agent of a catalog. Raises `StartError` if it would be unavailable."""
    for sentence in catalog.unavailable.values():
        raise StartError(sentence)
    (info,) = catalog.infos.values()
    return info


def _lines(info: AgentInfo) -> Iterator[str]:
    version = to_jsonable_python(info.version)
    model = version.pop("model", None)
    facts = {
        **version,
        "model": " ".join(str(part) for part in model.values() if part) if model else None,
        "description": info.description,
        "max_steps": info.max_steps,
        "deadline_s": info.deadline_s,
        "code_runs_in": info.code_runs_in,
        "memory policy": json.dumps(policy_data(info.policy)) if info.policy else None,
        "approve": "by a function" if info.approve is None else ", ".join(info.approve),
        "ask_user": "true" if info.ask_user else None,
        "examples": ", ".join(info.examples),
        "limitations": " ".join(info.limitations),
    }
    yield from (f"{name}: {value}" for name, value in facts.items() if value not in {None, ""})
    yield "tools:" if info.tools else "tools: none"
    yield from (f"  {_tool(tool)}" for tool in info.tools)


def _tool(tool: ToolInfo) -> str:
    required = set(tool.parameters.get("required", ()))
    names = [name if name in required else f"{name}?" for name in tool.parameters.get("properties", {})]
    return f"{tool.name}({', '.join(names)}): {' '.join(tool.description.split())}"
