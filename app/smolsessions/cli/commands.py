"""All commands."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import sys
from typing import Annotated

import typer

from smolsessions import __version__
from smolsessions.cli.agents import agents
from smolsessions.cli.chat import chat
from smolsessions.cli.check import check
from smolsessions.cli.flags import Named, Targets, add_agents, read_files, with_settings
from smolsessions.cli.init import init
from smolsessions.cli.records import conversations, turns
from smolsessions.cli.run import MAX_PROCESSES, end_with_stdin, run
from smolsessions.cli.store import store
from smolsessions.core.callers import parse_claims
from smolsessions.core.errors import StartError
from smolsessions.roles import Role
from smolsessions.settings import read_settings, settings_table

Processes = Annotated[int, typer.Option(min=1, max=MAX_PROCESSES, help="Processes that share the port.")]
Open = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]
Reload = Annotated[
    bool,
    typer.Option(
        "--reload",
        help="Restart when Python files or agents.toml change. Running turns end in the code that began them.",
    ),
]
UntilStdinEnds = Annotated[
    bool, typer.Option("--until-stdin-ends", hidden=True, help="End as if stopped once standard input ends.")
]
app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
)
keys = typer.Typer(no_args_is_help=True, help="Make keys.")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"smolsessions {__version__}")
        raise typer.Exit


@app.callback()
def front(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Stateful smolagents conversations behind HTTP.

    Every setting is a flag of `serve`, or else an environment variable SMOLSESSIONS_…, or else a line of .env, or else
    a line of smolsessions.toml in the current folder: `--port 80`, SMOLSESSIONS_PORT=80, port = 80.
    """
    try:
        context.obj = read_files()
    except StartError as mistake:  # raised by the commands that use the files; help and `init` do not
        context.obj = mistake


@app.command()
@with_settings
def serve(
    context: typer.Context,
    *,
    processes: Processes = 1,
    open_page: Open = False,
    reload: Reload = False,
    until_stdin_ends: UntilStdinEnds = False,
    targets: Targets = None,
    named: Named = None,
) -> None:
    """Serve HTTP and run turns."""
    add_agents(targets, named)
    if until_stdin_ends:
        end_with_stdin()
    raise typer.Exit(run(read_settings(context.obj), Role.SERVE, processes, open_page=open_page, reload=reload))


@app.command()
@with_settings
def web(
    context: typer.Context,
    *,
    processes: Processes = 1,
    open_page: Open = False,
    targets: Targets = None,
    named: Named = None,
) -> None:
    """Serve HTTP alone: turns wait in the store until a `work` runs them."""
    add_agents(targets, named)
    raise typer.Exit(run(read_settings(context.obj), Role.WEB, processes, open_page=open_page))


@app.command()
@with_settings
def work(context: typer.Context, *, processes: Processes = 1, targets: Targets = None, named: Named = None) -> None:
    """Run turns alone, with health and metrics on the port."""
    add_agents(targets, named)
    raise typer.Exit(run(read_settings(context.obj), Role.WORK, processes))


@app.command("settings")
def list_settings() -> None:
    """List all settings with their defaults, as a Markdown table."""
    typer.echo(settings_table())


@app.command()
def openapi() -> None:
    """Print the description of the HTTP interface."""
    from smolsessions.web.app import schema_yaml  # noqa: PLC0415 - the other commands need no FastAPI

    sys.stdout.buffer.write(schema_yaml().encode())


@keys.command()
def seal() -> None:
    """Print a new key for SMOLSESSIONS_SEAL_KEYS."""
    from smolsessions.store.seal import new_key  # noqa: PLC0415 - the other commands need no cryptography

    typer.echo(new_key())


@keys.command()
def owner(
    name: Annotated[str, typer.Argument(metavar="OWNER", help="Letters, digits, and . _ - @")],
    claims: Annotated[
        str, typer.Option(metavar="JSON", help='Claims for agents and tools, as {"plan": "pro"}. At most 4 KiB.')
    ] = "",
) -> None:
    """Make an API key for an owner: a line for SMOLSESSIONS_API_KEYS_FILE, and the key itself."""
    if not re.fullmatch(r"[A-Za-z0-9._@-]{1,64}", name):
        raise StartError("an owner is 1 to 64 letters, digits, and . _ - @")
    column = ""
    if claims:
        try:
            column = f" {json.dumps(parse_claims(claims), separators=(',', ':'))}"
        except ValueError as error:
            raise StartError(f"--claims: {error}") from error
    key = secrets.token_urlsafe(32)
    typer.echo(f"{name} {hashlib.sha256(key.encode()).hexdigest()}{column}")
    typer.echo("Standard output is a line for SMOLSESSIONS_API_KEYS_FILE. The key itself is shown only now:", err=True)
    typer.echo(key, err=True)


app.add_typer(agents, name="agents")
app.add_typer(keys, name="keys")
app.add_typer(conversations, name="conversations")
app.add_typer(store, name="store")
app.add_typer(turns, name="turns")
app.command()(chat)
app.command()(check)
app.command()(init)
