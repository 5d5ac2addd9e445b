"""Protocols of other clients over the same turns and the same log, each in a package of its own.

A dialect maps requests to turns, and folds the events of a turn into its own. Its package is imported for its first
request: all of them would make each start 0.1 s longer, and take 4 MB.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from importlib.util import find_spec

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from smolsessions.core.errors import StartError
from smolsessions.web.dialects.error_forms import openai_error
from smolsessions.web.dialects.gateway import Gateway

NEEDS: Mapping[str, tuple[str, ...]] = {"openai": (), "ai-sdk": (), "ag-ui": (), "mcp": ("mcp",), "a2a": ()}
"""All dialects, with the packages that each needs. The extra of a dialect has its name."""
NONE = "none"


def check_dialects(names: Collection[str]) -> list[str]:
    """Return the dialects to serve: those that are named, or all that are installed. Raises `StartError`."""
    if not names:
        return [name for name, packages in NEEDS.items() if all(map(find_spec, packages))]
    wanted = [name for name in names if name != NONE]
    for name in wanted:
        if name not in NEEDS:
            known = ", ".join(NEEDS)
            raise StartError(f"SMOLSESSIONS_DIALECTS names {name!r}; known are {known}, and `{NONE}` for none")
        if missing := [package for package in NEEDS[name] if not find_spec(package)]:
            raise StartError(
                f"SMOLSESSIONS_DIALECTS: {name} needs {', '.join(missing)}: pip install 'smolsessions[{name}]'"
            )
    return wanted


def serve_dialects(app: FastAPI, gateway: Gateway, names: Collection[str]) -> None:
    """Add the routes of dialects to an application."""
    app.state.error_forms = {"openai": openai_error} if "openai" in names else {}
    app.router.routes += [_Dialect(name, gateway) for name in names]


class _Dialect(BaseRoute):
    """Routes of a dialect, all below its name, which are made for its first request."""

    def __init__(self, name: str, gateway: Gateway) -> None:
        self._name = name
        self._gateway = gateway
        self._router: APIRouter | None = None

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_own = scope["type"] == "http" and scope["path"].split("/", 2)[1:2] == [self._name]
        return Match.FULL if is_own else Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._router is None:
            module = importlib.import_module(f"{__name__}.{self._name.replace('-', '_')}")
            self._router = module.routes(self._gateway)
        await self._router(scope, receive, send)
