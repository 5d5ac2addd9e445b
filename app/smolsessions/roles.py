"""Role of a process, and its slot among the processes that one supervisor runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Self


class Role(Enum):
    """The values are the commands."""

    SERVE = "serve"
    WEB = "web"
    WORK = "work"

    @property
    def serves_http(self) -> bool:
        """Accept and show turns. A worker's port has only health and metrics."""
        return self is not Role.WORK

    @property
    def runs_turns(self) -> bool:
        return self is not Role.WEB


@dataclass(frozen=True)
class ProcessSlot:
    """One process of several. It is passed on the command line, so it holds no secret."""

    number: int
    count: int
    folder: str
    """Folder of the metrics sockets, closed to other users."""
    listening_fd: int
    """The listening socket, which all of them share."""
    parent_fd: int
    """The socket to the supervisor."""
    embedded: bool
    """True if the supervisor runs the embedded store."""
    is_first: bool
    """True if no process was started before this one."""

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def metrics_sockets(self) -> list[Path]:
        """Paths of the metrics sockets, in the order of the processes' numbers."""
        return [Path(self.folder, f"{number}.sock") for number in range(self.count)]
