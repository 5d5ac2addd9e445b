"""Settings as flags of commands. A command sees them in its environment, as its processes do."""

from __future__ import annotations

import functools
import inspect
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from dotenv import dotenv_values

from smolsessions.core.errors import StartError
from smolsessions.settings import OF_CLIENTS, PREFIX, Settings, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable

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
Agents = Annotated[
    list[str] | None,
    typer.Option("--agent", metavar="NAME=MODULE:FACTORY", help="An agent with a name of its own. May be repeated."),
]


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command with an option for each setting, and with agents as arguments.

    Parameters named `settings` and `places` (of settings, for messages) are filled in. A command that has a parameter
    `agent` takes no other arguments.
    """
    flags = {name: _flag(name, field) for name, field in Settings.model_fields.items()}
    own = inspect.signature(command, eval_str=True).parameters
    more = {"agents_named": Agents} if "agent" in own else {"targets": Targets, "agents_named": Agents}

    @functools.wraps(command)
    def with_environment(context: typer.Context, **given: Any) -> None:
        targets, named = given.pop("targets", None) or (), given.pop("agents_named") or ()
        chosen = {name: value for name in flags if (value := given.pop(name)) is not None}
        places: dict[str, str] = {**(context.obj or {}), **{name: _long(name) for name in chosen}}
        os.environ.update({_variable(name): _text(value) for name, value in chosen.items()})
        add_agents([*map(spec_of, targets), *named])
        if "settings" in own:
            given["settings"] = read_settings(places)
        if "places" in own:
            given["places"] = places
        command(**given)

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
        *(each for each in own.values() if each.name not in {"settings", "places"}),
        *(inspect.Parameter(name, kind, default=None, annotation=type_) for name, type_ in (more | flags).items()),
    ]
    with_environment.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_environment.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_environment


def add_agents(specs: list[str]) -> None:
    """Put agents before those that the environment names."""
    if others := os.environ.get(_variable("agents")):
        specs = [*specs, others]
    if specs:
        os.environ[_variable("agents")] = ",".join(specs)


def read_files() -> dict[str, str]:
    """Set the variables of .env and smolsessions.toml that the environment does not have, or has empty.

    Returns the place of each setting that came from a file.
    """
    places = {}
    for variable, value in dotenv_values(ENV).items():
        if value and not os.environ.get(variable):
            os.environ[variable] = value
            places[variable.removeprefix(PREFIX).lower()] = f"{ENV}: {variable}"
    for name, value in _toml().items():
        if name not in Settings.model_fields and name.upper() not in OF_CLIENTS:
            raise StartError(f"{TOML}: {name} is no setting; `smolsessions settings` lists all settings")
        if not os.environ.get(_variable(name)):
            os.environ[_variable(name)] = _text(value)
            places[name] = f"{TOML}: {name}"
    return places


def _toml() -> dict[str, Any]:
    try:
        return tomllib.loads(TOML.read_text("utf-8")) if TOML.is_file() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartError(f"{TOML} is no TOML: {error}") from None


def _flag(name: str, field: Any) -> Any:
    kind = bool if field.annotation is bool else str
    flags = [_long(name), *_SHORTER.get(name, ())]
    if kind is bool:
        flags = [f"{flags[0]}/--no-{flags[0][2:]}"]
    default = f" (default: {field.default})" if kind is str and field.default not in {None, ""} else ""
    option = typer.Option(
        *flags,
        help=f"{field.description}{default}",
        show_default=False,
        rich_help_panel="Settings",
    )
    return Annotated[kind | None, option]


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


def spec_of(target: str) -> str:
    """Check `module:factory`. The factory's decorator names the agent, or else the function does."""
    if "=" in target:
        return target
    _, colon, factory = target.rpartition(":")
    if not colon or not factory:
        raise StartError(f"{target!r} names no factory; write it as my_agents:make_shop or my_agents.py:make_shop")
    return target
