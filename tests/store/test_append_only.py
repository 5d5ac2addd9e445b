"""The append-only file of a real Redis 7 with the users of deploy/make-secrets: a restart loses nothing."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.support import debian
from tests.support.service import PLAIN, Service
from tests.topology.node import DURABLE, HOST, START_S, Node, until
from tools.deploy_check import make_secrets

USER = "smolsessions"
BAD = "user default off"
WARNING = "loses conversations when it restarts"
UNKNOWN = "cannot check whether the store keeps its data over a restart"


class Store:
    """Debian's Redis with an append-only file and the users that make-secrets made."""

    def __init__(self, folder: Path) -> None:
        self._secrets = folder / "secrets"
        make_secrets(self._secrets)
        self.users = self._secrets / "store-users.acl"
        # Debian's redis-server is a link to this program, in a package that starts no service.
        binary = folder / "redis-server"
        binary.symlink_to(debian.path_or_skip("redis-tools"))
        version = subprocess.check_output([binary, "--version"], text=True)
        if not re.search(r"v=(7\.|8\.0\.)", version):
            debian.skip(f"the tests need a release that replays with the rights of `default`, not {version}")
        self.node = Node(folder / "store", DURABLE | {"aclfile": str(self.users)}, binary=binary)
        self.settings = {
            "REDIS_URL": f"redis://{USER}@{HOST}:{self.node.port}",
            "REDIS_PASSWORD_FILE": str(self._secrets / "store-password"),
            "SEAL_KEYS_FILE": str(self._secrets / "seal-keys"),
        }

    def restart(self) -> None:
        self.node.kill()
        self.node.spawn()
        password = (self._secrets / "store-password").read_text()
        with Redis(host=HOST, port=self.node.port, username=USER, password=password) as client:
            until(lambda: client.exists("{p000}:about") >= 0, START_S, "the store answers")

    def change_users(self, made: str, now: str) -> None:
        text = self.users.read_text()
        assert made in text
        self.users.write_text(text.replace(made, now))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    store.node.kill()


def all_of(service: Service) -> list[Any]:
    pages = [service.get("/conversations", limit=100)]
    for conversation in pages[0]["items"]:
        path = f"/conversations/{conversation['id']}"
        pages += [service.get(f"{path}/{part}", limit=100) for part in ("turns", "steps")]
    return pages


def test_users_that_make_a_restart_lose_data_are_named_at_start_and_mended_bring_it_back(
    store: Store, tmp_path: Path
) -> None:
    mended = store.users.read_text().splitlines()[0]
    store.change_users(mended, BAD)
    store.restart()
    with Service(tmp_path / "service", PLAIN | store.settings) as service:
        for name in ("first", "second"):
            service.follow_up(service.play({"say": name}), {"say": "again"})
        before = all_of(service)
        assert service.log().count(WARNING) == 1
        assert mended in service.log()
    store.restart()
    with Service(tmp_path / "empty", PLAIN | store.settings) as service:
        assert service.get("/conversations")["items"] == []
    store.change_users(BAD, mended)
    store.restart()
    with Service(tmp_path / "mended", PLAIN | store.settings) as service:
        assert all_of(service) == before
        store.restart()
        until(lambda: service.client.get("/conversations").status_code == 200, START_S, "the service is back")
        assert all_of(service) == before
        assert service.log().count(WARNING) == service.log().count(UNKNOWN) == 0
