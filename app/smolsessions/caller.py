"""Caller of the running turn, for tools: `current_caller()`."""

from __future__ import annotations

from contextvars import ContextVar

from smolsessions.core.callers import Caller

__all__ = ["CALLER", "Caller", "current_caller"]
CALLER: ContextVar[Caller] = ContextVar("caller")
"""Set in the thread of a turn, and for each tool call: some threads of smolagents do not copy the context."""


def current_caller() -> Caller:
    """Return the caller of the running turn. Raises `LookupError` outside of one."""
    try:
        return CALLER.get()
    except LookupError:
        raise LookupError(
            "no turn runs here, so there is no caller: call current_caller() inside a tool (a thread of the tool's own "
            "needs contextvars.copy_context), or give the factory a parameter named caller"
        ) from None
