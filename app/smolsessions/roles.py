"""What a process of the service is there for, and its place among those that one supervisor runs."""

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
        """It takes turns in and shows them."""
        return self is not Role.WORK

    @property
    def runs_turns(self) -> bool:
        return self is not Role.WEB


@dataclass(frozen=True)
class ProcessSlot:
    """One process of a set. It is given on the command line, so there is nothing in it that must not be seen."""

    number: int
    count: int
    folder: str
    """Private to the set: each process's figures have a socket in it."""
    listening: int
    """The descriptor of the socket that all of them listen on."""
    leash: int
    """The descriptor of the socket to the supervisor."""
    embedded: bool
    """The store is the supervisor's own."""
    comes_first: bool
    """No other process of the set was started before."""

    @classmethod
    def read(cls, text: str) -> Self:
        return cls(**json.loads(text))

    def text(self) -> str:
        return json.dumps(asdict(self))

    @property
    def has_store_alone(self) -> bool:
        """What an earlier set held in the embedded store is nobody's now."""
        return self.embedded and self.comes_first

    @property
    def figures(self) -> list[Path]:
        """The sockets of the processes' figures, by their numbers."""
        return [Path(self.folder, f"{number}.sock") for number in range(self.count)]
