"""Answers to the requests of a waiting turn."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from smolsessions.core.errors import ConversationNotFoundError, StoreUnavailableError, TurnNotFoundError
from smolsessions.core.events import InputAnswered, Logged
from smolsessions.core.journal_keys import journal_key
from smolsessions.core.records import Turn
from smolsessions.core.requests import Answer, Answered
from smolsessions.store import codec
from smolsessions.store.partition import Scope
from smolsessions.store.scripts.loader import Argument

Accept = Callable[[Turn, bool], Awaitable[Sequence[Answer] | None]]

MOST_TRIES = 20
MOST_ANSWERED = 1000  # of a turn, of which a repeated answer is known


async def record_answers(scope: Scope, number: int, accept: Accept) -> Turn:
    """Record what `accept` returns for the turn and whether it waits. None: go on. Called again after a change."""
    for _ in range(MOST_TRIES):
        found = await scope.call("open_turn", turn=number)
        if found is None:
            raise ConversationNotFoundError
        if not found:
            raise TurnNotFoundError
        record, logged, started_at, attempts, waits, settings = found
        scope.settings(settings)
        turn = codec.decode_turn(scope.open(record, "turn", number), codec.ref_of(scope.name), number)
        if started_at and not turn.outcome:
            turn = codec.started(turn, codec.moment(started_at), codec.number(attempts), waits=True)
        accepted = await accept(turn, bool(waits))
        if accepted is not None and not accepted:
            return turn
        answers = tuple(accepted or ())
        ids = {answer.request_id for answer in answers}
        left = tuple(request for request in turn.requests if request.request_id not in ids)
        known = (*turn.answered, *(Answered(answer.request_id, answer.digest, logged + 1) for answer in answers))
        timing = turn.timing if left else turn.timing.wait_over(time.time())
        after = replace(turn, requests=left, answered=known[-MOST_ANSWERED:], timing=timing)
        # The event of the call's end shows a result.
        shown = tuple(replace(answer, result=None, images=(), files=()) for answer in answers)
        event = InputAnswered(turn.attempts, shown)
        effects: list[Argument] = []
        for answer in answers:
            key = journal_key("answer", answer.request_id)
            effects += [key, scope.seal(codec.encode_answer(answer), "effect", number, key)]
        expires = min((int(request.expires_at * 1_000_000) for request in left), default="")
        state, *rest = await scope.call(
            "answer",
            *effects,
            turn=number,
            read=record,
            record=scope.seal(codec.encode_turn(replace(after, attempts=0)), "turn", number),
            logged=logged,
            event=scope.seal(codec.encode_event(event), "event", number, event.type),
            own_channel=scope.partition.channel,
            expires=expires if answers else "",
            wake=scope.partition.wake,
        )
        if state == b"ok":
            if answers:
                scope.partition.deliver(turn.ref, number, Logged(rest[0], event))
            return after if answers else replace(after, requests=())  # it waits no more
    raise StoreUnavailableError("Others keep changing this turn; try again.")
