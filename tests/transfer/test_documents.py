"""Export and import of steps and images: prompt and record stay the same, and faults are named."""

import base64
import hashlib
import io
import json
import math
import time
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from smolagents.memory import ActionStep, PlanningStep, TaskStep, ToolCall
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import Timing, TokenUsage

from smolsessions.agents.catalog import Catalog
from smolsessions.agents.memory.step_bytes import MAX_STEP_BYTES, unpack
from smolsessions.agents.memory.step_types import ERRORS, NoteStep, Step, SummaryStep, agent_error
from smolsessions.agents.transfer.document_media import MAX_IMAGES_FACTOR
from smolsessions.agents.transfer.documents import MAX_STEPS
from smolsessions.core.callers import DUMMY
from smolsessions.core.records import AgentName
from tests.support import agents
from tests.support.documents import (
    REFUSED,
    again,
    described,
    document,
    document_of,
    export,
    exported,
    read_document,
    shown,
    steps_of,
    stored,
    taken_in,
    without_ms,
)
from tests.support.json_values import JSON, TEXTS, nested, pointer_of
from tests.support.tiers import repeated


def same(steps: list[Any]) -> list[Step]:
    data, attachments = stored(steps)
    before = [unpack(one, attachments) for one in data]
    portable = export(data, attachments, {})
    back = steps_of(taken_in(document_of(portable)))
    assert [shown(step) for step in back] == [shown(step) for step in before]
    assert without_ms(json.dumps(described(back))) == without_ms(json.dumps(described(before)))
    assert again(portable) == portable
    return back


TIMINGS = st.builds(Timing, st.floats(0, 2e9), st.none() | st.floats(0, 2e9))
USAGES = st.none() | st.builds(TokenUsage, st.integers(0, 10**9), st.integers(0, 10**9))
PARTS = st.lists(st.dictionaries(TEXTS, JSON, max_size=2), max_size=2)
MESSAGE_CALLS = st.builds(
    ChatMessageToolCall,
    st.builds(ChatMessageToolCallFunction, JSON, TEXTS, st.none() | TEXTS),
    TEXTS,
    st.just("function") | TEXTS,
)
MESSAGES = st.builds(
    ChatMessage,
    st.sampled_from(MessageRole),
    st.none() | TEXTS | PARTS,
    st.none() | st.lists(MESSAGE_CALLS, max_size=2),
    token_usage=USAGES,
)
IMAGES = st.sampled_from(["1", "L", "RGB", "CMYK", "F"]).flatmap(
    lambda mode: st.integers(1, 9).map(lambda width: PIL.Image.new(mode, (width, 3), 1))
)
ACTIONS = st.builds(
    ActionStep,
    st.integers(0, 100),
    TIMINGS,
    tool_calls=st.none() | st.lists(st.builds(ToolCall, TEXTS, JSON, TEXTS), max_size=3),
    error=st.none() | st.builds(agent_error, st.sampled_from(sorted(ERRORS)), TEXTS),
    model_output_message=st.none() | MESSAGES,
    model_output=st.none() | TEXTS,
    code_action=st.none() | TEXTS,
    observations=st.none() | TEXTS,
    observations_images=st.none() | st.lists(IMAGES, max_size=2),
    action_output=JSON | IMAGES,
    token_usage=USAGES,
    is_final_answer=st.booleans(),
)
STEPS: st.SearchStrategy[Any] = st.one_of(
    ACTIONS,
    st.builds(PlanningStep, st.just([]), MESSAGES, TEXTS, TIMINGS, USAGES),
    st.builds(TaskStep, TEXTS, st.none() | st.lists(IMAGES, max_size=2)),
    st.builds(NoteStep, st.integers(1, 10**9), TEXTS, st.none() | st.integers(1, 10**9)),
    st.builds(SummaryStep, TEXTS, st.integers(0, 99), st.none() | st.integers(0, 99), st.none() | st.integers(0, 99)),
)


@repeated(8)
@given(st.lists(STEPS, max_size=3))
@settings(max_examples=25, deadline=None)
def test_any_step_comes_back(_time: int, steps: list[Any]) -> None:
    same(steps)


