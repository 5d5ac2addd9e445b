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
from smolsessions.settings import OF_CLIENTS, PREFIX, Settings, read_settings

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

    Parameters named `settings`, `places` (of settings, for messages) and `named` (agents of flags) are filled in. A
    command that has a parameter `agent` takes no other arguments.
    """
    flags = {name: _flag(name, field) for name, field in Settings.model_fields.items()}
    own = inspect.signature(command, eval_str=True).parameters
    more = {"agents_named": Agents} if "agent" in own else {"targets": Targets, "agents_named": Agents}

    @functools.wraps(command)
    def with_environment(context: typer.Context, **given: Any) -> None:
        targets, named = given.pop("targets", None) or (), given.pop("agents_named") or ()
        chosen = {name: value for name in flags if (value := given.pop(name)) is not None}
        places: dict[str, str] = {**places_of(context), **{name: _long(name) for name in chosen}}
        os.environ.update({_variable(name): _text(value) for name, value in chosen.items()})
        if ":" in (given.get("agent") or ""):
            named = [spec := spec_of(given["agent"]), *named]
            name, equals, _ = spec.partition("=")
            given["agent"] = name if equals else None  # the first agent is the default one
            os.environ.pop(_variable("default_agent"), None)
        add_agents([*map(spec_of, targets), *named])
        if "settings" in own:
            given["settings"] = read_settings(places)
        if "places" in own:
            given["places"] = places
        if "named" in own:
            given["named"] = tuple(named)
        command(**given)

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
        *(each for each in own.values() if each.name not in {"settings", "places", "named"}),
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

    Returns the place of each setting that came from a file. Raises `StartError` if a file has a mistake.
    """
    places = {}
    for variable, value in dotenv_values(stream=io.StringIO(_text_of(ENV))).items():
        if value and not os.environ.get(variable):
            _set_variable(variable, value, place := f"{ENV}: {variable}")
            places[variable.removeprefix(PREFIX).lower()] = place
    for name, value in _toml().items():
        if not os.environ.get(_variable(name)):
            _set_variable(_variable(name), _text(value), place := f"{TOML}: {name}")
            places[name] = place
    return places


def places_of(context: typer.Context) -> dict[str, str]:
    """Return the places of settings that came from files. Raises the mistake of a file."""
    if isinstance(context.obj, StartError):
        raise context.obj
    return dict(context.obj or {})


def _toml() -> dict[str, Any]:
    text = _text_of(TOML)
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StartError(f"{TOML} is no TOML: {error}; write a setting as `port = 8000`") from None
    for name in found:
        if name not in Settings.model_fields and name.upper() not in OF_CLIENTS:
            at = re.search(rf"^\W*{re.escape(name)}\b", text, re.MULTILINE)
            line = f", line {_line_at(text, at.end())}" if at else ""
            near = difflib.get_close_matches(name, Settings.model_fields, 1)
            mend = f"did you mean {near[0]}?" if near else "`smolsessions settings` lists all settings"
            raise StartError(f"{TOML}{line}: {name} is no setting; {mend}")
    return found


def _text_of(file: Path) -> str:
    """Return the text of a file, which is empty if it does not exist."""
    try:
        content = file.read_bytes() if file.is_file() else b""
        return content.decode("utf-8-sig")
    except OSError as error:
        raise StartError(f"{file} cannot be read ({error.strerror}); mend its rights, or move it away") from None
    except UnicodeDecodeError as error:
        line = _line_at(content[: error.start].decode("latin-1"), error.start)
        raise StartError(f"{file}, line {line}: no UTF-8; save the file in this encoding") from None


def _line_at(text: str, index: int) -> int:
    return text.count("\n", 0, index) + 1


def _set_variable(variable: str, value: str, place: str) -> None:
    if "\0" in value:
        raise StartError(f"{place} holds a NUL character; remove it")
    os.environ[variable] = value


def _flag(name: str, field: Any) -> Any:
    kind = bool if field.annotation in {bool, bool | None} else str
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
