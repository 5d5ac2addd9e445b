"""Load generator: keep-alive connections over plain sockets, because the client must cost little beside the server."""

from __future__ import annotations

import json
import re
import selectors
import socket
import time
from dataclasses import dataclass, field

from benchmarks.agents import question, right_answer

ANSWER_TIMEOUT_S = 60
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Talk:
    """One connection with one conversation at a time. Every reply is checked."""

    def __init__(self, port: int, first_turns: int = 0, turns: int = 0) -> None:
        """Start a new conversation after every `turns` turns (the first time: `first_turns`). 0 means never."""
        self.connect(port)
        self._turns = turns
        self._left = first_turns or turns
        self._id: str | None = None
        self._number = 0
        self._heard = bytearray()

    def connect(self, port: int) -> None:
        """Connect. A conversation can be continued at another server."""
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = f"POST /turn HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def turn(self) -> None:
        """Play one turn and wait for its end."""
        self.ask()
        while not self.hear():
            pass

    def ask(self) -> None:
        """Send the next message."""
        if self._number and self._number == self._left:
            self._id, self._number, self._left = None, 0, self._turns
        self._number += 1
        conversation = f',"conversation_id":"{self._id}"' if self._id else ""
        body = f'{{"message":"{question(self._number)}"{conversation}}}'
        self._socket.sendall(f"{self._head}Content-Length: {len(body)}\r\n\r\n{body}".encode())

    def hear(self) -> bool:
        """Read the received bytes. Return true once the answer is complete."""
        data = self._socket.recv(65536)
        if not data:
            raise RuntimeError("the connection was closed")
        self._heard += data
        head, _, body = self._heard.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not length or len(body) < int(length[1]):
            return False
        self._check(bytes(head), bytes(body))
        self._heard.clear()
        return True

    def _check(self, head: bytes, body: bytes) -> None:
        expected = f'"reply":"{right_answer(self._number)}"'.encode()
        if not head.startswith(b"HTTP/1.1 200 ") or expected not in body:
            raise RuntimeError(f"turn {self._number} was answered with {head!r} {body!r}")
        if self._id is None:
            self._id = json.loads(body)["conversation_id"]


@dataclass
class Load:
    """Talks that run at the same time. All of them belong to one thread."""

    talks: list[Talk]
    latencies_ms: list[float] = field(default_factory=list)
    _asked_at: dict[Talk, float] = field(default_factory=dict)

    def run(self, seconds: float) -> float:
        """Keep one request of each talk in flight for `seconds`. Return the elapsed time. The last ones stay open."""
        clock = time.perf_counter
        start = now = clock()
        self.latencies_ms.clear()
        with selectors.DefaultSelector() as selector:
            for talk in self.talks:
                selector.register(talk, selectors.EVENT_READ, talk)
                if talk not in self._asked_at:
                    self._ask(talk)
            while now < start + seconds:
                for key, _ in selector.select(ANSWER_TIMEOUT_S):
                    talk = key.data
                    if talk.hear():
                        self.latencies_ms.append((clock() - self._asked_at[talk]) * 1000)
                        self._ask(talk)
                now = clock()
        return now - start

    def _ask(self, talk: Talk) -> None:
        self._asked_at[talk] = time.perf_counter()
        talk.ask()

    def finish(self) -> None:
        """Read the outstanding answers, and close."""
        for talk in self.talks:
            while talk in self._asked_at and not talk.hear():
                pass
            talk.close()
