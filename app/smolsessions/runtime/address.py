"""Address of a listening socket, in text."""

from __future__ import annotations

import socket

ALL = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}  # noqa: S104 - looked up, not bound


def address_of(listening: socket.socket) -> str:
    return _joined(*listening.getsockname()[:2])


def page_address(listening: socket.socket) -> str:
    """Return the page's address for a browser on this machine."""
    host, port = listening.getsockname()[:2]
    return f"http://{_joined(ALL.get(host, host), port)}/"


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
