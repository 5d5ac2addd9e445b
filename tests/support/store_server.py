"""Valkey server outside any service, which tests kill, stop and read."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from smolsessions.store.embedded.server import find_binary
from smolsessions.store.seal import new_key
from tests.support.waiting import PATIENCE_S, wait_until

PARTITION = "{p000}"
SEAL_KEY = new_key()
Raw = Any  # redis-py annotates the answers of both its clients at once


@dataclass
class StoreServer:
    """A Valkey server outside of any service, on disk, that can be killed and stopped."""

    folder: Path
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def socket_path(self) -> Path:
        return self.folder / "outside.sock"

    @property
    def settings(self) -> dict[str, str]:
        return {"REDIS_URL": f"unix://{self.socket_path}", "SEAL_KEYS": SEAL_KEY}

    def start(self) -> None:
        # With `everysec` a slow fsync holds writes back that are acknowledged, and a kill would lose them.
        options = "--port 0 --appendonly yes --appendfsync no --daemonize no --loglevel warning --save".split()
        place = ["--unixsocket", str(self.socket_path), "--dir", str(self.folder)]
        self.process = subprocess.Popen([str(find_binary()), *options, "", *place], stdout=subprocess.DEVNULL)
        wait_until(self.answers)

    def answers(self) -> bool:
        with suppress(RedisError, OSError), self.client() as client:
            return bool(client.ping())
        return False

    def client(self) -> Raw:
        return Redis(unix_socket_path=str(self.socket_path), socket_timeout=2)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@contextmanager
def running_store(folder: Path) -> Iterator[StoreServer]:
    folder.mkdir(exist_ok=True)
    server = StoreServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def event_names(raw: Raw, turn: dict[str, Any]) -> list[str]:
    """Return the names of a turn's events."""
    key = f"{PARTITION}:log:local/{turn['conversation_id']}:{turn['turn']}"
    return [entry.partition(b"\n")[0].decode() for entry in raw.lrange(key, 0, -1)]


def conversation_keys(raw: Raw, turn: dict[str, Any]) -> set[str]:
    """Return the keys of a conversation without their common prefix."""
    found = [name.decode() for name in raw.keys(f"*{turn['conversation_id']}*")]
    return {name.removeprefix(f"{PARTITION}:").replace(f"local/{turn['conversation_id']}", "C") for name in found}
