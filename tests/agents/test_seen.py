"""Events that proxies record: every call of every agent, and the models' texts, in a readable order."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from smolagents import MultiStepAgent

from tests.support import streaming
from tests.support.agents import make_code, make_planner, make_scripted
from tests.support.data import data, named
from tests.support.providers import used
from tests.support.service import Service
from tests.support.streaming import Event, place, posting, seen, spoken
from tests.support.tiers import deep, mostly_deep
from tests.support.turns import DONE, ECHO, delegate

Script = list[Event]

PLACED = {"step.started", "message.delta", "tool.call", "tool.result", "step.finished"}
SHOWN = "scripted code planner streamed streamed-code structured streamed-planner family code-family careful".split()
CODE_CALLS = named(data("seen_calls.txt"))


@pytest.mark.parametrize("way", mostly_deep(CODE_CALLS, fast=["another name", "a generator", "a method"]))
def test_a_call_that_code_makes_is_seen_also_by(service: Service, way: str) -> None:
    events = seen(service, {"code": CODE_CALLS[way]}, agent="streamed-code")
    turn = events[-1]["result"]
    assert turn["reply"] == "01"
    assert turn["tool_call_names"] == ["echo", "echo"]
    assert [call["arguments"]["text"] for call in turn["tool_calls"]][-1] == "1"
    block, *_, answered = calls_in(events)
    assert (block["name"], answered["name"]) == ("python_interpreter", "final_answer")
    inner = [event for event in events if event["type"] in {"tool.call", "tool.result"}][1:-1]
    assert [event["name"] for event in inner] == ["echo"] * 4 + ["final_answer"] * 2
    (end,) = [event for event in events if event["type"] == "tool.result" and event["call_id"] == block["call_id"]]
    assert events.index(end) > events.index(inner[-1])


def test_a_call_that_fails_inside_code_is_seen_and_so_is_that_of_the_block(service: Service) -> None:
    caught = "try:\n    fail(reason='once')\nexcept ValueError:\n    print('caught')\nfail(reason='twice')"
    events = seen(service, {"code": caught}, DONE, agent="streamed-code")
    assert [(event["name"], event["ok"]) for event in events if event["type"] == "tool.result"] == [
        ("fail", False),
        ("fail", False),
        ("python_interpreter", False),
        ("final_answer", True),
        ("python_interpreter", True),
    ]
    first = next(event for event in events if event["type"] == "step.finished")
    assert first["error"]["code"] == "execution_error"
    assert "twice" in first["error"]["message"]
    assert "once" in next(event["error"]["message"] for event in events if event["type"] == "tool.result")


def test_agents_that_manage_agents_are_seen_at_every_depth_each_call_with_steps_of_its_own(service: Service) -> None:
    helped = delegate("helper", ECHO, {"say": "h"})
    events = seen(
        service, {"call": [delegate("lead", helped_by(helped), helped_by(helped), {"say": "l"})]}, DONE, agent="family"
    )
    turn = events[-1]["result"]
    assert turn["tool_call_names"] == ["lead", "helper", "echo", "helper", "echo"]
    lead, helper = "family/lead", "family/lead/helper"
    assert [call["agent"] for call in turn["tool_calls"]] == ["family", lead, helper, lead, helper]
    check_places(events)
    started = [event for event in events if event["type"] == "step.started"]
    assert [event["agent"].count("/") for event in started] == [0, 1, 2, 2, 1, 2, 2, 1, 0]
    assert [event["step"] for event in started if event["agent"] == helper] == [1, 2, 1, 2]
    assert turn["step_count"] == 2


def test_parallel_calls_of_one_agent_do_not_mix(service: Service) -> None:
    tasks: list[Script] = [[{"call": [["echo", {"text": text}]]}, {"say": f"said {text}"}] for text in "abcd"]
    events = seen(service, {"call": [delegate("lead", *task) for task in tasks]}, DONE, agent="family")
    check_places(events)
    for number, text in enumerate("abcd", 1):
        parent = f"1.{number}"
        inner = [event for event in events if event.get("parent_call_id") == parent]
        assert calls_in(inner)[0]["arguments"] == {"text": text}
        assert spoken(inner, "answer") == f"said {text}"
        assert [
            event["result"] for event in events if event["type"] == "tool.result" and event["call_id"] == parent
        ] == [f"said {text}"]
    first = next(event for event in events if event["type"] == "step.finished" and event["agent"] == "family")
    assert first["observations"].split("\n") == [f"said {text}" for text in "abcd"]


def prompts() -> dict[str, tuple[Callable[[], MultiStepAgent], list[Script]]]:
    """Return agents with turns that contain every kind of failure. Each turn also asks for its prompt."""
    show: Script = [{"prompt": True}]
    called: Script = [ECHO, {"call": [["fail", {"reason": "no"}]]}, {"text": "x"}, {"call": [["nothing", {}]]}, *show]
    parallel: Script = [{"call": [["echo", {"text": "a"}], ["echo", {"text": ""}]]}, {"call": [["picture", {}]]}, *show]
    coded: Script = [{"code": "print(echo(text='ü'))\nundefined"}, {"text": "no code"}, {"code": "x = [1"}, *show]
    structured: Script = [{"stream": [json.dumps({"thought": "T", "code": "echo('é')"})]}, {"stream": ["{x"]}, *show]
    managed: Script = [{"call": [delegate("lead", ECHO, helped_by(delegate("helper", ECHO, *show)), *show)]}, *show]
    manages_coder: Script = [{"call": [delegate("coder", {"code": "print(1)"}, *show), delegate("lead", *show)]}, *show]
    code_manages: Script = [{"code": f"print(helper({json.dumps([ECHO, *show])!r}))"}, *show]
    return {
        "scripted": (make_scripted, [called, parallel, show]),
        "code": (make_code, [coded, show]),
        "planner": (make_planner, [called, show]),
        "streamed": (streaming.make_streamed, [called, parallel, show]),
        "streamed-code": (streaming.make_streamed_code, [coded, show]),
        "structured": (streaming.make_structured, [structured, show]),
        "streamed-planner": (streaming.make_streamed_planner, [called, show]),
        "family": (streaming.make_family, [managed, manages_coder, show]),
        "code-family": (streaming.make_code_family, [code_manages, show]),
        "careful": (streaming.make_careful, [[*called[:-1], ECHO], show]),
    }


@pytest.mark.parametrize("agent", mostly_deep(SHOWN, fast=["scripted", "code", "streamed-planner", "family"]))
def test_models_are_shown_the_same_as_without_the_service(service: Service, agent: str) -> None:
    factory, scripts = prompts()[agent]
    bare = factory()
    expected = [str(bare.run(json.dumps(script), reset=False)) for script in scripts]
    turn: Event = {}
    replies = []
    for script in scripts:
        turn = service.follow_up(turn, *script) if turn else service.play(*script, agent=agent)
        replies.append(turn["reply"])
    assert replies == expected
    assert len(expected[0]) >= 64 or agent == "careful"


def test_a_step_whose_model_fails_is_not_shown_as_finished(service: Service) -> None:
    events = seen(service, ECHO, {"raise": "the key is hunter2"})
    assert [event["type"] for event in events if event.get("step_id") == "2"] == ["step.started"]
    assert events[-1]["type"] == "turn.failed"
    assert events[-1]["result"]["error"]["code"] == "model_error"
    assert "hunter2" not in json.dumps(events[1:-1])
    assert len(service.steps(events[-1]["result"])) == 2


def test_large_texts_are_cut_in_events_with_a_mark_and_whole_in_the_steps(service: Service) -> None:
    large = "x" * 4999 + "!"
    events = seen(service, {"call": [["echo", {"text": large}]]}, DONE)
    mark = f"{'x' * 2000}… (5000 characters)"
    called = next(event for event in events if event["type"] == "tool.call")
    returned = next(event for event in events if event["type"] == "tool.result")
    finished = next(event for event in events if event["type"] == "step.finished")
    assert (called["arguments"], returned["result"], finished["observations"]) == ({"text": mark}, mark, mark)
    assert service.steps(events[-1]["result"])[1]["observations"] == large
    assert events[-1]["result"]["tool_calls"][0]["arguments"] == {"text": large}


@deep
def test_a_turn_records_its_calls_up_to_a_bound(service: Service) -> None:
    many = "for i in range(5010): echo('')\ntry:\n    fail('once')\nexcept ValueError:\n    pass"
    turn = service.play({"code": "for i in range(6): echo('x' * 900_000)"}, {"code": many}, DONE, agent="code")
    called = Counter(turn["tool_call_names"])
    assert called == {"echo": 4998, "fail": 1}
    sizes = [len(json.dumps(call["arguments"])) for call in turn["tool_calls"] if call["name"] == "echo"][:6]
    assert (sizes[0] > 900_000, sum(sizes) < 5_000_000) == (True, True)


def test_an_answer_is_shown_while_it_is_still_being_written(service: Service, tmp_path: Path) -> None:
    gates = [tmp_path / name for name in ("escape", "pair")]
    escape, pair = ({"gate": str(gate)} for gate in gates)
    pieces = [[0, '{"answer": "one\\', "final_answer"], escape, [0, "n two \\ud83d"], pair, [0, '\\ude00 three"}']]
    with posting(service, {"stream": pieces}) as stream:
        assert stream.until("message.delta")["text"] == "one"
        gates[0].touch()
        assert stream.until("message.delta")["text"] == "\n two "
        gates[1].touch()
        events = [frame.data for frame in stream.rest()]
    assert spoken(events, "answer") == "😀 three"
    assert events[-1]["result"]["reply"] == "one\n two 😀 three"


def test_arguments_of_parallel_calls_are_told_apart_while_they_come(service: Service) -> None:
    woven = ["I call ", [0, '{"te', "echo"], [1, '{"seconds": ', "compute"], "both.", [0, 'xt": "x"}'], [1, "0}"]]
    events = seen(service, {"stream": woven}, DONE)
    first = [event for event in events if event.get("call_id") == "1.m1"]
    assert spoken(first, "thought") == "I call both."
    assert spoken(first, "arguments", index=0, name="echo") == '{"text": "x"}'
    assert spoken(first, "arguments", index=1, name="compute") == '{"seconds": 0}'
    assert [call["arguments"] for call in events[-1]["result"]["tool_calls"]] == [{"text": "x"}, {"seconds": 0}]


def test_pieces_that_come_fast_arrive_as_one_and_nothing_is_lost(service: Service) -> None:
    words = [f"word {number} " for number in range(500)]
    events = seen(service, {"stream": [*words, [0, json.dumps({"answer": "x"}), "final_answer"]], "pace_s": 0.0005})
    pieces = [event for event in events if event["type"] == "message.delta" and event["channel"] == "thought"]
    assert "".join(event["text"] for event in pieces) == "".join(words)
    assert 2 <= len(pieces) < 100


def test_usage_is_summed_over_plans_steps_and_managed_agents(service: Service) -> None:
    helped = helped_by(delegate("helper", ECHO, {"say": "h"}))
    for agent, script in (
        ("family", [{"call": [delegate("lead", helped, {"say": "l"})]}, DONE]),
        ("streamed-planner", [ECHO, DONE]),
    ):
        events = seen(service, *script, agent=agent)
        finished = [event["usage"] for event in events if event["type"] == "step.finished"]
        models = {event["call_id"] for event in events if event["type"] == "message.delta"}
        for name, each in (("input_tokens", 10), ("output_tokens", 5)):
            assert events[-1]["result"]["usage"][name] == sum(usage[name] for usage in finished) == each * len(models)


def test_a_count_that_is_negative_or_no_whole_number_spoils_no_usage(service: Service) -> None:
    turn = service.get(place(service.play({**ECHO, "tokens": [-1, 2.5]}, DONE)))
    assert (turn["reply"], turn["usage"]) == ("done", used(10, 7))


def helped_by(call: list[Any]) -> Event:
    return {"call": [call]}


def calls_in(events: list[Event]) -> list[Event]:
    return [event for event in events if event["type"] == "tool.call"]


def check_places(events: list[Event]) -> None:
    """Check that each step opens and closes once, encloses its events, and lies within the call of its agent."""
    steps: dict[str, Event] = {}
    closed: set[str] = set()
    calls: dict[str, Event] = {}
    returned: set[str] = set()
    for event in events:
        if event["type"] not in PLACED:
            continue
        step_id, parent = event["step_id"], event["parent_call_id"]
        if event["type"] == "step.started":
            assert step_id not in steps
            steps[step_id] = event
        opened = steps[step_id]
        assert step_id not in closed, f"{event['type']} after the end of step {step_id}"
        assert all(event[name] == opened[name] for name in ("step", "agent", "parent_call_id"))
        if parent is None:
            assert "/" not in event["agent"]
        else:
            assert parent in calls
            assert parent not in returned
            assert event["agent"] == f"{calls[parent]['agent']}/{calls[parent]['name']}"
        if event["type"] == "tool.call":
            assert event["call_id"] not in calls
            calls[event["call_id"]] = event
        if event["type"] == "tool.result":
            assert event["call_id"] not in returned
            assert calls[event["call_id"]]["step_id"] == step_id
            returned.add(event["call_id"])
        if event["type"] == "step.finished":
            assert {call["call_id"] for call in calls.values() if call["step_id"] == step_id} <= returned
            closed.add(step_id)
    assert closed == set(steps)
    assert returned == set(calls)
