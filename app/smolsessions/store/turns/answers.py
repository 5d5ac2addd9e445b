"""Answers to the requests of a waiting turn."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

from smolsessions.core.errors import ConversationNotFoundError, StoreUnavailableError, TurnNotFoundError
from smolsessions.core.events import InputAnswered, Logged
from smolsessions.core.frozen import changed
from smolsessions.core.records import Turn
from smolsessions.core.requests import Answer, Answered, answer_key
from smolsessions.store import codec
from smolsessions.store.partition import Scope
from smolsessions.store.scripts.loader import flattened

Accept = Callable[[Turn, bool], Awaitable[Sequence[Answer] | None]]

MOST_TRIES = 20
MOST_ANSWERED = 1000  # of a turn, of which a repeated answer is known


async def record_answers(scope: Scope, number: int, accept: Accept) -> Turn:
    """Record the answers that `accept` returns for a turn. None: let the turn go on without one.

    `accept` gets the turn and whether it waits, again after each write of another caller.
    """
    for _ in range(MOST_TRIES):
        turn, record, logged, waits = await _open_turn(scope, number)
        answers = await accept(turn, waits)
        if answers is not None and not answers:
            return turn
        after = _with_answers(turn, answers or (), logged + 1)
        event = InputAnswered(turn.attempts, tuple(answers or ()))
        state, *rest = await scope.call(
            "answer",
            *flattened([_effect(scope, number, answer) for answer in answers or ()]),
            turn=number,
            read=record,
            record=scope.seal(codec.encode_turn(changed(after, attempts=0)), "turn", number),
            logged=logged,
            event=scope.seal(codec.encode_event(event), "event", number, event.type),
            own_channel=scope.partition.channel,
            expires=_expires(after) if answers else "",
            wake=scope.partition.wake,
        )
        if state == b"ok":
            if answers:
                scope.partition.log.deliver(turn.ref, number, Logged(rest[0], event))
            return after if answers else changed(after, requests=())  # it waits no more
    raise StoreUnavailableError("Others keep changing this turn; try again.")


async def _open_turn(scope: Scope, number: int) -> tuple[Turn, bytes, int, bool]:
    found = await scope.call("open_turn", turn=number)
    if found is None:
        raise ConversationNotFoundError
    if not found:
        raise TurnNotFoundError
    record, logged, at, attempts, waits, settings = found
    scope.settings(settings)
    turn = codec.decode_turn(scope.open(record, "turn", number), codec.ref_of(scope.name), number)
    if at and not turn.outcome:
        turn = codec.started(turn, codec.moment(at), codec.number(attempts), waits=True)
    return turn, record, logged, bool(waits)


def _with_answers(turn: Turn, answers: Sequence[Answer], seq: int) -> Turn:
    ids = {answer.request_id for answer in answers}
    left = tuple(request for request in turn.requests if request.request_id not in ids)
    answered = (*turn.answered, *(Answered(answer.request_id, answer.digest, seq) for answer in answers))
    timing = turn.timing if left else turn.timing.wait_over(time.time())
    return changed(turn, requests=left, answered=answered[-MOST_ANSWERED:], timing=timing)


def _effect(scope: Scope, number: int, answer: Answer) -> tuple[str, bytes]:
    key = answer_key(answer.request_id)
    return key, scope.seal(codec.encode_answer(answer), "effect", number, key)


def _expires(turn: Turn) -> int | str:
    return min((int(request.expires_at * 1_000_000) for request in turn.requests), default="")
