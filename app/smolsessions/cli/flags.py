"""Settings as flags of commands. A command sees them in its environment, as its processes do."""

from __future__ import annotations

import difflib
import functools
import inspect
import io
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from dotenv import dotenv_values

from smolsessions.core.errors import StartError
from smolsessions.core.files import read_text
from smolsessions.settings import OF_CLIENTS, PREFIX, Settings

ENV = Path(".env")
TOML = Path("smolsessions.toml")
_SHORTER = {"model_id": ("--model",)}
Targets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODULE:FACTORY]...",
        help="Your agents: `my_agents:make_shop` or `my_agents.py:make_shop` serves the agent `shop`.",
    ),
]
Named = Annotated[
    list[str] | None,
    typer.Option("--agent", metavar="NAME=MODULE:FACTORY", help="An agent with a name of its own. May be repeated."),
]


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command with an option for each setting. Its environment gets them, and `context.obj` their places."""
    own = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def with_environment(context: typer.Context, **given: Any) -> None:
        places = places_of(context)
        for name in Settings.model_fields:
            if (value := given.pop(name)) is not None:
                os.environ[_variable(name)], places[name] = _text(value), _long(name)
        context.obj = places
        command(context, **given)

    parameters = list(own.parameters.values())
    for name, field in Settings.model_fields.items():
        kind = bool if field.annotation in {bool, bool | None} else str
        words = [f"{_long(name)}/--no-{_long(name)[2:]}" if kind is bool else _long(name), *_SHORTER.get(name, ())]
        default = f" (default: {field.default})" if kind is str and field.default not in {None, ""} else ""
        text = f"{field.description}{default}"
        option = typer.Option(*words, help=text, show_default=False, rich_help_panel="Settings")
        by_name = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, by_name, default=None, annotation=Annotated[kind | None, option]))
    with_environment.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
    with_environment.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_environment


def add_agents(targets: list[str] | None, named: list[str] | None) -> None:
    """Put agents before those that the environment names. Raises `StartError` for a target that names no factory.

    The decorator of a target's factory names the agent, or else the function does.
    """
    for target in targets or ():
        _, colon, factory = target.rpartition(":")
        if "=" not in target and not (colon and factory):
            raise StartError(f"{target!r} names no factory; write it as my_agents:make_shop or my_agents.py:make_shop")
    specs = [*(targets or ()), *(named or ()), os.environ.get(_variable("agents"), "")]
    os.environ[_variable("agents")] = ",".join(filter(None, specs))


def add_agent(agent: str | None, named: list[str] | None) -> str | None:
    """Put an agent that is written as `module:factory` first. Return the agent's name, or None for the first agent."""
    if not agent or ":" not in agent:
        add_agents(None, named)
        return agent
    add_agents([agent], named)
    os.environ.pop(_variable("default_agent"), None)
    name, equals, _ = agent.partition("=")
    return name if equals else None


def read_files() -> dict[str, str]:
    """Set the variables of .env and smolsessions.toml that the environment does not have, or has empty.

    Returns the place of each setting that came from a file. Raises `StartError` if a file has a mistake.
    """
    text = read_text(ENV, str(ENV)) if ENV.is_file() else ""
    variables = dotenv_values(stream=io.StringIO(text))
    found = [(variable, value, f"{ENV}: {variable}") for variable, value in variables.items() if value]
    text = read_text(TOML, str(TOML)) if TOML.is_file() else ""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StartError(f"{TOML} is no TOML: {error}; write a setting as `port = 8000`") from None
    for name, value in table.items():
        if name not in Settings.model_fields and name.upper() not in OF_CLIENTS:
            at = re.search(rf"^\W*{re.escape(name)}\b", text, re.MULTILINE)
            line = f", line {text.count(chr(10), 0, at.end()) + 1}" if at else ""
            near = difflib.get_close_matches(name, Settings.model_fields, 1)
            advice = f"did you mean {near[0]}?" if near else "`smolsessions settings` lists all settings"
            raise StartError(f"{TOML}{line}: {name} is no setting; {advice}")
        found.append((_variable(name), _text(value), f"{TOML}: {name}"))
    places = {}
    for variable, value, place in found:
        if os.environ.get(variable):
            continue
        if "\0" in value:
            raise StartError(f"{place} holds a NUL character; remove it")
        os.environ[variable] = value
        places[variable.removeprefix(PREFIX).lower()] = place
    return places


def places_of(context: typer.Context) -> dict[str, str]:
    """Return the places of settings that came from files. Raises the mistake of a file."""
    if isinstance(context.obj, StartError):
        raise context.obj
    return dict(context.obj or {})


def _long(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, dict):
        return ",".join(f"{name}={each}" for name, each in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
