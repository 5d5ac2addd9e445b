"""Claim of one turn: the reply of claim.lua, verified and decoded, and requests to stop the turn."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from smolsessions.core.errors import DAMAGED, SealBrokenError
from smolsessions.core.memories import Head
from smolsessions.core.records import (
    NO_SETTINGS,
    AgentName,
    AgentVersion,
    ConversationSettings,
    Failure,
    Outcome,
    Timing,
    Turn,
    TurnInput,
    TurnOptions,
)
from smolsessions.store import codec
from smolsessions.store.conversations.head import check_count, open_chunk_list, open_head
from smolsessions.store.partition import Scope

_REASONS: dict[bytes, Literal["interrupted", "rolled_back"]] = {b"interrupt": "interrupted", b"rollback": "rolled_back"}
STRENGTH = ("cancelled", "interrupted", "rolled_back")  # a later one counts, if several stops are requested


class ClaimReply(NamedTuple):
    """One claim, in the order of claim.lua's reply. `flaw` is damage that the script found: the turn fails."""

    scope: bytes
    turn: bytes
    fence: bytes
    attempt: int
    running_us: int
    record: bytes
    input: bytes
    head: bytes
    stored_steps: int
    logged: int
    stop_flag: bytes
    watchers: list[bytes]
    chunk_list: bytes
    crashes: int
    fingerprint: bytes
    settings: bytes
    flaw: bytes
    conversation: bytes
    """Sealed record of the conversation, with its metadata."""


@dataclass(slots=True)
class Claim:
    """A claimed turn with the state of its conversation."""

    reply: ClaimReply
    turn: Turn
    turn_input: TurnInput = field(default_factory=TurnInput)
    head: Head = field(default_factory=Head)
    chunks: dict[str, bytes] = field(default_factory=dict)
    """Tags of the variables' chunks by name, as the head was sealed over them."""
    settings: ConversationSettings = NO_SETTINGS
    defect: SealBrokenError | None = None
    """Set if the state cannot be read. The lease can only end the turn."""


def open_claim(scope: Scope, reply: ClaimReply, submitted: tuple[Turn, TurnInput] | None = None) -> Claim:
    """Decode a claim, except records just `submitted` here. Raises `SealBrokenError` if its turn cannot be named."""
    number, ref = codec.number(reply.turn), codec.ref_of(scope.name)
    claim = Claim(reply, Turn(ref, number, AgentVersion(AgentName(""), "", ""), "", TurnOptions(), Timing(time.time())))
    try:
        claim.settings = scope.settings(reply.settings)
        claim.head = open_head(scope, reply.head)
        claim.chunks = open_chunk_list(scope, claim.head, reply.chunk_list)
        if submitted:
            claim.turn, claim.turn_input = submitted
        else:
            claim.turn = codec.decode_turn(scope.open(reply.record, "turn", number), ref, number)
            claim.turn_input = codec.decode_input(scope.open(reply.input, "input", number))
        check_count(claim.head, reply.stored_steps, may_be_more=reply.attempt > 1)  # an earlier attempt left steps
        if claim.turn.outcome:
            claim.defect = SealBrokenError(DAMAGED)
    except SealBrokenError as error:
        claim.defect = error
    except (ValueError, TypeError, KeyError) as error:  # sealed with our key, but not in this release's format
        claim.defect = SealBrokenError(f"a stored record cannot be read ({type(error).__name__})")
    claim.turn = codec.started(claim.turn, time.time() - reply.running_us / 1_000_000, reply.attempt)
    return claim


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Request that a turn stops, made by turn `by`, or by a caller (0)."""

    reason: Literal["cancelled", "interrupted", "rolled_back"] = "cancelled"
    by: int = 0

    @classmethod
    def from_flag(cls, flag: bytes) -> StopRequest:
        """Parse `interrupt:N` or `rollback:N`. Everything else is a plain stop."""
        kind, _, number = flag.partition(b":")
        return cls(_REASONS[kind], int(number)) if kind in _REASONS and number.isdigit() else cls()

    @property
    def rollback_by(self) -> int:
        return self.by if self.reason == "rolled_back" else 0

    def apply(self, outcome: Outcome) -> Outcome:
        """Name the stopping turn in the outcome. An interrupt keeps an outcome other than cancelled."""
        if self.rollback_by:
            failure = Failure("rolled_back", f"Turn {self.by} rolled this turn back; its steps are dropped.")
            return Outcome("cancelled", tool_calls=outcome.tool_calls, usage=outcome.usage, error=failure)
        if not self.by or outcome.status != "cancelled":
            return outcome
        failure = Failure("interrupted", f"Turn {self.by} interrupted this turn; its finished steps are kept.")
        return replace(outcome, error=failure)
