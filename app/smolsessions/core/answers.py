"""Checks of the answers that a person sends to a waiting turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smolsessions.core.errors import AlreadyAnsweredError, InvalidRequestError, NotWaitingError, RequestNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smolsessions.core.records import Turn
    from smolsessions.core.requests import Answer, InputRequest

    CheckArguments = Callable[[dict[str, Any], dict[str, Any]], Sequence[tuple[str, str]]]
    """Returns pointer and message of each mistake in arguments, by their JSON Schema."""


def new_answers(turn: Turn, answers: Sequence[Answer], check_arguments: CheckArguments, *, waits: bool) -> list[Answer]:
    """Return the answers that the turn does not have yet. One that is invalid refuses all.

    Raises `RequestNotFoundError`, `AlreadyAnsweredError`, `NotWaitingError` and `InvalidRequestError`.
    """
    still_open = {request.request_id: request for request in turn.requests}
    known = {answered.request_id: answered.digest for answered in turn.answered}
    new: list[Answer] = []
    problems: list[dict[str, str]] = []
    for place, answer in enumerate(answers):
        name = answer.request_id
        if name in known:
            if known[name] != answer.digest:
                raise AlreadyAnsweredError(request_id=name)
            continue
        if name not in still_open:
            is_of_turn = name.startswith(f"{turn.ref.id}:{turn.number}:")
            raise NotWaitingError if turn.outcome and is_of_turn else RequestNotFoundError
        if any(name == each.request_id for each in new):
            problems.append({"pointer": f"/answers/{place}/request_id", "message": "is answered twice in this request"})
        found = _problems(still_open[name], answer, check_arguments)
        problems += [{"pointer": f"/answers/{place}{pointer}", "message": message} for pointer, message in found]
        new.append(answer)
    if problems:
        raise InvalidRequestError.of(problems)
    if new and not waits:
        raise NotWaitingError
    return new


def _problems(request: InputRequest, answer: Answer, check_arguments: CheckArguments) -> Iterator[tuple[str, str]]:
    if request.kind == "question":
        yield from _question_problems(request, answer)
        return
    if answer.text is not None:
        yield "/text", "answers questions only; this is an approval: leave it out, or send a reason"
    if answer.arguments is not None:
        if answer.decision == "reject":
            yield "/arguments", "are for an approval; leave them out to reject the call"
        else:
            found = check_arguments(request.parameters or {}, answer.arguments)
            yield from ((f"/arguments{pointer}", message) for pointer, message in found)


def _question_problems(request: InputRequest, answer: Answer) -> Iterator[tuple[str, str]]:
    if answer.arguments is not None:
        yield "/arguments", "are for an approval; this is a question: send text"
    if answer.decision == "reject":
        if answer.text is not None:
            yield "/text", "cannot come with reject; send one of both"
    elif answer.text is None or not answer.text.strip():
        yield "/text", "is missing: it is the answer to this question; or send decision: reject"
    elif request.choices and answer.text not in request.choices:
        yield "/text", f"is none of the choices: {', '.join(map(repr, request.choices))}"
