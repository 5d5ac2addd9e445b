"""Cursors of lists: opaque texts that hold a position, and a check of the list that they belong to."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b

from smolsessions.core.errors import InvalidRequestError

CHECK_BYTES = 6
NUMBER = re.compile(r"[0-9]{1,10}")
PLACE = re.compile(r"[0-9]{1,16} [A-Za-z0-9_-]{1,64}( [0-9]{1,10})?")


def cursor_at(position: str | None, *of: str) -> str | None:
    """Return the cursor of a position in a list, which `of` names with its order and filters."""
    if position is None:
        return None
    check = blake2b("\0".join((*of, position)).encode(errors="replace"), digest_size=CHECK_BYTES).digest()
    return urlsafe_b64encode(check + position.encode()).decode().rstrip("=")


def position_of(cursor: str | None, form: re.Pattern[str], *of: str) -> str | None:
    """Return the position of a cursor. Raises `InvalidRequestError` if it is damaged, or of another list."""
    if cursor is None:
        return None
    try:
        found = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))[CHECK_BYTES:].decode("ascii")
    except ValueError:
        found = ""
    if not form.fullmatch(found) or cursor_at(found, *of) != cursor:
        raise InvalidRequestError.in_parameter(
            "query", "cursor", "is no next_cursor of this list with these filters and this order"
        )
    return found


def number_at(cursor: str | None, *of: str) -> int | None:
    position = position_of(cursor, NUMBER, *of)
    return None if position is None else int(position)
