"""Length-prefixed frames of plain data between a session and its code process. Nothing is ever unpickled here."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from smolsessions.agents.values import dumps, loads

_HEADER = struct.Struct(">I")
READ_BYTES = 1024 * 1024
POLL_S = 0.05


class ClosedError(Exception):
    """The other side has closed its end."""


class MisbehavedError(Exception):
    """The other side sent an invalid message."""


class Channel:
    """One end of a connected socket. A message is a dictionary of plain data."""

    def __init__(self, sock: socket.socket, max_bytes: int) -> None:
        """`max_bytes` bounds a message in either direction."""
        self._sock = sock
        self._max_bytes = max_bytes
        self._check_at = 0.0

    def send(self, message: dict[str, Any], while_waiting: Callable[[], None] | None = None) -> None:
        """Raises `ClosedError`, and `ValueError` before sending anything if the message is too large."""
        data = dumps(message, max_bytes=self._max_bytes)
        left = memoryview(_HEADER.pack(len(data)) + data)
        try:
            if not while_waiting:
                self._sock.sendall(left)
                return
            while left:
                self._wait(while_waiting, select.POLLOUT)
                with contextlib.suppress(BlockingIOError):
                    left = left[self._sock.send(left, socket.MSG_DONTWAIT) :]
        except OSError as error:
            raise ClosedError from error

    def receive(self, while_waiting: Callable[[], None] | None = None) -> dict[str, Any]:
        """Wait for a message. `while_waiting` is called every `POLL_S` and may raise to end the wait."""
        (size,) = _HEADER.unpack(self._exactly(_HEADER.size, while_waiting))
        if size > self._max_bytes:
            raise MisbehavedError("a message is too long")
        try:
            message = loads(self._exactly(size, while_waiting), max_bytes=self._max_bytes)
        except (ValueError, TypeError) as error:
            raise MisbehavedError("a message cannot be decoded") from error
        if type(message) is not dict:
            raise MisbehavedError("a message is no dictionary")
        return message

    def _exactly(self, size: int, while_waiting: Callable[[], None] | None) -> bytes:
        parts, left = [], size
        while left:
            try:
                if while_waiting:
                    self._wait(while_waiting, select.POLLIN)
                parts.append(self._sock.recv(min(left, READ_BYTES)))
            except OSError as error:
                raise ClosedError from error
            if not parts[-1]:
                raise ClosedError
            left -= len(parts[-1])
        return b"".join(parts)

    def _wait(self, while_waiting: Callable[[], None], readiness: int) -> None:
        """Wait until the socket is ready. A sender of single bytes cannot keep `while_waiting` from being called."""
        poll = select.poll()  # `select` cannot take a descriptor beyond 1023
        poll.register(self._sock, readiness)
        while True:
            ready = poll.poll(POLL_S * 1000)
            if not ready or time.monotonic() > self._check_at:
                self._check_at = time.monotonic() + POLL_S
                while_waiting()
            if ready:
                return
