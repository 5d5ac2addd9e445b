"""Claim of one turn: the reply of claim.lua, verified and decoded."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from smolsessions.core.errors import DAMAGED, SealBrokenError
from smolsessions.core.records import AgentName, AgentVersion, Head, Timing, Turn, TurnInput, TurnOptions
from smolsessions.store import codec
from smolsessions.store.conversations.head import COUNT_SENTENCE, open_chunk_list, open_head
from smolsessions.store.seal import tag_of

if TYPE_CHECKING:
    from smolsessions.core.policies import Policy
    from smolsessions.store.partition import Partition


class ClaimReply(NamedTuple):
    """One claim, in the order of claim.lua's reply."""

    scope: bytes
    turn: bytes
    fence: bytes
    attempt: int
    running_us: int
    record: bytes
    input: bytes
    generation: bytes
    head: bytes
    stored_steps: int
    logged: int
    stop_flag: bytes
    watchers: list[bytes]
    chunk_list: bytes
    crashes: int
    fingerprint: bytes
    terms: bytes
    flaw: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed turn with the state of its conversation.

    `defect` is set if that state cannot be read: the lease can only end the turn. `flaw` is damage that the script
    found: the turn fails, and its steps are kept.
    """

    turn: Turn
    fence: str
    turn_input: TurnInput
    head: Head
    version: bytes
    chunks: dict[str, bytes]
    """Tags of the variables' chunks by name, as the head was sealed over them."""
    policy: Policy | None
    fingerprint: str
    crashes: int
    logged: int
    others_watch: bool
    stop_flag: bytes
    defect: SealBrokenError | None
    flaw: SealBrokenError | None


def open_claim(partition: Partition, reply: ClaimReply) -> Claim:
    """Decode a claim. Raises `SealBrokenError` if not even its turn can be named."""
    scope, number = codec.text(reply.scope), codec.number(reply.turn)
    ref, sealer = codec.ref_of(scope), partition.sealer
    turn = Turn(ref, number, AgentVersion(AgentName(""), "", ""), "", TurnOptions(), Timing(time.time()))
    turn_input, head, chunks, policy, defect = TurnInput(), Head(), dict[str, bytes](), None, None
    try:
        policy = sealer.terms(scope, reply.terms).policy
        head = open_head(sealer, scope, reply.generation, reply.head)
        chunks = open_chunk_list(sealer, scope, head, reply.chunk_list)
        turn = codec.decode_turn(sealer.open(reply.record, scope, "turn", number), ref, number)
        turn_input = codec.decode_input(sealer.open(reply.input, scope, "input", number))
        _check_claim(reply, turn, head)
    except SealBrokenError as error:
        defect = error
    except (ValueError, TypeError, KeyError) as error:  # sealed with our key, but not in this release's format
        defect = SealBrokenError(f"a stored record cannot be read ({type(error).__name__})")
    return Claim(
        turn=codec.started(turn, time.time() - reply.running_us / 1_000_000, reply.attempt),
        fence=reply.fence.decode(),
        turn_input=turn_input,
        head=head,
        version=tag_of(reply.head) if reply.head else b"",
        chunks=chunks,
        policy=policy,
        fingerprint=reply.fingerprint.decode(errors="replace"),
        crashes=reply.crashes,
        logged=reply.logged,
        others_watch=any(channel != partition.channel.encode() for channel in reply.watchers),
        stop_flag=reply.stop_flag,
        defect=defect,
        flaw=SealBrokenError(DAMAGED) if reply.flaw else None,
    )


def _check_claim(reply: ClaimReply, turn: Turn, head: Head) -> None:
    if turn.outcome:
        raise SealBrokenError(DAMAGED)
    # Only an earlier attempt leaves steps behind the head.
    if reply.stored_steps < head.count or (reply.attempt == 1 and reply.stored_steps > head.count):
        raise SealBrokenError(COUNT_SENTENCE)
