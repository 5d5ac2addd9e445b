"""Decorator for tools whose docstring is a sentence."""

import inspect
from collections.abc import Callable
from typing import Any

import smolagents


def tool(function: Callable[..., Any]) -> smolagents.Tool:
    """Make smolagents' tool of a function. Each argument is described by its name."""
    if names := [*inspect.signature(function).parameters]:
        function.__doc__ = "\n    ".join([f"{function.__doc__}\n\nArgs:", *(f"{name}: {name}" for name in names)])
    return smolagents.tool(function)
