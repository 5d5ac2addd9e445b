"""Commands `agents check`, `agents show` and `agents schema`. None of them calls a model or a tool."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any

import typer
from pydantic_core import to_jsonable_python

from smolsessions.cli.flags import Named, add_agent, with_settings
from smolsessions.cli.remote import out
from smolsessions.core.errors import StartError
from smolsessions.core.policies import policy_data
from smolsessions.settings import read_settings

agents = typer.Typer(no_args_is_help=True, help="Check and show the agents of this configuration.")
Checked = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="An agent, or `my_agents:make_shop` and all others.")
]
Shown = Annotated[str, typer.Argument(metavar="NAME", help="The agent, or `my_agents:make_shop`.")]


@agents.command("check")
@with_settings
def check_agents(context: typer.Context, agent: Checked = None, *, named: Named = None) -> None:
    """Make each agent as a start does, and call nothing. Status 1 if one fails."""
    has_failed = False
    with _loaded(context, agent, named) as (names, make_catalog):
        for name in names:
            try:
                (info,) = make_catalog(name).infos.values()
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
def show_agent(context: typer.Context, agent: Shown, *, named: Named = None) -> None:
    """Print an agent's model, tools, limits, fingerprint and prompts, and call nothing."""
    with _loaded(context, agent, named) as (names, make_catalog):
        catalog = make_catalog(names[0])
        (info,) = catalog.infos.values()
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
        for name, value in facts.items():
            if value not in {None, ""}:
                typer.echo(f"{name}: {value}")
        typer.echo("tools:" if info.tools else "tools: none")
        for tool in info.tools:
            required = set(tool.parameters.get("required", ()))
            words = [word if word in required else f"{word}?" for word in tool.parameters.get("properties", {})]
            typer.echo(f"  {tool.name}({', '.join(words)}): {' '.join(tool.description.split())}")
        for called, prompt in catalog.system_prompts(info.version.name).items():
            typer.echo(f"\nsystem prompt{f' of {called}' if called else ''}:\n{prompt}")


@agents.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of agents.toml, for editors."""
    from smolsessions.agents.config.schema import schema_text  # noqa: PLC0415 - other commands load no agents

    typer.echo(schema_text(), nl=False)


@contextmanager
def _loaded(
    context: typer.Context, agent: str | None, named: list[str] | None
) -> Iterator[tuple[list[str], Callable[[str], Any]]]:
    """Yield the names of the agents that `agent` means (None: all), and a function that makes the `Catalog` of one.

    The function raises `StartError` if the agent would be unavailable.
    """
    from smolsessions.wiring import catalog_of, load_agents  # noqa: PLC0415 - other commands load no server

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    agent = add_agent(agent, named)
    settings = read_settings(context.obj)
    loaded = load_agents(settings)

    def make_catalog(name: str) -> Any:
        catalog = catalog_of(settings, loaded.only(name))
        for sentence in catalog.unavailable.values():
            raise StartError(sentence)
        return catalog

    loaded.tool_servers.tries_once = True
    with closing(loaded.tool_servers):
        names = [name for name, _ in loaded.factories]
        chosen = [name for name in names if agent in {None, name}]
        if not chosen:
            raise StartError(f"no agent has that name; there are: {', '.join(names) or 'none'}")
        yield chosen, make_catalog
