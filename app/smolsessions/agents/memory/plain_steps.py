"""Usual steps ⇄ plain data: the stored form of a task without images, and of an action without images or an error.

A task is its text, and an action a tuple. Their fields have smolagents' own types, so that no reader has to check them.
All other steps are stored as objects.
"""

from __future__ import annotations

from gc import get_referents
from math import isfinite
from operator import attrgetter
from typing import Any

from smolagents.memory import ActionStep, MemoryStep, TaskStep, ToolCall
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import Timing, TokenUsage

from smolsessions.agents.memory.tokens import set_shown_estimate, shown_estimate

Plain = str | tuple[Any, ...]
ROLE = MessageRole.ASSISTANT


class _UnusualError(Exception):
    """A field has another type, or an object has more attributes than smolagents gives it."""


def plain_form(step: MemoryStep) -> Plain | None:
    """Return a step as plain data, apart from arguments and outputs, which may be any value. None: it is unusual."""
    try:
        if type(step) is ActionStep:
            return _plain_action(step)
        return _plain_task(step) if type(step) is TaskStep else None
    except (_UnusualError, AttributeError, TypeError):
        return None


def holds_data_only(plain: Plain) -> bool:
    """True if arguments and outputs are small JSON data, too, so that no class takes part in pickling."""
    if isinstance(plain, str):
        return True
    calls, message, result = plain[3], plain[4], plain[8]
    values = [result]
    for call in calls or ():
        values += call
    if message is not None:
        content, requests, _ = message
        values.append(content)
        for function, *call in requests or ():
            values += (*function, *call)
    for value in values:  # grows by the parts of its lists and dicts
        if type(value) is dict:
            values += (*value, *value.values())
        elif type(value) is list:
            values += value
        else:
            continue
        if len(values) > _MOST_VALUES:
            return False
    return _DATA.issuperset(map(type, values))


def step_of(plain: Plain) -> TaskStep | ActionStep:
    """Return the step of a plain form."""
    if isinstance(plain, str):
        return TaskStep(plain)
    number, start, end, calls, message, output, code, observations, result, tokens, is_final, shown = plain
    usage = None if tokens is None else TokenUsage(*tokens)
    if calls is not None:
        calls = [ToolCall(*call) for call in calls]
    if message is not None:
        content, requests, used = message
        if requests is not None:
            requests = [
                ChatMessageToolCall(ChatMessageToolCallFunction(*function), *call) for function, *call in requests
            ]
        own = usage if used is tokens else None if used is None else TokenUsage(*used)
        message = ChatMessage(ROLE, content, requests, None, own)
    timing = Timing(start, end)
    step = ActionStep(
        *(number, timing, None, calls, None, message, output, code, observations, None, result, usage, is_final)
    )
    if shown is not None:
        set_shown_estimate(step, shown)
    return step


def _plain_task(step: TaskStep) -> str:
    if (type(step.task), step.task_images, _count(step)) != _TASK:
        raise _UnusualError
    return step.task


def _plain_action(step: ActionStep) -> Plain:
    number, timing, calls, error, message, *texts, images, result, usage, is_final = _FIELDS(step)
    shown, start, end = shown_estimate(step), timing.start_time, timing.end_time
    is_usual = (
        [type(number), type(is_final), error, images] == _USUAL
        and number >= 0
        and _TEXTS.issuperset(map(type, texts))
        and (type(timing), _count(timing)) == _TIMING
        and type(start) is float
        and isfinite(start)
        and (end is None or (type(end) is float and isfinite(end)))
        and _count(step) == _ACTION_FIELDS + (shown is not None)
    )
    if not is_usual:
        raise _UnusualError
    tokens = None if usage is None else _plain_usage(usage)
    request = None if message is None else _plain_message(message, usage, tokens)
    return (number, start, end, _plain_calls(calls), request, *texts, result, tokens, is_final, shown)


def _plain_usage(usage: TokenUsage) -> tuple[int, int]:
    tokens = usage.input_tokens, usage.output_tokens
    if (type(usage), _count(usage)) != _USAGE or not type(tokens[0]) is type(tokens[1]) is int:
        raise _UnusualError
    if usage.total_tokens != sum(tokens):
        raise _UnusualError
    return tokens


def _plain_calls(calls: list[ToolCall] | None) -> list[Plain] | None:
    if type(calls) is not list:
        if calls is None:
            return None
        raise _UnusualError
    plain: list[Plain] = []
    for call in calls:
        if (type(call), _count(call), type(call.name), type(call.id)) != _CALL:
            raise _UnusualError
        plain.append((call.name, call.arguments, call.id))
    return plain


def _plain_message(message: ChatMessage, usage: TokenUsage | None, tokens: Plain | None) -> Plain:
    """Return a model's message without `raw`. `tokens` is the form of `usage`, which the step shares with it."""
    calls, used = message.tool_calls, message.token_usage
    if (type(message), _count(message), message.role) != _MESSAGE or type(calls) not in _LISTS:
        raise _UnusualError
    plain: list[Plain] = []
    for call in calls or ():
        function = call.function
        if (type(call), type(function)) != _REQUEST:  # the journal has no other attributes of them either
            raise _UnusualError
        plain.append(((function.arguments, function.name, function.description), call.id, call.type))
    if used is not usage:
        tokens = None if used is None else _plain_usage(used)
    return message.content, None if calls is None else plain, tokens


def _count(owner: object) -> int:
    """Return the number of an object's attributes. `vars()` would give it a dict of 64 bytes that stays."""
    referents = len(get_referents(owner))  # the values and the class, or a dict and the class
    return referents - 1 if referents > _WITH_DICT else len(vars(owner))


_NAMES = (
    *("step_number", "timing", "tool_calls", "error", "model_output_message", "model_output", "code_action"),
    *("observations", "observations_images", "action_output", "token_usage", "is_final_answer"),
)
_FIELDS = attrgetter(*_NAMES)
_ACTION_FIELDS = 1 + len(_NAMES)  # `model_input_messages` are never stored
_USUAL = [int, bool, None, None]
_TEXTS = frozenset({str, type(None)})
_DATA = frozenset({str, int, float, bool, type(None), dict, list})
_MOST_VALUES = 1000  # which also ends the walk through a list that holds itself
_LISTS = frozenset({list, type(None)})
_WITH_DICT = 2
# Classes of objects and their parts, with the numbers of attributes.
_TASK = (str, None, 2)
_TIMING = (Timing, 2)
_USAGE = (TokenUsage, 3)
_CALL = (ToolCall, 3, str, str)
_MESSAGE = (ChatMessage, 5, ROLE)
_REQUEST = (ChatMessageToolCall, ChatMessageToolCallFunction)
