"""A stored action is made into smolagents' own at its first use. Before that it already shows the same messages."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from smolagents.memory import ActionStep, PlanningStep, TaskStep, ToolCall
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import Timing, TokenUsage

from smolsessions.agents.memory.plain_steps import stored_form
from smolsessions.agents.memory.step_types import messages_of
from smolsessions.agents.memory.steps import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    from smolsessions.agents.memory.steps import Step


def stored(step: Step) -> Any:
    """Return the step as it is read from the store."""
    read = unpack(pack(step, 1).data, {})
    assert stored_form(read)
    return read


def action(**more: Any) -> ActionStep:
    arguments = {"city": "Oslo", "days": [1, 2]}
    request = ChatMessageToolCall(ChatMessageToolCallFunction(arguments, "weather"), "call_1", "function")
    usage = TokenUsage(10, 2)
    message = ChatMessage(MessageRole.ASSISTANT, "I ask.", [request], token_usage=usage)
    usual: dict[str, Any] = {"tool_calls": [ToolCall("weather", arguments, "call_1")], "model_output_message": message}
    usual |= {"model_output": " I ask. ", "observations": "rain", "token_usage": usage}
    return ActionStep(1, Timing(1.0, 2.5), **(usual | more))


@pytest.mark.parametrize(
    "step",
    [
        action(),
        action(model_output=None, model_output_message=None, tool_calls=None, observations=""),
        action(tool_calls=[], observations=None),
        action(tool_calls=[ToolCall("say", '["text"]', "1"), ToolCall("sum", {"of": (1, 2)}, "2")]),
    ],
)
@pytest.mark.parametrize("summary_mode", [False, True])
def test_it_shows_the_messages_of_smolagents(step: ActionStep, *, summary_mode: bool) -> None:
    read = stored(step)
    shown = messages_of(read, summary_mode=summary_mode)
    assert stored_form(read)
    assert shown == step.to_messages(summary_mode=summary_mode) == read.to_messages(summary_mode=summary_mode)
    assert not stored_form(read)


def test_it_is_an_action_before_its_first_use() -> None:
    read = stored(action())
    assert isinstance(read, ActionStep)
    assert not isinstance(read, TaskStep | PlanningStep)
    assert read.__class__ is ActionStep
    assert stored_form(read)


@pytest.mark.parametrize(
    "use",
    [
        vars,
        repr,
        ActionStep.dict,
        dataclasses.asdict,
        lambda step: step.timing.duration,
        lambda step: step.error,
        lambda step: step == action(),
        lambda step: dataclasses.replace(step, step_number=2),
        lambda step: hasattr(step, "unknown"),
        lambda step: setattr(step, "observations", "rain"),
    ],
)
def test_its_first_use_makes_it_an_action_of_smolagents(use: Callable[[Any], object]) -> None:
    read, step = stored(action()), action()
    assert use(read) == use(step)
    assert type(read) is ActionStep
    assert read == step
    assert vars(read) == vars(step)
    assert read.model_output_message
    assert read.token_usage is read.model_output_message.token_usage


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda step: pickle.loads(pickle.dumps(step))])
def test_a_copy_of_it_is_an_action_of_smolagents(copied: Callable[[Any], Any]) -> None:
    again = copied(stored(action()))
    assert type(again) is ActionStep
    assert again == action()


def test_threads_that_use_it_at_once_find_the_same_parts() -> None:
    for _ in range(50):
        read = stored(action())
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda _, read=read: read.tool_calls, range(4)))
        assert all(calls is read.tool_calls for calls in found)
