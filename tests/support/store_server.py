"""Valkey server outside any service, which tests kill, stop and read."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from smolsessions.store.seal import new_key
from tests.topology.node import ANSWER_S, DURABLE, Node

PARTITION = "{p000}"
SEAL_KEY = new_key()
Raw = Any  # redis-py annotates the answers of both its clients at once


class StoreServer(Node):
    def __init__(self, folder: Path) -> None:
        self.socket_path = folder / "outside.sock"
        # With `everysec` a slow fsync holds writes back that are acknowledged, and a kill would lose them.
        super().__init__(folder, DURABLE | {"appendfsync": "no", "unixsocket": str(self.socket_path)}, port=0)

    @property
    def settings(self) -> dict[str, str]:
        return {"REDIS_URL": f"unix://{self.socket_path}", "SEAL_KEYS": SEAL_KEY}

    def client(self, **options: Any) -> Raw:
        return Redis(unix_socket_path=str(self.socket_path), socket_timeout=ANSWER_S, **options)


@contextmanager
def running_store(folder: Path) -> Iterator[StoreServer]:
    server = StoreServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def raw_store(**options: Any) -> Any:
    @pytest.fixture
    def raw(outside: StoreServer) -> Iterator[Raw]:
        with outside.client(**options) as client:
            yield client

    return raw


def conversation_keys(raw: Raw, turn: dict[str, Any]) -> set[str]:
    """Return the keys of a conversation without their common prefix."""
    found = [name.decode() for name in raw.keys(f"*{turn['conversation_id']}*")]
    return {name.removeprefix(f"{PARTITION}:").replace(f"local/{turn['conversation_id']}", "C") for name in found}
