"""Messages between a session and the process that runs its code: frames of data, never pickle."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

from smolsessions.agents.values import dumps, loads

if TYPE_CHECKING:
    from collections.abc import Callable

_HEADER = struct.Struct(">I")
CHUNK_BYTES = 1024 * 1024
LOOK_S = 0.05


class ClosedError(Exception):
    """The other side has closed."""


class MisbehavedError(Exception):
    """The other side sent what is no message of ours."""


class Channel:
    """One end of a connected socket. A message is a dictionary of plain data."""

    def __init__(self, sock: socket.socket, max_bytes: int) -> None:
        """`max_bytes` bounds a message in either direction."""
        self._sock = sock
        self._max_bytes = max_bytes
        self._look_at = 0.0

    def send(self, message: dict[str, Any], while_waiting: Callable[[], None] | None = None) -> None:
        """Raises `ClosedError`, and `ValueError` for a message beyond the bound: then nothing was sent."""
        data = dumps(message, max_bytes=self._max_bytes)
        left = memoryview(_HEADER.pack(len(data)) + data)
        try:
            if not while_waiting:
                self._sock.sendall(left)
                return
            while left:
                self._wait(while_waiting, to_write=True)
                with contextlib.suppress(BlockingIOError):
                    left = left[self._sock.send(left, socket.MSG_DONTWAIT) :]
        except OSError as error:
            raise ClosedError from error

    def receive(self, while_waiting: Callable[[], None] | None = None) -> dict[str, Any]:
        """Wait for a message; `while_waiting` is called now and then, and may raise to end the waiting."""
        (size,) = _HEADER.unpack(self._exactly(_HEADER.size, while_waiting))
        if size > self._max_bytes:
            raise MisbehavedError("a message is too long")
        try:
            message = loads(self._exactly(size, while_waiting), max_bytes=self._max_bytes)
        except (ValueError, TypeError) as error:
            raise MisbehavedError("a message cannot be read") from error
        if type(message) is not dict:
            raise MisbehavedError("a message is no message")
        return message

    def close(self) -> None:
        self._sock.close()

    def _exactly(self, size: int, while_waiting: Callable[[], None] | None) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                if while_waiting:
                    self._wait(while_waiting)
                chunk = self._sock.recv(min(size - len(data), CHUNK_BYTES))
            except OSError as error:
                raise ClosedError from error
            if not chunk:
                raise ClosedError
            data += chunk
        return bytes(data)

    def _wait(self, while_waiting: Callable[[], None], *, to_write: bool = False) -> None:
        """Wait until the socket is ready. Whoever sends a byte now and then does not keep us from looking around."""
        poll = select.poll()  # `select` cannot take a descriptor beyond 1023
        poll.register(self._sock, select.POLLOUT if to_write else select.POLLIN)
        while True:
            ready = poll.poll(LOOK_S * 1000)
            if not ready or time.monotonic() > self._look_at:
                self._look_at = time.monotonic() + LOOK_S
                while_waiting()
            if ready:
                return
