"""Checks of the answers that a person sends to a waiting turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from smolsessions.core.errors import AlreadyAnsweredError, InvalidRequestError, NotWaitingError, RequestNotFoundError
from smolsessions.core.records import Turn
from smolsessions.core.requests import Answer, InputRequest

CheckArguments = Callable[[dict[str, Any], Any], Sequence[tuple[str, str]]]
"""Returns pointer and message of each mistake in arguments or a result, by their JSON Schema."""


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
        of_kind = _problems_of_result if "result" in {still_open[name].kind, answer.decision} else _problems
        found = of_kind(still_open[name], answer, check_arguments)
        problems += [{"pointer": f"/answers/{place}{pointer}", "message": message} for pointer, message in found]
        new.append(answer)
    if problems:
        raise InvalidRequestError.of(problems)
    if new and not waits:
        raise NotWaitingError
    return new


def _problems_of_result(request: InputRequest, answer: Answer, check: CheckArguments) -> Iterator[tuple[str, str]]:
    """Yield pointer and message of each mistake in a client's result, or in another answer in its place."""
    if request.kind != "result":
        yield "", "is no call of a tool of yours: send a decision, or text for a question"
    elif answer.decision != "result":
        yield "", "answers a call of your tool: send result or error"
    elif answer.error is None:
        for pointer, message in check(request.output_schema or {}, answer.result):
            yield f"/result{pointer}", message


def _problems(request: InputRequest, answer: Answer, check_arguments: CheckArguments) -> Iterator[tuple[str, str]]:
    """Yield pointer and message of each mistake in an answer."""
    if request.kind == "question":
        if answer.arguments is not None:
            yield "/arguments", "are for an approval; this is a question: send text"
        if answer.decision == "reject":
            if answer.text is not None:
                yield "/text", "cannot come with reject; send one of both"
        elif answer.text is None or not answer.text.strip():
            yield "/text", "is missing: it is the answer to this question; or send decision: reject"
        elif request.choices and answer.text not in request.choices:
            yield "/text", f"is none of the choices: {', '.join(map(repr, request.choices))}"
        return
    if answer.text is not None:
        yield "/text", "answers questions only; this is an approval: leave it out, or send a reason"
    if answer.arguments is None:
        return
    if answer.decision == "reject":
        yield "/arguments", "are for an approval; leave them out to reject the call"
        return
    for pointer, message in check_arguments(request.parameters or {}, answer.arguments):
        yield f"/arguments{pointer}", message
    for media in request.media:
        label = _part_at(request.arguments, media.pointer)  # None: a key of the pointer was cut
        if label is None or _part_at(answer.arguments, media.pointer) != label:
            yield (
                f"/arguments{media.pointer}",
                "is an image or a file; leave its label there, or reject the call",
            )


def _part_at(part: Any, pointer: str) -> Any:
    """Return the part of a JSON value at a pointer. None: it has no such part."""
    try:
        for key in pointer.split("/")[1:]:
            name = key.replace("~1", "/").replace("~0", "~")
            part = part[int(name)] if isinstance(part, list) else part[name]
    except (LookupError, TypeError, ValueError):
        return None
    return part
