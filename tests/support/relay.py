"""TCP relay in front of a service, which cuts connections or answers in its place."""

import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

import httpx2

from tests.support.waiting import PATIENCE_S

CHUNK_BYTES = 65536


class Relay:
    """`with Relay(target, plan) as relay:` passes connections on to `target`.

    `plan` has an entry for each connection: a number cuts the answer after so many bytes, and pieces of bytes are sent
    instead of an answer. Connections after the last entry are whole.
    """

    def __init__(self, target: str, plan: Iterable[int | Iterable[bytes]] = ()) -> None:
        url = httpx2.URL(target)
        self._target = (url.host, url.port or 80)
        self._plan = iter(plan)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        for connection in list(self._open):
            _close(connection)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(near, next(self._plan, None)), daemon=True).start()

    def _serve(self, near: socket.socket, entry: int | Iterable[bytes] | None) -> None:
        near.settimeout(PATIENCE_S)
        self._open.add(near)
        with near, suppress(OSError):
            if entry is None or isinstance(entry, int):
                with socket.create_connection(self._target, PATIENCE_S) as far:
                    threading.Thread(target=_pump, args=(near, far), daemon=True).start()
                    _pump(far, near, entry)
            else:
                near.recv(CHUNK_BYTES)
                for piece in entry:
                    near.sendall(piece)
            _close(near)
        self._open.discard(near)


def _pump(source: socket.socket, target: socket.socket, most: int | None = None) -> None:
    with suppress(OSError):
        while piece := source.recv(CHUNK_BYTES):
            target.sendall(piece[:most])
            if most is not None and (most := most - len(piece)) <= 0:
                break
    _close(source)
    _close(target)


def _close(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
