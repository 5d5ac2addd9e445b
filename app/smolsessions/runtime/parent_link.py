"""Socket between a supervisor and one of its processes. Its end also means the end of the other side."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from contextlib import suppress

from smolsessions.runtime.shutdown import Shutdown

STOP, FORCE, RETIRE = b"s", b"f", b"r"
ORPHAN_S = 20.0  # longest time that a process outlives its supervisor, even if its agents block the event loop


class ParentLink:
    """The process's end. A thread reads it, because an agent that computes may block the event loop."""

    def __init__(self, descriptor: int) -> None:
        self._socket = inherited(descriptor)
        self.is_lost = False

    def follow(self, shutdown: Shutdown) -> None:
        """Pass the supervisor's requests to `shutdown`, and force it if the supervisor dies."""
        arguments = (asyncio.get_running_loop(), shutdown)
        threading.Thread(target=self._follow, args=arguments, name="parent link", daemon=True).start()

    def announce_ready(self, text: str) -> None:
        """Report that this process serves. The supervisor prints `text` once all do."""
        with suppress(OSError):  # the supervisor is dead, which the thread notices
            self._socket.sendall(json.dumps(text).encode() + b"\n")

    def _follow(self, loop: asyncio.AbstractEventLoop, shutdown: Shutdown) -> None:
        act = {STOP: shutdown.request, FORCE: shutdown.force, RETIRE: shutdown.retire}
        with suppress(RuntimeError):  # the loop has ended before
            with suppress(OSError):
                while word := self._socket.recv(1):
                    loop.call_soon_threadsafe(act[word])
            self.is_lost = True
            loop.call_soon_threadsafe(shutdown.force)
        time.sleep(ORPHAN_S)
        os._exit(1)


def inherited(descriptor: int) -> socket.socket:
    """Return the supervisor's socket, closed to programs that a tool starts."""
    taken = socket.socket(fileno=descriptor)
    taken.set_inheritable(False)
    return taken


class ChildLink:
    """The supervisor's end."""

    def __init__(self, mine: socket.socket) -> None:
        self._socket = mine
        mine.setblocking(False)

    def send(self, word: bytes) -> None:
        with suppress(OSError):  # the process has ended
            self._socket.send(word)

    async def wait_ready(self) -> str | None:
        """Return the text of `announce_ready`, or None if the process ended before."""
        received = b""
        loop = asyncio.get_running_loop()
        while not received.endswith(b"\n"):
            try:
                part = await loop.sock_recv(self._socket, 65536)
            except OSError:
                part = b""
            if not part:
                return None
            received += part
        text: str = json.loads(received)
        return text

    def close(self) -> None:
        self._socket.close()
