"""Durability beyond one server: what it says is held back until a replica has all that it may rest on."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any, NoReturn

from smolsessions.core.errors import StoreUnavailableError
from smolsessions.store.connection.command import write

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

    from smolsessions.store.connection.command import Command

REPLICAS = 1
WAIT_MS = 1000
SILENCE_S = 5.0  # after which the server is given up, not the replica
_WRITE = "#!lua flags=allow-oom\nredis.call('SET', KEYS[1], 1)"  # a full store can be read, and deleted from
_SHA = hashlib.sha1(_WRITE.encode(), usedforsecurity=False).hexdigest()
NO_WITNESS = (
    "No replica of the store has confirmed it in time (SMOLSESSIONS_DURABILITY=replicated), so it may or may not last: "
    "look before you send it again, unless it has an Idempotency-Key."
)


class ReplicaAck:
    """Gives answers their values once a replica has confirmed a write that came after them.

    `WAIT` says how far replicas are with the writes of its own connection, and holds up all that is sent behind it. So
    it has a connection of its own, with a write of its own: replicas take writes in order, so one that has this write
    has all before it. What comes to be held meanwhile shares the next one.
    """

    opening: Command = ("SCRIPT", "LOAD", _WRITE)
    """What its server is told before."""

    def __init__(self, partition: str) -> None:
        self._questions: list[Command] = [("EVALSHA", _SHA, 1, f"{partition}:witness"), ("WAIT", REPLICAS, WAIT_MS)]
        self._held: list[tuple[asyncio.Future[Any], Any]] = []
        self._asking: list[tuple[asyncio.Future[Any], Any]] = []
        self._news = asyncio.Event()

    def hold(self, answer: asyncio.Future[Any], value: Any) -> None:
        """Give the answer its value when it is certain, or an error."""
        self._held.append((answer, value))
        self._news.set()

    async def run(self, connection: AbstractConnection) -> NoReturn:
        """Confirm what is held. Raises a `TimeoutError` where no replica does: another server may be primary by now."""
        while True:
            await self._news.wait()
            self._news.clear()
            self._asking, self._held = self._held, []
            if not await self._is_confirmed(connection):
                self.give_up(StoreUnavailableError(NO_WITNESS))
                raise TimeoutError("no replica has confirmed what was written")
            for answer, value in self._asking:
                if not answer.done():
                    answer.set_result(value)
            self._asking = []

    def give_up(self, error: StoreUnavailableError) -> None:
        """Refuse all that is held: the server that said it is gone."""
        for answer, _ in [*self._asking, *self._held]:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # seen: a write that nobody awaits must not be reported as never retrieved
        self._asking, self._held = [], []

    async def _is_confirmed(self, connection: AbstractConnection) -> bool:
        async with asyncio.timeout(SILENCE_S):
            await write(connection, self._questions)
            await connection.read_response()
            found: int = await connection.read_response()
        return found >= REPLICAS
