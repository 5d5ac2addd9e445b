"""Sentinel that was cut off from the others, and still names the primary that it knew."""

import socketserver
import threading
from types import TracebackType
from typing import Self

from tests.topology.node import HOST

END_S = 120.0


class Liar(socketserver.ThreadingTCPServer):
    """`with Liar(service, port) as liar:` listens. `asked` counts the requests."""

    daemon_threads = True

    def __init__(self, service: str, primary_port: int) -> None:
        super().__init__((HOST, 0), _Answers)
        state = {
            "name": service,
            "ip": HOST,
            "port": primary_port,
            "flags": "master",
            "num-other-sentinels": 2,
            "config-epoch": 0,
        }
        words = [str(part).encode() for member in state.items() for part in member]
        self.said = b"*1\r\n*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        self.asked = 0
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)

    @property
    def place(self) -> str:
        return f"{HOST}:{self.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self.shutdown()
        self._thread.join(END_S)
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that went away."""


class _Answers(socketserver.StreamRequestHandler):
    server: Liar

    def handle(self) -> None:
        while head := self.rfile.readline():
            words = [self._word() for _ in range(int(head[1:]))]
            if words[0].upper() == b"SENTINEL":
                self.server.asked += 1
                self.wfile.write(self.server.said)
            else:
                self.wfile.write(b"+OK\r\n")

    def _word(self) -> bytes:
        size = int(self.rfile.readline()[1:])
        return self.rfile.read(size + 2)[:size]
