"""Decorator for tools whose docstring is one line."""

from collections.abc import Callable
from typing import Any

import smolagents


def tool(function: Callable[..., Any]) -> smolagents.Tool:
    """Make smolagents' tool of a function whose docstring is `SENTENCE | ARGUMENT: DESCRIPTION | …`."""
    sentence, *arguments = (function.__doc__ or "").split(" | ")
    function.__doc__ = "\n    ".join([f"{sentence}\n\nArgs:", *arguments]) if arguments else sentence
    return smolagents.tool(function)