def action(**fields: Any) -> ActionStep:
    return ActionStep(1, Timing(1.0, 2.0), **({"observations": "seen"} | fields))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (agents.Money(7, "EUR"), {"amount": 7, "currency": "EUR"}),
        ({1, 2}, [1, 2]),
        ([math.nan], ["nan"]),
        ({1: 2}, {"1": 2}),
        (complex(1, 2), "[builtins.complex] (1+2j)"),
        (1 << 9000, None),
    ],
)
def test_a_value_without_exact_json_has_a_label_that_later_exports_keep(value: Any, text: Any) -> None:
    portable = exported([action(action_output=[value])], stored_classes=(agents.Money,))
    (step,) = portable.steps
    assert step["labels"] == ["/action_output"]
    assert text is None or step["action_output"] == [text]
    assert again(portable) == portable


def test_a_lone_surrogate_is_replaced_at_export() -> None:
    half = "a\ud800b"
    step = action(observations=half, model_output=half, action_output=half, tool_calls=[ToolCall(half, half, half)])
    portable = exported([step, TaskStep(half), NoteStep(1, half)])
    json.dumps(portable.steps, ensure_ascii=False).encode()
    assert portable.steps[1]["task"] == "a\ufffdb"
    assert again(portable) == portable


TASK: dict[str, Any] = {"type": "task", "turn": 1, "task": "t"}
EDIT: dict[str, Any] = {"type": "edit", "turn": 1}
ACTION: Any = {"type": "action", "turn": 1, "step_number": 1, "timing": {"start_time": "2026-11-28T09:30:00Z"}}
NAME = "0" * 32
WRONG_STEPS: list[tuple[Any, str]] = [
    *(({"task": TASK, "action": ACTION, "edit": EDIT, "": {}}[base] | more, at) for base, more, at in REFUSED["steps"]),
    (None, "/type"),
    ({**TASK, "task": "\ud800"}, "/task"),
    ({**TASK, "turn": 10**400}, "/turn"),
    ({**TASK, "\ud800": 1}, ""),
    ({**TASK, **{f"m{n}": 1 for n in range(100_000)}}, ""),
    ({**ACTION, "action_output": nested(101)}, "/action_output"),
    ({**ACTION, "action_output": 1 << 9000}, "/action_output"),
    ({**ACTION, "action_output": math.nan}, "/action_output"),
    ({**ACTION, "action_output": {"a": "\udfff"}}, "/action_output"),
    ({**ACTION, "tool_calls": [{"id": "a", "name": "b", "arguments": nested(5000)}]}, "/tool_calls/0/arguments"),
    ({**ACTION, "observations": "x" * 17_000_000}, ""),
    ({**EDIT, "removed": [1] * 200_000 + [2]}, "/removed"),
]


@pytest.mark.parametrize(("step", "where"), WRONG_STEPS)
def test_a_step_that_is_wrong_is_refused_with_the_place(step: Any, where: str) -> None:
    data = document([TaskStep("before")])
    data["steps"].append(step)
    assert pointer_of(lambda: read_document(data)) == f"/steps/1{where}"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"steps": [TASK] * (MAX_STEPS + 1)}, "/steps"),
        ({"steps": [TASK | {"turn": 2}, TASK]}, "/steps/1/turn"),
        ({"steps": [TASK | {"task": "x" * MAX_STEP_BYTES}]}, "/steps/0"),
        ({"images": []}, "/images"),
        ({"\ud800": 1}, "/?"),
        ({"images": {"name": {"type": "image/png", "data": ""}}}, "/images/name"),
        ({"images": {NAME: {"type": "image/png", "data": "?"}}}, f"/images/{NAME}"),
        ({"images": {NAME: {"type": "image/png", "data": "AAAA"}}}, f"/images/{NAME}"),
        ({"images": {NAME: "AAAA"}}, f"/images/{NAME}"),
    ],
)
def test_a_document_that_is_wrong_is_refused_with_the_place(change: dict[str, Any], where: str) -> None:
    assert pointer_of(lambda: read_document(document([]) | change)) == where


def test_an_answer_that_may_hold_a_swallowed_exception_is_not_imported() -> None:
    text = "Error in generating final LLM output: key sk-1"
    data = document([]) | {"steps": [ACTION | {"action_output": [{"type": "text", "text": text}]}]}
    assert b"sk-1" not in taken_in(data).steps[0].data


