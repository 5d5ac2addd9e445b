"""HTTP servers in threads of the test: of a handler, of files, and of the Hugging Face Hub. PYTEST_DONT_REWRITE."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit


class Server(ThreadingHTTPServer):
    """`with Server(handler) as server:` serves at `server.url`."""

    daemon_threads = True

    def __init__(self, handler: Callable[..., BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing if a client leaves."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status: int, data: bytes = b"", headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the files of a folder, and yield the origin of its pages."""
    with Server(partial(_Files, directory=str(folder))) as server:
        yield server.url


class Hub(Server):
    """`with Hub(folder, "ada/agent", revision) as hub:` serves the folder at `hub.url`."""

    def __init__(self, folder: Path, repository: str, revision: str) -> None:
        super().__init__(_Handler)
        self.requests: list[str] = []
        self.files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
        self.tree = f"/api/spaces/{repository}/tree/{revision}"
        self.file = f"/spaces/{repository}/resolve/{revision}/"
        self.revision = revision


class _Handler(Handler):
    server: Hub

    def do_HEAD(self) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        found = hub.files.get(path.removeprefix(hub.file))
        if path == hub.tree:
            each = [
                {"type": "file", "path": n, "size": f.stat().st_size, "oid": _hash(f)} for n, f in hub.files.items()
            ]
            self.answer(200, json.dumps(each).encode())
        elif found:
            self.answer(200, found.read_bytes(), {"ETag": f'"{_hash(found)}"', "X-Repo-Commit": hub.revision})
        else:
            self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        self.do_HEAD()


def _hash(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
