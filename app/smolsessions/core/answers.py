"""Checks of the answers that a person sends to a waiting turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Any

from smolsessions.core.errors import AlreadyAnsweredError, InvalidRequestError, NotWaitingError, RequestNotFoundError
from smolsessions.core.json_data import json_pointer
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
            if labels := _labels(request):
                for path, message in _moved(request.arguments, answer.arguments, labels):
                    yield json_pointer(("arguments", *path)), message


def _labels(request: InputRequest) -> frozenset[str]:
    """Return the labels of the images and files that a request shows."""
    found = set()
    for shown in request.media:
        part = request.arguments
        with suppress(LookupError, TypeError, ValueError):  # a long key is cut
            for key in shown.pointer.split("/")[1:]:
                name = key.replace("~1", "/").replace("~0", "~")
                part = part[int(name)] if isinstance(part, list) else part[name]
            found.add(part)
    return frozenset(found)


def _moved(shown: Any, new: Any, labels: frozenset[str], path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, str]]:
    """Find labels that a person moved: the tool would get a text there, or another image with the same label."""
    if new == shown:
        return
    if isinstance(new, str) and new in labels:
        yield path, f"is the label {new} of an image or a file at another place; they cannot be moved"
    elif isinstance(new, dict):
        for key, part in new.items():
            yield from _moved(shown.get(key) if isinstance(shown, dict) else None, part, labels, (*path, key))
    elif isinstance(new, list):
        old = shown if isinstance(shown, list) else []
        if len(new) < len(old) and _is_unclear(old, new, labels):
            yield path, "is shorter, and it is not clear which of the images or files with the same label stay"
        for place, (part, other) in enumerate(zip_longest(old[: len(new)], new)):
            yield from _moved(part, other, labels, (*path, place))


def _is_unclear(old: list[Any], new: list[Any], labels: frozenset[str]) -> bool:
    before, now = Counter(_texts(old)), Counter(_texts(new))
    return any(before[label] > now[label] > 0 for label in labels)


def _texts(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, list | dict):
        for inner in part.values() if isinstance(part, dict) else part:
            yield from _texts(inner)


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
