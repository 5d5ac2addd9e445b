"""Redis commands as packets, and the futures of their replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from hiredis import pack_command
from redis.asyncio.connection import AbstractConnection

Command = tuple[str | bytes | int, ...]
Reply = asyncio.Future[Any]
pack: Callable[[Command], bytes] = pack_command  # type: ignore[assignment]  # its stub allows one argument


async def ask(connection: AbstractConnection, commands: Iterable[Command]) -> Any:
    """Send commands in one packet, and return the last reply."""
    packed = [pack(command) for command in commands]
    try:
        await connection.send_packed_command(packed, check_health=False)
    except RuntimeError as error:  # raised by uvloop if the transport was reset
        raise ConnectionError(str(error)) from error
    reply: Any = None
    for _ in packed:
        reply = await connection.read_response()
    return reply


def resolve(reply: Reply, value: Any) -> None:
    if not reply.done():
        reply.set_result(value)


def refuse(reply: Reply, error: Exception) -> None:
    if not reply.done():
        reply.set_exception(error)
        reply.exception()  # marks it as retrieved: not every caller awaits its reply
