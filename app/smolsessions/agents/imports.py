"""Import of functions and tools that settings, agents.toml and options name as `module:name`."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import smolagents.tools

from smolsessions.agents.models.keys import describe_error
from smolsessions.core.errors import StartError


def import_named(module_name: str, name: str, kind: str, advice: str) -> Any:
    """Return a callable of a module. Raises `StartError`, whose sentence names the kind and ends with the advice."""
    _let_tools_be_asynchronous()
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # of an author's module
        raise StartError(
            f"importing {module_name} failed with {describe_error(error)}; fix the module, or start the service in "
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


def require_packages(what: str, packages: Iterable[str], extra: str) -> None:
    """Raise `StartError` if a package is missing."""
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise StartError(f"{what} needs {' and '.join(missing)}; pip install 'smolsessions[{extra}]'")


def search_modules_in(*folders: Path) -> None:
    """Let Python find modules in these folders, after all others."""
    for folder in map(str, folders):
        if folder not in sys.path:
            sys.path.append(folder)
