"""asyncio protocol of a connection that redis-py has opened: it parses replies as they arrive, without a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from hiredis import Reader
from redis.asyncio.connection import AbstractConnection, DefaultParser
from redis.exceptions import InvalidResponse, RedisError

from smolsessions.store.connection.commands import Reply, refuse

_transport_of = attrgetter("_writer.transport")  # redis-py has no public name for it
_INCOMPLETE = object()


class ReplyProtocol(asyncio.Protocol):
    """Takes over an open, idle connection. `on_reply` gets each reply or pushed message, errors included.

    A Redis or OS error that `on_reply` raises ends the connection.
    """

    def __init__(
        self, connection: AbstractConnection, on_reply: Callable[[Any], None], on_resume: Callable[[], None]
    ) -> None:
        """`on_resume`: the write buffer has room again."""
        self._on_reply, self._on_resume = on_reply, on_resume
        parse_error: Any = DefaultParser.parse_error
        self._reader = Reader(protocolError=InvalidResponse, replyError=parse_error, notEnoughData=_INCOMPLETE)
        self._lost: Reply = asyncio.get_running_loop().create_future()
        self.is_writable = True
        self._transport: asyncio.Transport = _transport_of(connection)
        self._transport.set_protocol(self)

    def write(self, packet: bytes) -> None:
        """Write a packed command. uvloop sends all packets of one round of the event loop together."""
        try:
            self._transport.write(packet)
        except RuntimeError as error:  # raised by uvloop if the transport was reset
            refuse(self._lost, ConnectionError(str(error)))

    async def wait_lost(self) -> None:
        """Wait until the connection is lost, and raise the reason."""
        await self._lost

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _INCOMPLETE:
                self._on_reply(reply)
        except (RedisError, OSError) as error:
            refuse(self._lost, error)
            self._transport.close()

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        self._on_resume()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_writable = False
        refuse(self._lost, error or ConnectionError("the store has closed the connection"))
