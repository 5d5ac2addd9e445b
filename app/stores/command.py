"""A command as it goes over the wire."""

from __future__ import annotations

from hiredis import pack_command

Command = tuple[str | bytes | int, ...]


def packed(command: Command) -> bytes:
    """Put a command in the protocol's form."""
    # Not redis-py's own way, which is in Python: a tenth of a short turn. (The stub means tuples of any length.)
    data: bytes = pack_command(command)  # type: ignore[arg-type]
    return data
