"""Import of functions and tools that settings, agents.toml and options name as `module:name`."""

from __future__ import annotations

import ast
import importlib
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import smolagents.tools

import smolsessions
from smolsessions.agents.models.keys import describe_error
from smolsessions.core.errors import StartError


def import_named(module_name: str, name: str, kind: str, advice: str) -> Any:
    """Return a callable of a module. Raises `StartError`, whose sentence names the kind and ends with the advice."""
    _refuse_namesake(module_name)
    _let_tools_be_asynchronous()
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("smolsessions."):
            _refuse_namesake(error.name or "")
        raise StartError(
            f"importing {module_name} failed with {describe_error(error)}; mend the module, or start the service in "
            "the folder that holds it"
        ) from error
    found = getattr(module, name, None)
    if not callable(found):
        raise StartError(f"{module_name} has no {kind} {name}; {advice}")
    return found


@cache
def _let_tools_be_asynchronous() -> None:
    """Let `@tool` take `async def`, too: smolagents looks for `def` in the source of a function, and finds none."""
    tools: Any = smolagents.tools
    tools.ast = SimpleNamespace(**vars(ast) | {"FunctionDef": (ast.FunctionDef, ast.AsyncFunctionDef)})


def _refuse_namesake(module_name: str) -> None:
    """Refuse a module that a folder or file with the name of this package shadows."""
    ours = Path(next(iter(smolsessions.__path__)))
    namesakes = (Path.cwd() / "smolsessions", Path.cwd() / "smolsessions.py")
    theirs = next((path for path in namesakes if path.exists() and path != ours), None)
    if theirs and module_name.split(".", maxsplit=1)[0] == "smolsessions":
        raise StartError(
            f"your {theirs.name} has the name of the service's own package, so {module_name} cannot be imported; "
            "rename yours, say to my_agents"
        )


def search_modules_in(*folders: Path) -> None:
    """Let Python find modules in these folders, after all others."""
    for folder in map(str, folders):
        if folder not in sys.path:
            sys.path.append(folder)
