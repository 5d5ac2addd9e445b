"""How a run is left: by an exception that no agent and no tool means to catch."""

from __future__ import annotations


class TurnStopped(BaseException):
    """The turn is to stop. Where something does catch it, the next call raises it again."""


class ReplayDivergedError(TurnStopped):
    """A replay asks for what the journal does not hold, while it still holds what tools did."""
