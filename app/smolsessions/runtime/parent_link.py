"""What ties a process of a set to its supervisor: a socket that says when to end, and whose own end says it too."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smolsessions.runtime.shutdown import Shutdown

STOP, HURRY = b"s", b"h"
ORPHAN_S = 20.0  # how long a process may outlive its supervisor, whatever its agents do to its event loop


class ParentLink:
    """The process's end. A thread heeds it: an agent that computes may keep the event loop from it for long."""

    def __init__(self, descriptor: int) -> None:
        self._socket = inherited(descriptor)
        self.is_lost = False

    def heed(self, ending: Shutdown) -> None:
        """Have `ending` asked for when the supervisor says so, and in a hurry when there is none any more."""
        where = (asyncio.get_running_loop(), ending)
        threading.Thread(target=self._heed, args=where, name="leash", daemon=True).start()

    def tell_ready(self, text: str) -> None:
        """Say that this process does its work; `text` is what an operator is told of the set."""
        with suppress(OSError):  # no supervisor: that is heard as well
            self._socket.sendall(json.dumps(text).encode() + b"\n")

    def _heed(self, loop: asyncio.AbstractEventLoop, ending: Shutdown) -> None:
        with suppress(RuntimeError):  # the loop has ended before
            while word := self._word():
                loop.call_soon_threadsafe(ending.hurry if word == HURRY else ending.ask)
            self.is_lost = True
            loop.call_soon_threadsafe(ending.hurry)
        time.sleep(ORPHAN_S)
        os._exit(1)

    def _word(self) -> bytes:
        with suppress(OSError):
            return self._socket.recv(1)
        return b""


def inherited(descriptor: int) -> socket.socket:
    """Take a socket over from the supervisor, and pass it on to no program that a tool starts."""
    taken = socket.socket(fileno=descriptor)
    taken.set_inheritable(False)
    return taken


class ChildLink:
    """The supervisor's end."""

    def __init__(self, mine: socket.socket) -> None:
        self._socket = mine
        mine.setblocking(False)

    def tell(self, word: bytes) -> None:
        with suppress(OSError):  # it is gone
            self._socket.send(word)

    async def ready(self) -> str | None:
        """Give what the process says once it does its work; nothing where it ended before."""
        said = b""
        loop = asyncio.get_running_loop()
        while not said.endswith(b"\n"):
            try:
                part = await loop.sock_recv(self._socket, 65536)
            except OSError:
                part = b""
            if not part:
                return None
            said += part
        text: str = json.loads(said)
        return text

    def close(self) -> None:
        self._socket.close()
