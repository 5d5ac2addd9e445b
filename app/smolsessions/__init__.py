"""smolsessions: stateful smolagents conversations behind HTTP."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smolsessions.agent_options import agent, options
    from smolsessions.agents.remote_executors import remote_executor
    from smolsessions.caller import Caller, current_caller
    from smolsessions.client import ApiError, AsyncClient, Client, ClientError, UnreachableError
    from smolsessions.core.attachments import Audio, File

__version__ = "0.1.0"
__all__ = [
    "ApiError",
    "AsyncClient",
    "Audio",
    "Caller",
    "Client",
    "ClientError",
    "File",
    "UnreachableError",
    "agent",
    "current_caller",
    "options",
    "remote_executor",
]
_HOME = dict.fromkeys(("ApiError", "AsyncClient", "Client", "ClientError", "UnreachableError"), "smolsessions.client")
_HOME |= dict.fromkeys(("Caller", "current_caller"), "smolsessions.caller")
_HOME |= dict.fromkeys(("agent", "options"), "smolsessions.agent_options")
_HOME["remote_executor"] = "smolsessions.agents.remote_executors"
_HOME |= dict.fromkeys(("Audio", "File"), "smolsessions.core.attachments")
"""Modules of the public names, which are loaded when they are used: a client loads no server."""


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
