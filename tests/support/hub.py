"""Hugging Face Hub for tests: a real HTTP server with the files of one Space at one commit."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit


class Hub:
    """`with Hub(folder, "ada/agent", revision) as hub:` serves the folder at `hub.url`."""

    def __init__(self, folder: Path, repository: str, revision: str) -> None:
        self.requests: list[str] = []
        self._files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
        self._tree = f"/api/spaces/{repository}/tree/{revision}"
        self._file = f"/spaces/{repository}/resolve/{revision}/"
        self._revision = revision
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.requests.append(self.path)
                hub.answer(self)

            def do_HEAD(self) -> None:
                hub.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(request.path).path)
        found = self._files.get(path.removeprefix(self._file))
        if path == self._tree:
            request.send_response(200)
            body = json.dumps([_entry(name, file) for name, file in self._files.items()]).encode()
        elif found:
            request.send_response(200)
            body = found.read_bytes()
            request.send_header("ETag", f'"{_hash(found)}"')
            request.send_header("X-Repo-Commit", self._revision)
        else:
            request.send_response(404)
            request.send_header("X-Error-Code", "RevisionNotFound")
            body = b"{}"
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body)


def _entry(name: str, file: Path) -> dict[str, object]:
    return {"type": "file", "path": name, "size": file.stat().st_size, "oid": _hash(file)}


def _hash(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
