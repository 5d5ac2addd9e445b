"""Messages that are to join a running turn: they wait as queued turns behind it."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial
from typing import Any

from smolsessions.core.errors import SealBrokenError
from smolsessions.core.records import Failure, Outcome, Turn, TurnInput
from smolsessions.store import codec
from smolsessions.store.partition import Scope

log = logging.getLogger(__name__)

STEER = b"steer"  # in place of a stop flag: a message is to join the turn
LAST_SEQ = 2  # of a turn that ends right after `turn.queued`
MOST_BYTES = 1024 * 1024  # of the records of one reply


async def load(
    scope: Scope, into: Turn, claims: dict[str, Any], fence: str
) -> tuple[list[tuple[Turn, TurnInput]] | None, bool]:
    """Return the turns that wait to join turn `into`, as they end once it has taken them, and whether more are left.

    The list is None if the lease is lost. Left out, to run as turns of their own, are those of a caller with other
    claims, and those that cannot be read.
    """
    ttl_s, refused = scope.partition.options.log_ttl_s, ""
    call = partial(scope.call, "steers", turn=into.number, fence=fence, most_bytes=MOST_BYTES, log_ttl_s=ttl_s)
    while True:
        state, *rest = await call(drop=refused)
        if state == b"lost":
            return None, False
        joining, (found, more), refused = [], rest, ""
        for name, record, data in found:
            number = codec.number(name)
            try:
                turn = codec.decode_turn(scope.open(record, "turn", number), into.ref, number)
                turn_input = codec.decode_input(scope.open(data, "input", number))
            except SealBrokenError as error:
                log.warning("turn %s#%d cannot join: %s", into.ref, number, error, extra={"action": "turn.steer"})
                refused += f" {number}"
                continue
            if turn_input.claims != claims:
                refused += f" {number}"
                continue
            failure = Failure("steered", f"Turn {into.number} took this message while it ran.")
            timing = replace(turn.timing, finished_at=time.time())
            ended = replace(turn, timing=timing, outcome=Outcome("cancelled", error=failure), last_seq=LAST_SEQ)
            joining.append((ended, turn_input))
        if not refused:
            return joining, bool(more)
