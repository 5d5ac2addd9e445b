"""Callers: the owner, conversation and claims on whose behalf an agent works."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from smolsessions.core.errors import InvalidRequestError, MalformedError
from smolsessions.core.json_data import read_json, storable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_CLAIMS_BYTES = 4096
NO_CLAIMS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Caller:
    """Caller of a turn, as the service knows it.

    `claims` are those of the caller's API key, as read-only JSON data: mappings and tuples. A test of a factory may
    make one itself: `Caller("acme", "c1", {"plan": "pro"})`.
    """

    owner: str
    conversation_id: str
    claims: Mapping[str, Any] = field(default_factory=lambda: NO_CLAIMS, hash=False)
    _metadata: Callable[[], dict[str, Any]] = field(default=dict, hash=False, repr=False)

    def __post_init__(self) -> None:
        if type(self.claims) is not MappingProxyType:
            object.__setattr__(self, "claims", _read_only(self.claims))

    def metadata(self) -> dict[str, Any]:
        """Return the conversation's metadata as of the turn's start."""
        return self._metadata()


DUMMY = Caller("check", "check")
"""Caller of the check at start, without claims or metadata."""


def parse_claims(text: str) -> dict[str, Any]:
    """Parse the claims of an API key. Raises `ValueError` with a sentence."""
    if len(text.encode()) > MAX_CLAIMS_BYTES:
        raise ValueError(f"its claims are longer than {MAX_CLAIMS_BYTES} bytes; keep them short")
    try:
        claims = storable(read_json(text.encode()))
    except (MalformedError, InvalidRequestError, ValueError):
        claims = None
    if type(claims) is not dict:
        raise ValueError('its claims are no JSON object; write them as {"plan": "pro"}, or leave them out')
    return claims


def claims_text(claims: dict[str, Any]) -> str:
    """Return claims as a column of the keys file."""
    return json.dumps(claims, separators=(",", ":"))


def _read_only(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType({name: _read_only(part) for name, part in value.items()})
    return tuple(map(_read_only, value)) if isinstance(value, list) else value
