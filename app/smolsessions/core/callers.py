"""Callers: the owner, conversation and claims on whose behalf an agent works."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from smolsessions.core.errors import InvalidRequestError, MalformedError
from smolsessions.core.json_data import read_json, storable

MAX_CLAIMS_BYTES = 4096
_NO_CLAIMS = "{}"
_set = object.__setattr__


class Caller:
    """Caller of a turn, as the service knows it. It is read-only.

    A test of a factory may make one itself: `Caller("acme", "c1", {"plan": "pro"})`. This is no dataclass: the fields
    of a dataclass that a tool returns are shown in events and prompts.
    """

    __slots__ = ("_claims", "_metadata", "conversation_id", "owner")
    owner: str
    conversation_id: str
    _claims: str
    _metadata: Callable[[], dict[str, Any]]

    def __init__(
        self,
        owner: str,
        conversation_id: str,
        claims: Mapping[str, Any] | None = None,
        metadata: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        """`claims` is JSON data. `metadata` returns the conversation's metadata."""
        _set(self, "owner", owner)
        _set(self, "conversation_id", conversation_id)
        _set(self, "_claims", json.dumps(claims, sort_keys=True) if claims else _NO_CLAIMS)
        _set(self, "_metadata", metadata)

    @property
    def claims(self) -> dict[str, Any]:
        """Claims of the caller's API key, as a new copy: a change of it changes no caller."""
        claims: dict[str, Any] = json.loads(self._claims)
        return claims

    def metadata(self) -> dict[str, Any]:
        """Return the conversation's metadata as of the start of the turn, or of the attempt that continues it."""
        return self._metadata()

    def has_claims_of(self, other: Caller) -> bool:
        return self.owner == other.owner and self._claims == other._claims

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{name} of a caller cannot be set; it is read-only")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Caller) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def __repr__(self) -> str:
        return f"Caller({self.owner!r}, {self.conversation_id!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Caller, (self.owner, self.conversation_id, self.claims, partial(dict, self.metadata()))

    def _parts(self) -> tuple[object, ...]:
        return self.owner, self.conversation_id, self._claims, self._metadata


DUMMY = Caller("check", "check")
"""Caller of the check at start, without claims or metadata."""


def parse_claims(text: str) -> dict[str, Any]:
    """Parse the claims of an API key. Raises `ValueError` with a sentence."""
    if len(text.encode(errors="replace")) > MAX_CLAIMS_BYTES:
        raise ValueError(f"its claims are longer than {MAX_CLAIMS_BYTES} bytes; keep them short")
    try:
        claims = storable(read_json(text.encode()))
    except (MalformedError, InvalidRequestError, ValueError):
        claims = None
    if type(claims) is not dict:
        raise ValueError('its claims are no JSON object; write them as {"plan": "pro"}, or leave them out')
    return claims
