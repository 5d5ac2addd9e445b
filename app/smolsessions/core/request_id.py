"""Id of the HTTP request that runs: its answer, its problems and its log lines have it."""

from __future__ import annotations

from contextvars import ContextVar

request_id: ContextVar[str] = ContextVar("request_id", default="")
