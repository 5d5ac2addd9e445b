"""Search in the messages and answers of conversations, which are sealed, so each record is opened."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from smolsessions.core.records import Match
from smolsessions.store import codec
from smolsessions.store.partition import Scope

MOST_READS = 200  # for one page, each of at most `TURNS_AT_ONCE` records
MOST_BYTES = 8 * 1024 * 1024  # of opened records for one page, or one record that is larger
TURNS_AT_ONCE = 100
READ_BYTES = 512 * 1024  # of sealed records in one read
BEFORE_CHARS, EXCERPT_CHARS = 40, 160


class MessageSearch:
    """Search of one page. It opens a bounded number of records."""

    def __init__(self, text: str) -> None:
        self._text = text.casefold()
        self._reads, self._bytes = MOST_READS, MOST_BYTES

    async def find(self, scope: Scope, turn: int) -> tuple[Match | None, int]:
        """Search turns from this one down. Return the match, and the turn to go on from if a bound stopped it, or 0."""
        while turn > 0:
            if self._reads <= 0 or self._bytes <= 0:
                return None, turn
            self._reads -= 1
            last = max(1, turn - TURNS_AT_ONCE + 1)
            found = await scope.call("turns", first=turn, last=last, max_bytes=READ_BYTES)
            records = found[0] if found else []
            if not records:  # deleted meanwhile
                break
            match, turn = await asyncio.to_thread(self._find_in, scope, turn, records)
            if match:
                return match, 0
        return None, 0

    def _find_in(self, scope: Scope, first: int, records: Sequence[bytes]) -> tuple[Match | None, int]:
        """Search these records. Returns the match, and the turn behind the last opened one."""
        turn = first
        for record in records:
            data = scope.open(record, "turn", turn)
            self._bytes -= len(data)
            for text in codec.decode_texts(data):
                if (at := text.casefold().find(self._text)) >= 0:
                    start = max(0, at - BEFORE_CHARS)
                    return Match(turn, " ".join(text[start : start + EXCERPT_CHARS].split())), 0
            turn -= 1
            if self._bytes <= 0:
                break
        return None, turn
