"""HTTP servers that answer an MCP client badly, in a thread of the test."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.http_server import Handler, Server

CHUNK = b"0" * 65536
HEADERS: dict[str, dict[str, str]] = {
    "redirected": {"Location": "http://localhost:{port}/elsewhere"},  # another origin that is the same server
    "compressed": {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    "endless": {"Content-Type": "application/json"},
    "endless event": {"Content-Type": "text/event-stream"},
    "a page": {"Content-Type": "text/html"},
}


@contextmanager
def hostile_http(kind: str, paths: list[str]) -> Iterator[str]:
    """Serve answers of one kind, and note the paths that are asked for. Yields the address."""

    class Bad(Handler):
        protocol_version = "HTTP/1.0"

        def do_POST(self) -> None:
            paths.append(self.path)
            self.send_response(307 if kind == "redirected" else 200)
            for name, value in HEADERS[kind].items():
                self.send_header(name, value.format(port=server.server_port))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(gzip.compress(CHUNK) if kind == "compressed" else b"data: <html>")
                while kind.startswith("endless"):
                    self.wfile.write(CHUNK)

    with Server(Bad) as server:
        yield f"{server.url}/mcp"
