"""Why a turn is to stop: as the scripts flag it, and what the turn's record says of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from smolsessions.core.records import Failure, Outcome

_REASONS: dict[bytes, Literal["interrupted", "rolled_back"]] = {b"interrupt": "interrupted", b"rollback": "rolled_back"}
_STRENGTH = ("cancelled", "interrupted", "rolled_back")
CANCEL = b"1"


@dataclass(frozen=True, slots=True)
class Stop:
    """A wish that a turn stops; `by` is the number of the turn that wants it, 0 where a caller does."""

    reason: Literal["cancelled", "interrupted", "rolled_back"] = "cancelled"
    by: int = 0

    def replaces(self, other: Stop | None) -> bool:
        """A rollback counts more than an interrupt, that more than a plain stop; else the first."""
        return other is None or _STRENGTH.index(self.reason) > _STRENGTH.index(other.reason)


def stop_of(flag: bytes) -> Stop:
    """Read `interrupt:N` or `rollback:N`; all else is a plain stop."""
    kind, _, number = flag.partition(b":")
    if kind in _REASONS and number.isdigit():
        return Stop(_REASONS[kind], int(number))
    return Stop()


def rolled_back(stop: Stop | None) -> int:
    """Give the number of the turn that wants the steps dropped; 0 where none does."""
    return stop.by if stop and stop.reason == "rolled_back" else 0


def as_stopped(outcome: Outcome, stop: Stop | None) -> Outcome:
    """Say in the outcome who stopped the turn. What ended before an interrupt stays; nothing outlasts a rollback."""
    if stop is None or not stop.by:
        return outcome
    if stop.reason == "rolled_back":
        failure = Failure("rolled_back", f"Turn {stop.by} rolled this turn back; its steps are dropped.")
        return Outcome("cancelled", tool_calls=outcome.tool_calls, usage=outcome.usage, error=failure)
    if outcome.status != "cancelled":
        return outcome
    failure = Failure("interrupted", f"Turn {stop.by} interrupted this turn; its finished steps are kept.")
    return replace(outcome, error=failure)
