"""Seals and opens what belongs to conversations; of a fork also what it has of those that it was forked from."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

from smolsessions.core.errors import SealBrokenError
from smolsessions.core.records import Terms
from smolsessions.store import codec

if TYPE_CHECKING:
    from smolsessions.core.records import Origin
    from smolsessions.store.seal import Sealer

MOST_KNOWN = 10_000
COPIED = frozenset({"turn", "log", "event", "step", "image", "variable", "variables"})
OF_TURNS = frozenset({"turn", "log", "event"})
"""What a fork has as its origin sealed it; all else of it is its own, but for the heads of the turns before it."""
NO_TERMS = Terms()


class ConversationSealer:
    """A sealer that knows where forks come from. A fork holds the very blobs of its origin: copying them is cheap."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer
        self.seal = sealer.seal
        self._known: OrderedDict[str, tuple[bytes, Terms]] = OrderedDict()

    def terms(self, scope: str, blob: bytes | None) -> Terms:
        """Open a conversation's terms, if it has any; from now on what it has of its origins can be opened."""
        if not blob:
            self._known.pop(scope, None)
            return NO_TERMS
        known = self._known.get(scope)
        if known is None or known[0] != blob:
            known = (blob, codec.terms_from_bytes(self._sealer.open(blob, scope, "terms")))
            self._known[scope] = known
        self._known.move_to_end(scope)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return known[1]

    def open(self, blob: bytes, scope: str, *place: str | int) -> bytes:
        """Open what was sealed for this place in the conversation, or in one that it was forked from."""
        return self._open(blob, scope, place, self._origins(scope) if place[0] in COPIED else ())

    def open_past_head(self, blob: bytes, scope: str) -> bytes:
        """Open a head that the conversation, or one that it was forked from, had after an earlier turn."""
        return self._open(blob, scope, ("head",), self._origins(scope))

    def _origins(self, scope: str) -> tuple[Origin, ...]:
        known = self._known.get(scope)
        return known[1].lineage if known else ()

    def _open(self, blob: bytes, scope: str, place: tuple[str | int, ...], origins: tuple[Origin, ...]) -> bytes:
        try:
            return self._sealer.open(blob, scope, *place)
        except SealBrokenError:
            for origin in origins:
                if place[0] in OF_TURNS and int(place[1]) > origin.turn:
                    break  # later than the fork
                with suppress(SealBrokenError):
                    return self._sealer.open(blob, origin.scope, *place)
            raise
