"""Redis commands as packets, and the futures of their replies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hiredis import pack_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from redis.asyncio.connection import AbstractConnection

Command = tuple[str | bytes | int, ...]
Reply = asyncio.Future[Any]


async def write(connection: AbstractConnection, commands: Iterable[Command]) -> None:
    """Send commands in one packet. Their replies come in order."""
    # redis-py packs in Python, which costs a tenth of a short turn. (The stub means any length.)
    packed: list[bytes] = [pack_command(command) for command in commands]  # type: ignore[arg-type]
    try:
        await connection.send_packed_command(packed, check_health=False)
    except RuntimeError as error:  # raised by uvloop if the transport was reset
        raise ConnectionError(str(error)) from error


async def ask(connection: AbstractConnection, commands: Sequence[Command]) -> Any:
    """Send commands, and return the last reply."""
    await write(connection, commands)
    reply: Any = None
    for _ in commands:
        reply = await connection.read_response()
    return reply


def resolve(reply: Reply, value: Any) -> None:
    if not reply.done():
        reply.set_result(value)


def refuse(reply: Reply, error: Exception) -> None:
    if not reply.done():
        reply.set_exception(error)
        reply.exception()  # marks it as retrieved: not every caller awaits its reply
