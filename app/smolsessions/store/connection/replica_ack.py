"""Durability beyond one server: replies are held until a replica has acknowledged the writes before them."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, NoReturn

from redis.asyncio.connection import AbstractConnection

from smolsessions.core.errors import StoreUnavailableError
from smolsessions.store.connection.commands import Command, Reply, ask, refuse, resolve

REPLICAS = 1
WAIT_MS = 1000
SILENCE_S = 5.0  # a longer silence is the fault of the server, not of its replica
_WRITE = "#!lua flags=allow-oom\nredis.call('SET', KEYS[1], 1)"  # reads and deletes must work on a full store, too
_SHA = hashlib.sha1(_WRITE.encode(), usedforsecurity=False).hexdigest()
NO_ACK = (
    "No replica of the store has confirmed it in time (SMOLSESSIONS_DURABILITY=replicated), so it may or may not last: "
    "look before you send it again, unless it has an Idempotency-Key."
)


class ReplicaAck:
    """Holds replies until a replica has confirmed a later write.

    `WAIT` covers the writes of its own connection, and blocks all commands behind it. So it has a connection and a
    write of its own: a replica that has this write has all writes before it. Replies that arrive during a `WAIT`
    share the next one.
    """

    opening: Command = ("SCRIPT", "LOAD", _WRITE)

    def __init__(self, partition: str) -> None:
        self._commands: list[Command] = [("EVALSHA", _SHA, 1, f"{partition}:ack"), ("WAIT", REPLICAS, WAIT_MS)]
        self._held: list[tuple[Reply, Any]] = []
        self._waiting: list[tuple[Reply, Any]] = []
        self._has_held = asyncio.Event()

    def hold(self, reply: Reply, value: Any) -> None:
        """Resolve the reply with the value once it is acknowledged, or fail it."""
        self._held.append((reply, value))
        self._has_held.set()

    async def run(self, connection: AbstractConnection) -> NoReturn:
        """Resolve held replies. Raises `TimeoutError` if no replica confirms: another server may be primary now."""
        while True:
            await self._has_held.wait()
            self._has_held.clear()
            self._waiting, self._held = self._held, []
            async with asyncio.timeout(SILENCE_S):
                replicas: int = await ask(connection, self._commands)
            if replicas < REPLICAS:
                self.fail(StoreUnavailableError(NO_ACK))
                raise TimeoutError("no replica has confirmed the last writes")
            for reply, value in self._waiting:
                resolve(reply, value)
            self._waiting = []

    def fail(self, error: StoreUnavailableError) -> None:
        """Fail all held replies: the connection to their server is lost."""
        for reply, _ in [*self._waiting, *self._held]:
            refuse(reply, error)
        self._waiting, self._held = [], []
