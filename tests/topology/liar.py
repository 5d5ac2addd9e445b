"""Sentinel that says what it is made to say: one that was cut off still names the primary that it knew."""

import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.topology.node import HOST


class Liar(socketserver.ThreadingTCPServer):
    """Sentinel of one service, which waits before it answers."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, service: str, primary_port: int, epoch: int, delay_s: float) -> None:
        super().__init__((HOST, 0), _Answers)
        state = {"name": service, "ip": HOST, "port": primary_port, "flags": "master"}
        state |= {"num-other-sentinels": 2, "config-epoch": epoch}
        words = [str(part).encode() for member in state.items() for part in member]
        self.said = b"*1\r\n*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        self.delay_s = delay_s

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that went away."""


class _Answers(socketserver.StreamRequestHandler):
    server: Liar

    def handle(self) -> None:
        while head := self.rfile.readline():
            words = [self._word() for _ in range(int(head[1:]))]
            is_asked = words[0].upper() == b"SENTINEL"
            time.sleep(self.server.delay_s * is_asked)
            self.wfile.write(self.server.said if is_asked else b"+OK\r\n")

    def _word(self) -> bytes:
        size = int(self.rfile.readline()[1:])
        return self.rfile.read(size + 2)[:size]


@contextmanager
def running_liar(service: str, primary_port: int, epoch: int, delay_s: float) -> Iterator[Liar]:
    with Liar(service, primary_port, epoch, delay_s) as liar:
        threading.Thread(target=liar.serve_forever, args=(0.05,), daemon=True).start()
        yield liar
        liar.shutdown()
