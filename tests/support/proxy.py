"""Small HTTP reverse proxy, which serves a service below a prefix or with other words in its answers."""

import http.client
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from tests.support.http_server import Handler, Server
from tests.support.waiting import PATIENCE_S

HOP_BY_HOP = {"connection", "content-length", "transfer-encoding", "keep-alive"}
LATER_WORDS = {
    b'"status":"finished"': b'"status":"adjourned"',
    b'"status":"idle"': b'"status":"waiting"',
    b'"outcome":"success"': b'"outcome":"partial"',
    b'"code":"model_error"': b'"code":"model_asleep"',
    b'"code":"conversation_not_found"': b'"code":"conversation_moved"',
    b"tool.result": b"tool.rejected",
    b'"type":"action"': b'"type":"dream"',
    b'"code_runs_in":null': b'"code_runs_in":"orbit"',
}
"""Words that a later release may add, in place of others."""


@contextmanager
def proxy(
    target: str, prefix: str = "", *, strips: bool = False, words: Mapping[bytes, bytes] | None = None
) -> Iterator[str]:
    """Serve `target` below `prefix`, and return the proxy's address. `strips`: the target does not see the prefix."""

    class Forwarding(Handler):
        protocol_version = "HTTP/1.0"  # a body ends with the connection

        def _forward(self) -> None:
            if self.path != prefix and not self.path.startswith((f"{prefix}/", f"{prefix}?")):
                self.send_error(404)
                return
            path = self.path.removeprefix(prefix) if strips else self.path
            far = http.client.HTTPConnection(urlsplit(target).netloc, timeout=PATIENCE_S)
            try:
                far.request(
                    self.command, path if path.startswith("/") else f"/{path}", self.body() or None, dict(self.headers)
                )
                with suppress(BrokenPipeError, ConnectionResetError):  # the client has left
                    self._answer(far.getresponse())
            finally:
                far.close()

        def _answer(self, response: http.client.HTTPResponse) -> None:
            self.send_response_only(response.status)
            for name, value in response.getheaders():
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.end_headers()
            for line in response:
                for word, other in (words or {}).items():
                    line = line.replace(word, other)  # noqa: PLW2901 - word by word
                self.wfile.write(line)

        do_GET = do_POST = do_PATCH = do_DELETE = _forward  # noqa: N815 - named by http.server

    with Server(Forwarding) as server:
        yield f"{server.url}{prefix}"
