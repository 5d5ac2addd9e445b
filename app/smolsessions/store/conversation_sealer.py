"""Sealer of conversations that also opens the blobs that a fork shares with its origins."""

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
"""Blobs that a fork copies as its origin sealed them."""
OF_TURNS = frozenset({"turn", "log", "event"})
NO_TERMS = Terms()


class ConversationSealer:
    """Caches the terms of conversations, which name the origins of a fork."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer
        self.seal = sealer.seal
        self._known: OrderedDict[str, tuple[bytes, Terms]] = OrderedDict()

    def terms(self, scope: str, blob: bytes | None) -> Terms:
        """Open a conversation's terms, if it has any, and remember its origins."""
        if not blob:
            self._known.pop(scope, None)
            return NO_TERMS
        known = self._known.get(scope)
        if known is None or known[0] != blob:
            known = (blob, codec.decode_terms(self._sealer.open(blob, scope, "terms")))
            self._known[scope] = known
        self._known.move_to_end(scope)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return known[1]

    def open(self, blob: bytes, scope: str, *place: str | int) -> bytes:
        """Open a blob that was sealed for this place in the conversation or in one of its origins."""
        return self._open(blob, scope, place, is_copied=place[0] in COPIED)

    def open_past_head(self, blob: bytes, scope: str) -> bytes:
        """Open a head that the conversation or one of its origins had after an earlier turn."""
        return self._open(blob, scope, ("head",), is_copied=True)

    def _open(self, blob: bytes, scope: str, place: tuple[str | int, ...], *, is_copied: bool) -> bytes:
        try:
            return self._sealer.open(blob, scope, *place)
        except SealBrokenError:
            for origin in self._origins(scope) if is_copied else ():
                if place[0] in OF_TURNS and int(place[1]) > origin.turn:
                    break  # later than the fork
                with suppress(SealBrokenError):
                    return self._sealer.open(blob, origin.scope, *place)
            raise

    def _origins(self, scope: str) -> tuple[Origin, ...]:
        known = self._known.get(scope)
        return known[1].lineage if known else ()
