"""Command line of smolsessions."""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import re
import secrets
import sys
from typing import TYPE_CHECKING

from smolsessions import __version__
from smolsessions.cli.run import process_count, run
from smolsessions.core.errors import StartError
from smolsessions.roles import ProcessSlot, Role
from smolsessions.settings import settings_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

log = logging.getLogger("smolsessions")

ROLES = {
    Role.SERVE: "serve HTTP and play turns",
    Role.WEB: "serve HTTP alone: turns wait in the store until a `work` plays them",
    Role.WORK: "play turns alone, with health and metrics on the port",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. A wrong configuration ends it with a sentence and status 2."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    status = 1
    try:
        status = command(options)
        sys.stdout.flush()
    except StartError as error:
        sys.stderr.write(f"smolsessions: {error.message}\n")
        status = 2
    except BrokenPipeError:  # the reader of the output has closed it
        pass
    except BaseException:
        log.exception("smolsessions met a defect and ends")
    finally:
        sys.stderr.flush()
        # A hard exit: a thread that is stuck in foreign code must not keep the process. All of ours is closed.
        os._exit(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="smolsessions",
        description="Stateful smolagents conversations behind HTTP.",
        epilog="Every setting is an environment variable; `smolsessions settings` lists them with their help.",
    )
    parser.add_argument("--version", action="version", version=f"smolsessions {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=command)
        return sub

    for role, text in ROLES.items():
        sub = add(role.value, run, text)
        sub.set_defaults(role=role)
        sub.add_argument(
            "--processes", type=process_count, default=1, metavar="N", help="processes that share the port (1)"
        )
        sub.add_argument("--slot", type=ProcessSlot.from_json, help=argparse.SUPPRESS)  # set by the supervisor
    add("settings", lambda _: _print(settings_table()), "list all settings with their defaults")
    add("new-key", _new_key, "print a new key for SMOLSESSIONS_SEAL_KEYS")
    add("openapi", _openapi, "print the description of the HTTP interface")
    api_key = add("new-api-key", _new_api_key, "make an API key for an owner")
    api_key.add_argument("owner", help="letters, digits, and . _ - @")
    return parser


def _print(text: str) -> int:
    sys.stdout.write(text + "\n")
    return 0


def _new_key(_options: argparse.Namespace) -> int:
    from smolsessions.store.seal import new_key  # noqa: PLC0415 - a supervisor needs no cryptography

    return _print(new_key())


def _new_api_key(options: argparse.Namespace) -> int:
    if not re.fullmatch(r"[A-Za-z0-9._@-]{1,64}", options.owner):
        raise StartError("an owner is 1 to 64 letters, digits, and . _ - @")
    key = secrets.token_urlsafe(32)
    _print(f"{options.owner} {hashlib.sha256(key.encode()).hexdigest()}")
    sys.stderr.write(
        f"Standard output belongs into SMOLSESSIONS_API_KEYS_FILE; the key itself is shown only now:\n{key}\n"
    )
    return 0


def _openapi(_options: argparse.Namespace) -> int:
    from smolsessions.web.app import schema_yaml  # noqa: PLC0415 - the other commands need no FastAPI

    sys.stdout.buffer.write(schema_yaml().encode())
    return 0
