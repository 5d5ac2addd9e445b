"""Settings as flags of commands. A command sees them in its environment, as its processes do."""

from __future__ import annotations

import functools
import inspect
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from dotenv import load_dotenv

from smolsessions.core.errors import StartError
from smolsessions.settings import PREFIX, Settings

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """Decorate a command with an option for each setting, and with agents as arguments."""
    flags = {name: _flag(name, field) for name, field in Settings.model_fields.items()}

    @functools.wraps(command)
    def with_environment(**given: Any) -> None:
        targets, agents = given.pop("targets") or (), given.pop("agent") or ()
        chosen = {name: given.pop(name) for name in flags}
        read_files()
        os.environ.update({_variable(name): _text(value) for name, value in chosen.items() if value is not None})
        if specs := [*map(_spec, targets), *agents]:
            others = os.environ.get(_variable("agents"), "")
            os.environ[_variable("agents")] = ",".join([*specs, *([others] if others else [])])
        command(**given)

    own = list(inspect.signature(command, eval_str=True).parameters.values())
    kind = inspect.Parameter.KEYWORD_ONLY
    more = [
        inspect.Parameter("targets", kind, default=None, annotation=Targets),
        inspect.Parameter("agent", kind, default=None, annotation=Agents),
        *(inspect.Parameter(name, kind, default=None, annotation=flag) for name, flag in flags.items()),
    ]
    parameters = [*own, *more]
    with_environment.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_environment.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_environment


def read_files() -> None:
    """Set the variables of .env and smolsessions.toml that the environment does not have."""
    load_dotenv(".env")
    if not TOML.is_file():
        return
    try:
        found = tomllib.loads(TOML.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartError(f"{TOML} is no TOML: {error}") from None
    for name, value in found.items():
        if name not in Settings.model_fields:
            raise StartError(f"{TOML}: {name} is no setting; `smolsessions settings` lists all settings")
        os.environ.setdefault(_variable(name), _text(value))


def _flag(name: str, field: Any) -> Any:
    kind = bool if field.annotation is bool else str
    flags = [f"--{name.replace('_', '-')}", *_SHORTER.get(name, ())]
    if kind is bool:
        flags = [f"{flags[0]}/--no-{flags[0][2:]}"]
    default = "" if field.default in {None, ""} else f" [default: {field.default}]"
    option = typer.Option(
        *flags,
        help=f"{field.description}{default}",
        envvar=_variable(name),
        show_default=False,
        rich_help_panel="Settings",
    )
    return Annotated[kind | None, option]


def _variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, dict):
        return ",".join(f"{name}={each}" for name, each in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _spec(target: str) -> str:
    """Return `name=module:factory` of `module:factory`. The name is the factory's without `make_`."""
    if "=" in target:
        return target
    _, colon, factory = target.rpartition(":")
    if not colon or not factory:
        raise StartError(f"{target!r} names no factory; write it as my_agents:make_shop or my_agents.py:make_shop")
    return f"{re.sub('^(make|create|build|get)_', '', factory)}={target}"
