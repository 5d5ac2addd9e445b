"""Servers that start and end together."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from ssl import SSLContext
from typing import Self
from urllib.parse import quote

from smolsessions.store.seal import new_key
from tests.topology.line import Line
from tests.topology.node import HOST, Node


@dataclass
class Topology(ABC):
    """`with Topology(folder) as running:` starts all servers and ends them. `password` is the default user's."""

    folder: Path
    password: str = ""
    tls: SSLContext | None = None
    key: str = field(default_factory=new_key)
    nodes: list[Node] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def url(self) -> str: ...

    def end(self) -> None:
        for node in self.nodes:
            node.kill()
        for line in self.lines:
            line.close()

    @property
    def settings(self) -> dict[str, str]:
        return {"REDIS_URL": self.url(), "SEAL_KEYS": self.key}

    def address(self, kind: str, ports: Iterable[int], user: str, password: str) -> str:
        """Return an address of the service's settings, up to its path."""
        password = password or self.password
        secret = f"{quote(user, safe='')}:{quote(password, safe='')}@" if password else ""
        return f"{'rediss' if self.tls else 'redis'}+{kind}://{secret}{','.join(f'{HOST}:{port}' for port in ports)}"
