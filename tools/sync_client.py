"""Derive the synchronous client from the asynchronous one, word by word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import unasync

CLIENT = Path(__file__).parent.parent / "app" / "smolsessions" / "client"
WORDS = {
    "AsyncClient": "Client",
    "AsyncConnection": "Connection",
    "AsyncIterator": "Iterator",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose": "close",
    "aclosing": "closing",
    "aio": "sync",
    "aiter_bytes": "iter_bytes",
    "anext": "next",
    "anyio": "time",
    "aread": "read",
    "async_answers": "answers",
    "asynccontextmanager": "contextmanager",
}


def main() -> None:
    """Write `client/sync`, or the folder of the first argument."""
    target = Path(sys.argv[1]) if sys.argv[1:] else CLIENT / "sync"
    files = [path for path in (CLIENT / "aio").glob("*.py") if path.name != "__init__.py"]
    rule = unasync.Rule(f"{CLIENT}/aio/", f"{target}/", additional_replacements=WORDS)
    unasync.unasync_files([str(path) for path in files], [rule])
    written = [str(target / path.name) for path in files]
    for command in (["check", "-q", "--fix", "--unsafe-fixes", "--select", "I,UP028"], ["format", "-q"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, *written], check=True)


if __name__ == "__main__":
    main()
