"""Whether all processes on a store acknowledge the same: where they differ, the weaker word counts."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from redis.exceptions import ResponseError

from smolsessions.core.errors import StoreUnavailableError

if TYPE_CHECKING:
    from smolsessions.store.connection.pipeline import Pipeline

log = logging.getLogger(__name__)

LOOK_S = 2.0
GONE_S = 5  # after which a process that says nothing is not there any more


class Durability:
    """Says of this process which durability it has, and looks whether another one says otherwise."""

    def __init__(self, line: Pipeline, partition: str, *, replicated: bool) -> None:
        self._line = line
        self._mine, self._other = ("replicated", "primary") if replicated else ("primary", "replicated")
        self._partition = partition
        self._differs = False

    async def run(self) -> NoReturn:
        """Look until cancelled. A rolling update that changes the setting is told, too, when it is over."""
        while True:
            with suppress(StoreUnavailableError, ResponseError):
                self._line.send("SET", self._key(self._mine), 1, "EX", GONE_S, told=False)
                differs = bool(await self._line.send("EXISTS", self._key(self._other), told=False))
                if differs is not self._differs:
                    self._say(differs)
            await asyncio.sleep(LOOK_S)

    def _say(self, differs: bool) -> None:
        self._differs = differs
        if differs:
            log.warning(
                "another process on this store has SMOLSESSIONS_DURABILITY=%s, this one %s: a failover may lose what "
                "was acknowledged; set the same for all",
                self._other,
                self._mine,
                extra={"action": "durability.differs"},
            )
        else:
            log.info(
                "all processes on this store have SMOLSESSIONS_DURABILITY=%s now",
                self._mine,
                extra={"action": "durability.agrees"},
            )

    def _key(self, which: str) -> str:
        return f"{self._partition}:durability:{which}"
