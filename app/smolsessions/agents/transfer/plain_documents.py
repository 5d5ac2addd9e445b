"""Plain form of a usual step (`agents/memory/plain_steps.py`) ⇄ its JSON data, without the objects in between.

`encode_plain` returns the data that `encode_step` makes of the step. `decode_plain` reads such data, and no other.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from operator import itemgetter
from typing import Any, NamedTuple

from smolsessions.agents.memory.plain_steps import ROLE, Plain
from smolsessions.agents.run.failures import is_swallowed_failure
from smolsessions.agents.transfer.document_models import (
    MAX_COUNT,
    encode_count,
    encode_json,
    encode_output,
    encode_text,
)
from smolsessions.agents.transfer.step_models import MAX_TURNS, stored_file, stored_image
from smolsessions.agents.values.json_forms import is_utf8, json_flaw, utf8_text

_MESSAGE = "/model_output_message"
_ROLE = ROLE.value


class PlainIn(NamedTuple):
    """Usual step of a document, with the members of `StepIn` that are not part of it."""

    turn: int
    archived: bool
    hidden: bool
    plain: Plain


def encode_plain(plain: Plain) -> dict[str, Any]:
    if isinstance(plain, str):
        return {"type": "task", "task": utf8_text(plain), "task_images": None, "task_files": None, "labels": []}
    number, start, end, calls, message, output, code, observations, result, tokens, is_final, shown = plain
    labels: set[str] = set()
    image, file = stored_image(result), stored_file(result)
    return {
        "type": "action",
        "step_number": encode_count(number),
        "timing": {"start_time": start, "end_time": end},
        "model_output": output and utf8_text(output),
        "model_output_message": None if message is None else _message(message, labels),
        "tool_calls": None if calls is None else [_call(*one, labels) for one in enumerate(calls)],
        "code_action": code and utf8_text(code),
        "observations": observations and utf8_text(observations),
        "observations_images": None,
        "action_output": None if image or file or result is None else encode_json(result, "/action_output", labels),
        "action_output_image": image,
        "action_output_file": file,
        "error": None,
        "is_final_answer": is_final,
        "shown_estimate": None if shown is None else encode_count(shown),
        "token_usage": _usage(tokens),
        "labels": sorted(labels) if labels else [],
    }


def _call(place: int, call: tuple[str, Any, str], labels: set[str]) -> dict[str, Any]:
    name, arguments, call_id = call
    arguments = encode_json(arguments, f"/tool_calls/{place}/arguments", labels)
    return {"id": utf8_text(call_id), "name": utf8_text(name), "arguments": arguments}


def _message(message: tuple[Any, ...], labels: set[str]) -> dict[str, Any]:
    content, calls, tokens = message
    return {
        "role": _ROLE,
        "content": None if content is None else encode_output(content, f"{_MESSAGE}/content", labels),
        "tool_calls": None if calls is None else [_request(*one, labels) for one in enumerate(calls)],
        "token_usage": _usage(tokens),
    }


def _request(place: int, call: Any, labels: set[str]) -> dict[str, Any]:
    (arguments, name, description), call_id, kind = call
    pointer = f"{_MESSAGE}/tool_calls/{place}"
    return {
        "id": encode_text(call_id, f"{pointer}/id", labels),
        "name": encode_text(name, f"{pointer}/name", labels),
        "arguments": encode_json(arguments, f"{pointer}/arguments", labels),
        "type": encode_text(kind, f"{pointer}/type", labels),
        "description": None if description is None else encode_text(description, f"{pointer}/description", labels),
    }


def _usage(tokens: tuple[int, int] | None) -> dict[str, int] | None:
    return tokens and {"input_tokens": encode_count(tokens[0]), "output_tokens": encode_count(tokens[1])}


def decode_plain(data: Any) -> PlainIn | None:
    """Read a usual step that has all members of an export. Returns None for other data, which the models check."""
    try:
        if data["type"] == "task":
            task, images, files, *marks = _TASK(data)
            return None if (images, files) != (None, None) else _marked(marks, _text(task))
        return _read_action(data) if data["type"] == "action" else None
    except (KeyError, TypeError, ValueError):
        return None


def _read_action(data: Any) -> PlainIn:
    number, timing, calls, message, output, code, observations, result, tokens, is_final, shown, *more = _ACTION(data)
    start, end = _TIMING(timing)
    _check(_is_moment(start) and (end is None or _is_moment(end)))
    _check(more[:4] == _NONE and type(is_final) is bool and not is_swallowed_failure(result))
    calls = None if calls is None else [_read_call(call) for call in _list(calls)]
    message = None if message is None else _read_message(message)
    texts = _text_or_none(output), _text_or_none(code), _text_or_none(observations)
    tokens, shown = _usage_or_none(tokens), None if shown is None else _count(shown)
    plain = (_count(number), start, end, calls, message, *texts, _json(result), tokens, is_final, shown)
    return _marked(more[4:], plain)


def _marked(marks: list[Any], plain: Plain) -> PlainIn:
    _, turn, archived, hidden, labels = marks
    _check([type(turn), type(archived), type(hidden), labels] == _MARKED and 1 <= turn <= MAX_TURNS)
    return PlainIn(turn, archived, hidden, plain)


def _read_call(call: Any) -> Plain:
    call_id, name, arguments = _CALL(call)
    return _text(name), _json(arguments), _text(call_id)


def _read_message(message: Any) -> Plain:
    role, content, calls, tokens = _OF_MESSAGE(message)
    _check(role == _ROLE)
    calls = None if calls is None else [_read_request(call) for call in _list(calls)]
    return _text_or_none(content), calls, _usage_or_none(tokens)


def _read_request(call: Any) -> Plain:
    call_id, name, arguments, kind, description = _REQUEST(call)
    return (_json(arguments), _text(name), _text_or_none(description)), _text(call_id), _text(kind)


def _usage_or_none(tokens: Any) -> tuple[int, int] | None:
    if tokens is None:
        return None
    before, after = _USAGE(tokens)
    return _count(before), _count(after)


def _list(value: Any) -> Any:
    _check(type(value) is list)
    return value


def _is_moment(value: Any) -> bool:
    return type(value) is float and isfinite(value)


def _text(value: Any) -> str:
    if type(value) is not str or not is_utf8(value):
        raise ValueError
    return value


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _json(value: Any) -> Any:
    if value is not None and json_flaw(value):
        raise ValueError
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise ValueError
    return value


def _check(is_usual: bool) -> None:
    if not is_usual:
        raise ValueError


def _members(*names: str) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the values of an object with exactly these members. It raises for others."""
    values = itemgetter(*names)

    def read(data: Any) -> tuple[Any, ...]:
        if len(data) != len(names):
            raise ValueError
        found: tuple[Any, ...] = values(data)
        return found

    return read


_MARKS = ("type", "turn", "archived", "hidden", "labels")
_MARKED = [int, bool, bool, []]
_TASK = _members("task", "task_images", "task_files", *_MARKS)
_ACTION = _members(
    *("step_number", "timing", "tool_calls", "model_output_message", "model_output", "code_action", "observations"),
    *("action_output", "token_usage", "is_final_answer", "shown_estimate"),
    *("observations_images", "action_output_image", "action_output_file", "error", *_MARKS),
)
_NONE = [None, None, None, None]
_TIMING = _members("start_time", "end_time")
_USAGE = _members("input_tokens", "output_tokens")
_CALL = _members("id", "name", "arguments")
_OF_MESSAGE = _members("role", "content", "tool_calls", "token_usage")
_REQUEST = _members("id", "name", "arguments", "type", "description")
