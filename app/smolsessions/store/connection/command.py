"""Commands as they go over the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hiredis import pack_command

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis.asyncio.connection import AbstractConnection

Command = tuple[str | bytes | int, ...]


async def write(connection: AbstractConnection, commands: Iterable[Command]) -> None:
    """Send commands in one packet; their answers come in order."""
    # Not packed in redis-py's own way, which is in Python: a tenth of a short turn. (The stub means any length.)
    packed: list[bytes] = [pack_command(command) for command in commands]  # type: ignore[arg-type]
    try:
        await connection.send_packed_command(packed, check_health=False)
    except RuntimeError as error:  # uvloop's word for a transport that was reset meanwhile
        raise ConnectionError(str(error)) from error