def test_many_edits_of_many_steps_are_applied_in_a_moment() -> None:
    steps = [TASK] * 40_000 + [EDIT | {"removed": [40_000]}] * 40_000
    catalog = Catalog([("scripted", agents.make_scripted)])
    imported = read_document(document([]) | {"steps": steps})
    began = time.process_time()
    session = catalog.build(AgentName("scripted"), DUMMY, [step.data for step in imported.steps], {}, {})
    assert time.process_time() - began < 20
    assert vars(session)["_agent"].memory.steps == []
    session.close()


def with_images(*images: bytes, shows: int = 1) -> dict[str, Any]:
    named = {hashlib.sha256(data).hexdigest()[:32]: base64.b64encode(data).decode() for data in images}
    return document([]) | {
        "images": {name: {"type": "image/png", "data": data} for name, data in named.items()},
        "steps": [TASK | {"task_images": [name] * shows} for name in named] if shows else [],
    }


def png(width: int, height: int, colour: int = 0) -> bytes:
    buffer = io.BytesIO()
    PIL.Image.new("1", (width, height), colour).save(buffer, "PNG")
    return buffer.getvalue()


def test_an_image_that_many_steps_show_is_read_and_held_once() -> None:
    data = with_images(png(1000, 1000), shows=500)
    data["steps"] *= 2000  # without sharing, their pixels would take 125 GB as shown, 250 MB as read
    catalog = Catalog([("scripted", agents.make_scripted)])
    imported = read_document(data)
    steps, attachments = [step.data for step in imported.steps], imported.steps[0].attachments
    assert catalog.export(AgentName("scripted"), steps, attachments, {}).images == data["images"]
    session = catalog.build(AgentName("scripted"), DUMMY, steps, attachments, {})
    memory = vars(session)["_agent"].memory.steps
    assert len({id(image) for step in memory for image in step.task_images}) == 1
    session.close()


@pytest.mark.parametrize("data", [png(1001, 1000), png(200, 200)[:-30], b""])
def test_an_image_that_is_too_large_or_broken_is_refused(data: bytes) -> None:
    assert pointer_of(lambda: taken_in(with_images(data))).startswith("/images/")


def test_all_images_together_are_bounded_and_so_are_those_of_a_step() -> None:
    many = [png(1000, 1000 - number) for number in range(MAX_IMAGES_FACTOR + 1)]
    assert pointer_of(lambda: taken_in(with_images(*many))).startswith("/images/")
    two = with_images(*many[:2])
    two["steps"] = [TASK | {"task_images": list(two["images"])}]
    assert pointer_of(lambda: taken_in(two)) == "/steps/0"


def test_an_image_has_the_name_and_the_type_of_its_bytes_and_is_shown() -> None:
    data = with_images(png(1, 1))
    (name,) = data["images"]
    other = NAME[:-1] + "1"
    renamed = data | {"images": {other: data["images"][name]}, "steps": [TASK | {"task_images": [other]}]}
    assert pointer_of(lambda: taken_in(renamed)) == f"/images/{other}"
    retyped = data | {"images": {name: data["images"][name] | {"type": "image/jpeg"}}}
    assert pointer_of(lambda: taken_in(retyped)) == f"/images/{name}/type"
    assert pointer_of(lambda: taken_in(with_images(png(1, 1), shows=0))) == f"/images/{name}"


def test_the_example_in_the_documentation_is_what_it_says() -> None:
    text = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    data: dict[str, Any] = json.loads(text.partition("```json\n")[2].partition("```")[0])
    (image,) = data["images"].values()
    buffer = io.BytesIO()
    PIL.Image.new("RGB", (2, 2), "red").save(buffer, "PNG")
    name = hashlib.sha256(buffer.getvalue()).hexdigest()[:32]
    image["data"] = base64.b64encode(buffer.getvalue()).decode()
    data = json.loads(json.dumps(data).replace(next(iter(data["images"])), name))
    mine = {member: data[member] for member in ("format", "version", "steps", "images", "variables")}
    imported = taken_in(mine)
    attachments = {name: data for step in imported.steps for name, data in step.attachments.items()}
    back = export([step.data for step in imported.steps], attachments, imported.variables)
    flags = {"turn": 1, "archived": False, "hidden": False}
    assert [step | flags for step in back.steps] == mine["steps"]
    assert (back.images, back.variables) == (mine["images"], mine["variables"])
