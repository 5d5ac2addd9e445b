"""Hugging Face Hub for tests: a real HTTP server with the files of one Space at one commit."""

import hashlib
import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.support.http_server import Handler, Server


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
            self.answer(200, json.dumps([_entry(name, file) for name, file in hub.files.items()]).encode())
        elif found:
            self.answer(200, found.read_bytes(), {"ETag": f'"{_hash(found)}"', "X-Repo-Commit": hub.revision})
        else:
            self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        self.do_HEAD()


def _entry(name: str, file: Path) -> dict[str, object]:
    return {"type": "file", "path": name, "size": file.stat().st_size, "oid": _hash(file)}


def _hash(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
