"""What the earlier attempts at a turn left in the store, for the one that replays them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.events import Event


@dataclass(frozen=True, slots=True)
class Past:
    """The journal's `effects` by key, the keys of calls that had `begun`, the log's `events`, and the finished `steps`.

    A step comes as its bytes, the attachments of all of them beside it.
    """

    effects: dict[str, bytes]
    begun: frozenset[str]
    events: tuple[Event, ...]
    steps: tuple[bytes, ...]
    attachments: dict[str, bytes]
