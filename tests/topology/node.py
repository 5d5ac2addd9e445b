"""Valkey server on a loopback port, on disk, that can be killed, stopped and started again."""

import random
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import BusyLoadingError, RedisError

from smolsessions.store.embedded.server import find_binary
from tests.support.waiting import PATIENCE_S, wait_until

HOST = "127.0.0.1"
ANSWER_S = 2.0
# Below the ports of outgoing connections, so that no other process takes one while its server is away.
PORTS = range(15_000, 32_000)
DURABLE = {
    "appendonly": "yes",
    "save": '""',
    "maxmemory-policy": "noeviction",
    "repl-diskless-sync-delay": "0",
    "repl-ping-replica-period": "1",
}
Raw = Any  # redis-py annotates the answers of both its clients at once
_given: set[int] = set()


def free_port() -> int:
    """Return an unused port that was not returned before."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            if port not in _given:
                _given.add(port)
                return port


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until the condition holds. An error of a server that is away counts as false."""

    def holds() -> object:
        with suppress(RedisError, OSError):
            return condition()
        return False

    wait_until(holds, what=f"still not: {what}")


@dataclass(eq=False)
class Node:
    """One server. `options` are lines of its configuration. Lines that a server adds itself (Sentinel) are kept."""

    folder: Path
    options: dict[str, str]
    password: str = ""
    arguments: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    binary: Path = field(default_factory=find_binary)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    frozen: bool = False

    def spawn(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "server.conf"
        if not file.exists():
            file.write_text("\n".join([*self._configuration(), *self.lines, ""]))
        with (self.folder / "server.log").open("ab") as log:
            command = [str(self.binary), str(file), *self.arguments]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start(self) -> None:
        self.spawn()
        self.until_up()

    def renumber(self) -> None:
        self.port = free_port()
        if "cluster-port" in self.options:
            self.options["cluster-port"] = str(free_port())
        (self.folder / "server.conf").unlink()

    def until_up(self) -> None:
        until(self._answers, f"a server in {self.folder} answers")

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait(PATIENCE_S)
            self.process, self.frozen = None, False

    def freeze(self) -> None:
        assert self.process
        self.frozen = True
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process
        self.frozen = False
        self.process.send_signal(signal.SIGCONT)

    @property
    def lives(self) -> bool:
        return bool(self.process and self.process.poll() is None and not self.frozen)

    def client(self, **options: Any) -> Raw:
        """Return a client that connects directly, as the administrator."""
        return Redis(host=HOST, port=self.port, password=self.password or None, socket_timeout=ANSWER_S, **options)

    def ask(self, *command: str | int) -> Any:
        with self.client() as client:
            return client.execute_command(*command)

    def log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")

    def _answers(self) -> bool:
        assert self.lives, self.log()[-1000:]
        with suppress(BusyLoadingError):
            return bool(self.ask("PING"))
        return False

    def _configuration(self) -> list[str]:
        place = {"bind": HOST, "port": str(self.port), "dir": str(self.folder), "daemonize": "no"}
        secret = {"requirepass": self.password, "primaryauth": self.password} if self.password else {}
        return [f"{name} {value}" for name, value in (place | secret | self.options).items()]
