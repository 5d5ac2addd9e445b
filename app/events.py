"""What a subscriber sees of a turn: a closed union of frozen events. Each is written once, to the turn's log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from app.records import Turn  # noqa: TC001 - pydantic reads the annotations at run time


@dataclass(frozen=True, slots=True)
class TurnQueued:
    """The turn was accepted."""

    type: ClassVar[Literal["turn.queued"]] = "turn.queued"


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """A worker plays the turn; `attempt` counts the workers that did."""

    type: ClassVar[Literal["turn.started"]] = "turn.started"
    attempt: int
    at: float


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The final event, exactly one: `turn.finished`, `turn.failed` or `turn.cancelled`. It holds the whole turn."""

    result: Turn

    @property
    def type(self) -> Literal["turn.finished", "turn.failed", "turn.cancelled"]:
        assert self.result.outcome, "a turn that ended has an outcome"
        return FINAL[self.result.outcome.status]


Event = TurnQueued | TurnStarted | TurnEnded

FINAL: dict[Literal["finished", "failed", "cancelled"], Literal["turn.finished", "turn.failed", "turn.cancelled"]] = {
    "finished": "turn.finished",
    "failed": "turn.failed",
    "cancelled": "turn.cancelled",
}


@dataclass(frozen=True, slots=True)
class Logged:
    """An event with its place in the turn's log: `seq` counts from 1."""

    seq: int
    event: Event
