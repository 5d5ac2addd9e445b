"""The command line: the roles in which the service runs, and what an operator needs around them."""

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
from smolsessions.core.errors import StartError
from smolsessions.roles import ProcessSlot, Role
from smolsessions.runtime.parent_link import inherited
from smolsessions.runtime.process import listen, log_to_stderr, run_process
from smolsessions.runtime.reaper import stand_before
from smolsessions.settings import read_settings, strangers, table
from smolsessions.store.seal import new_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

log = logging.getLogger("smolsessions")

MOST_PROCESSES = 64
ROLES = {
    Role.SERVE: "serve HTTP and play turns",
    Role.WEB: "serve HTTP alone: turns wait in the store until a `work` plays them",
    Role.WORK: "play turns alone, with health and metrics on the port",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; a configuration that cannot work ends with a sentence and status 2."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    status = 1
    try:
        status = command(options)
        sys.stdout.flush()
    except StartError as error:
        sys.stderr.write(f"smolsessions: {error.message}\n")
        status = 2
    except BrokenPipeError:  # who read our output has enough
        pass
    except BaseException:
        log.exception("smolsessions met a defect and ends")
    finally:
        sys.stderr.flush()
        # A hard exit: a thread that is stuck in foreign code must not keep the process (all of ours is closed).
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
        sub = add(role.value, _run, text)
        sub.set_defaults(role=role)
        sub.add_argument("--processes", type=_count, default=1, metavar="N", help="processes that share the port (1)")
        sub.add_argument("--place", type=ProcessSlot.read, help=argparse.SUPPRESS)  # for the supervisor's processes
    add("settings", _settings, "list all settings with their defaults")
    add("new-key", _new_key, "print a new key for SMOLSESSIONS_SEAL_KEYS")
    add("openapi", _openapi, "print the description of the HTTP interface")
    api_key = add("new-api-key", _new_api_key, "make an API key for an owner")
    api_key.add_argument("owner", help="letters, digits, and . _ - @")
    return parser


def _run(options: argparse.Namespace) -> int:
    stand_before()
    settings, place = read_settings(), options.place
    log_to_stderr(settings, place)
    if place:
        return run_process(settings, options.role, inherited(place.listening), place)
    for warning in strangers():
        log.warning(warning)
    if options.role is not Role.SERVE and not settings.redis_url:
        raise StartError(
            f"`smolsessions {options.role.value}` needs a store that other processes reach too: set "
            "SMOLSESSIONS_REDIS_URL, the same for all, or run `smolsessions serve`, which has a store of its own"
        )
    listening = listen(settings)
    if options.processes == 1:
        return run_process(settings, options.role, listening, None)
    from smolsessions.runtime.supervisor import supervise  # noqa: PLC0415 - a single process needs none of it

    return supervise(settings, options.processes, listening)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_PROCESSES):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {MOST_PROCESSES}")
    return int(text)


def _settings(_options: argparse.Namespace) -> int:
    sys.stdout.write(table() + "\n")
    return 0


def _new_key(_options: argparse.Namespace) -> int:
    sys.stdout.write(new_key() + "\n")
    return 0


def _new_api_key(options: argparse.Namespace) -> int:
    if not re.fullmatch(r"[A-Za-z0-9._@-]{1,64}", options.owner):
        raise StartError("an owner is 1 to 64 letters, digits, and . _ - @")
    key = secrets.token_urlsafe(32)
    sys.stdout.write(f"{options.owner} {hashlib.sha256(key.encode()).hexdigest()}\n")
    sys.stderr.write(
        f"Standard output belongs into SMOLSESSIONS_API_KEYS_FILE; the key itself is shown only now:\n{key}\n"
    )
    return 0


def _openapi(_options: argparse.Namespace) -> int:
    from smolsessions.web.app import schema_yaml  # noqa: PLC0415 - the other commands need no FastAPI

    sys.stdout.buffer.write(schema_yaml().encode())
    return 0
