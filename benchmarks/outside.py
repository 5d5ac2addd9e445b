"""Store as operators run it: a Valkey server on a port of its own, on disk, with any number of replicas."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from smolsessions.store.embedded.server import find_binary
from smolsessions.store.seal import new_key

HOST = "127.0.0.1"
UP_S = 20.0
OPTIONS = {
    "appendonly": "yes",
    "save": "",
    "maxmemory-policy": "noeviction",
    "bind": HOST,
    "repl-diskless-sync-delay": "0",
}


@dataclass(frozen=True)
class Outside:
    """A running store, and the settings with which processes share it."""

    settings: dict[str, str]
    pids: list[int]
    port: int

    def client(self) -> Redis:
        """Return a client of its primary."""
        return Redis(host=HOST, port=self.port)


@contextmanager
def outside(replicas: int = 0) -> Iterator[Outside]:
    """Run an empty store on the caller's cores. Yield it once all replicas follow."""
    with ExitStack() as stack:
        port, pid = stack.enter_context(_running())
        pids = [pid, *(stack.enter_context(_running(port))[1] for _ in range(replicas))]
        found = Outside({"REDIS_URL": f"redis://{HOST}:{port}", "SEAL_KEYS": new_key()}, pids, port)
        with found.client() as client:
            wait(lambda: _followers(client) == replicas, "all replicas follow")
        yield found


@contextmanager
def _running(followed: int | None = None) -> Iterator[tuple[int, int]]:
    """Run a server. Yield its port and pid."""
    with socket.create_server((HOST, 0)) as probe:
        port = int(probe.getsockname()[1])
    with TemporaryDirectory(prefix="smolbench-") as folder, Path(folder, "log").open("wb") as log:
        options = {**OPTIONS, "port": str(port), "dir": folder}
        if followed:
            options["replicaof"] = f"{HOST} {followed}"
        words = [word for name, value in options.items() for word in (f"--{name}", *_words(name, value))]
        with subprocess.Popen([str(find_binary()), *words], stdout=log, stderr=log) as process:
            try:
                with Redis(host=HOST, port=port) as client:
                    wait(client.ping, "a server answers")
                yield port, process.pid
            finally:
                process.kill()


def _words(name: str, value: str) -> list[str]:
    return value.split() if name == "replicaof" else [value]


def _followers(client: Redis) -> int:
    about: Any = client.info("replication")
    return sum(isinstance(value, dict) and value.get("state") == "online" for value in about.values())


def wait(condition: Callable[[], object], what: str) -> None:
    """Wait until the condition holds. It counts as false while a server is unreachable."""
    end = time.monotonic() + UP_S
    while time.monotonic() < end:
        with suppress(RedisError, OSError):
            if condition():
                return
        time.sleep(0.01)
    raise RuntimeError(f"after {UP_S:g} s still not: {what}")
