"""Usual steps of a document, read without their models: each is read as the models read it, or left to them."""

import copy
import json
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from smolagents.memory import ActionStep, ToolCall
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import Timing, TokenUsage

from smolsessions.agents.memory.plain_steps import Plain, plain_form
from smolsessions.agents.memory.steps import MAX_STEP_BYTES
from smolsessions.agents.transfer.document_files import DocumentFiles
from smolsessions.agents.transfer.documents import DocumentImages, DocumentMedia
from smolsessions.agents.transfer.plain_documents import decode_plain, encode_plain
from smolsessions.agents.transfer.step_models import made_step, read_step
from tests.support.documents import MAX_PIXELS, taken_in
from tests.support.json_values import JSON, NUMBERS, places_in, pointer_of
from tests.support.tiers import repeated

MARKS: dict[str, Any] = {"turn": 1, "hidden": False, "archived": False}
TASK: dict[str, Any] = MARKS | encode_plain("Wie spät ist es?")
FUNCTION = ChatMessageToolCallFunction({"at": [1, 2.5, None]}, "clock", None)
ASKED = ChatMessage(
    *(MessageRole.ASSISTANT, "Ich sehe nach.", [ChatMessageToolCall(FUNCTION, "c1", "function")], None),
    TokenUsage(12, 3),
)
USUAL = ActionStep(
    1,
    Timing(1.5, 2.5),
    model_output_message=ASKED,
    model_output="Ich sehe nach.",
    tool_calls=[ToolCall("clock", {"at": [1, 2.5, None]}, "c1")],
    code_action="clock()",
    observations="12:30",
    action_output={"hour": 12},
    token_usage=TokenUsage(12, 3),
)
BARE = ActionStep(2, Timing(1.5), observations="", is_final_answer=True)
ODD_NUMBERS: list[Any] = [10**400, math.nan, -math.inf, -1, 1e300, 2**53]
ODD = st.sampled_from([*ODD_NUMBERS, "\ud800", True, [], {}, [[]], [{}], [None], "assistant", "action"])


def data_of(step: ActionStep) -> dict[str, Any]:
    plain = plain_form(step)
    assert plain is not None
    found: dict[str, Any] = json.loads(json.dumps(MARKS | encode_plain(plain)))
    return found


def as_modelled(data: Any) -> Plain | None:
    """Return the plain form of the step that the models make of the data."""
    step = made_step(read_step(data, ""), "", DocumentMedia(DocumentImages({}, MAX_PIXELS), DocumentFiles({})))
    return plain_form(step)


@pytest.mark.parametrize("data", [TASK, data_of(USUAL), data_of(BARE)], ids=["task", "action", "bare"])
def test_a_usual_step_is_read_without_its_models(data: dict[str, Any]) -> None:
    found = decode_plain(data | {"turn": 7, "hidden": True})
    assert found is not None
    assert found.plain == as_modelled(data)
    assert (found.turn, found.archived, found.hidden) == (7, False, True)
    assert MARKS | encode_plain(found.plain) == data


@repeated(8)
@given(st.integers(0, 2**32), JSON | NUMBERS | ODD, st.sampled_from(["replace", "remove", "add", "swap"]))
@settings(max_examples=120, deadline=None)
def test_a_changed_step_is_read_as_its_models_read_it_or_left_to_them(
    _time: int, seed: int, value: Any, how: str
) -> None:
    choice = random.Random(seed)
    data = copy.deepcopy(choice.choice([TASK, data_of(USUAL), data_of(BARE)]))
    parent, name = choice.choice(places_in(data))
    if how == "replace":
        parent[name] = value
    elif how == "add" and isinstance(parent, dict):
        parent["more"] = value
    elif how == "swap":
        other, place = choice.choice(places_in(data))
        parent[name] = other[place]
    else:
        del parent[name]
    if found := decode_plain(data):
        assert repr(found.plain) == repr(as_modelled(data))  # tells 1 from 1.0 and True
        assert found[:3] == (data["turn"], data["archived"], data["hidden"])


@pytest.mark.parametrize("data", [None, 1, "action", [], ["type"], {}, {"type": "note"}, {"type": ["task"]}])
def test_other_data_is_left_to_the_models(data: Any) -> None:
    assert decode_plain(data) is None


def test_an_answer_that_may_hold_a_swallowed_exception_is_left_to_the_models() -> None:
    text = "Error in generating final LLM output: key sk-1"
    step = data_of(USUAL) | {"action_output": [{"type": "text", "text": text}]}
    assert decode_plain(step) is None
    (kept,) = taken_in({"format": "smolsessions/conversation", "version": 1, "steps": [step]}).steps
    assert b"sk-1" not in kept.data


def test_a_usual_step_has_the_bound_of_all_steps() -> None:
    task = {"format": "smolsessions/conversation", "version": 1, "steps": [TASK | {"task": "x" * MAX_STEP_BYTES}]}
    assert pointer_of(lambda: taken_in(task)) == "/steps/0"


def test_the_models_refuse_the_turn_of_a_usual_step_that_is_out_of_order() -> None:
    steps = [TASK | {"turn": 2}, TASK]
    document = {"format": "smolsessions/conversation", "version": 1, "steps": steps}
    assert pointer_of(lambda: taken_in(document)) == "/steps/1/turn"
