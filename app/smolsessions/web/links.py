"""Addresses of the service's own objects, below the prefix at which a reverse proxy serves it."""

from __future__ import annotations

from contextvars import ContextVar

root_path: ContextVar[str] = ContextVar("root_path", default="")
"""SMOLSESSIONS_ROOT_PATH. `create_app` sets it, and the tasks and connections of its server inherit it."""


def link(path: str) -> str:
    return root_path.get() + path
