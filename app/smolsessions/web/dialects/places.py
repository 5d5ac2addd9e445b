"""Places of turns, the ids that name them, and keys of requests."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Any, NamedTuple

from pydantic_core import to_json

from smolsessions.core.errors import NotFoundError
from smolsessions.core.records import Turn

CONVERSATION_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
IN_TURN = ":.{1,400}"  # pattern for the rest of an id of something in a turn


class Place(NamedTuple):
    """Conversation, and number of a turn in it."""

    conversation_id: str
    turn: int

    def __str__(self) -> str:
        return f"{self.conversation_id}:{self.turn}"


def place_of(turn: Turn) -> Place:
    return Place(turn.ref.id, turn.number)


def place_in(text: str, rest: str = "") -> Place | None:
    """Return the place that an id names, as `conversation:turn` and what the pattern `rest` allows."""
    found = re.fullmatch(rf"({CONVERSATION_ID.pattern}):([1-9][0-9]{{0,8}}){rest}", text, re.DOTALL)
    return found and Place(found[1], int(found[2]))


def new_id() -> str:
    """Return an id for a new conversation."""
    return secrets.token_hex(12)


def turn_of_request(request_id: str) -> Place:
    """Return the turn that a request of a waiting turn belongs to. Raises `NotFoundError`."""
    if place := place_in(request_id, IN_TURN):
        return place
    raise NotFoundError(f"No open request has the id {request_id[:80]!r}.")


def key_digest(*parts: Any) -> str:
    """Return a short hash of JSON data, for keys."""
    return hashlib.sha256(to_json(parts)).hexdigest()[:40]
