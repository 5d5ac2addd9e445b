"""Protocols of other clients over the same turns and the same log, each in a package of its own.

A dialect maps requests to turns, and folds the events of a turn into its own. Its package is imported if it is served.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from importlib.util import find_spec

from fastapi import FastAPI

from smolsessions.core.errors import StartError
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
    app.state.error_forms = {}
    for name in names:
        module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
        app.include_router(module.routes(gateway), include_in_schema=False)
        if form := getattr(module, "ERROR_FORM", None):
            app.state.error_forms[name] = form
