"""Checks of turns that were cancelled, and an agent with a loop of its own."""

import json
from contextlib import ExitStack
from typing import Any

import httpx2
from smolagents import LogLevel, ToolCallingAgent
from smolagents.agents import ToolOutput
from smolagents.memory import ActionStep, FinalAnswerStep, ToolCall
from smolagents.monitoring import Timing

from tests.support import agents
from tests.support.service import Service
from tests.support.stopwatch import Stopwatch
from tests.support.streaming import Event, Stream, check_numbers, log_of, place
from tests.support.turns import DONE, cancel

UNHEEDED = "a thread ignores a request to stop"


def cancel_and_check(
    service: Service,
    stream: Stream,
    answer: httpx2.Response | None = None,
    within_s: float | None = None,
    *,
    heeds: bool = True,
) -> Event:
    """Stop the turn of a stream, read to its end, check the conditions of every stopped turn, and return the turn.

    A turn whose thread `heeds` the stop ends without that thread being given up.
    """
    unheeded = service.log().count(UNHEEDED)
    with ExitStack() as stack:
        watch = stack.enter_context(Stopwatch()) if within_s else None
        answer = answer or cancel(service, stream.seen[0].data)
        assert answer.status_code in {200, 202}, answer.text
        stream.rest()
    if watch and within_s:
        assert watch.s < within_s
    else:
        assert service.log().count(UNHEEDED) == unheeded + (not heeds)
    final = stream.seen[-1]
    turn: Event = final.data["result"]
    assert (final.event, turn["status"], turn["error"], turn["reply"]) == ("turn.cancelled", "cancelled", None, None)
    check_numbers(stream.seen)
    assert turn == service.get(place(turn))
    assert_steps_stored(service, turn, stream)
    return turn


def assert_steps_stored(service: Service, turn: Event, stream: Stream) -> None:
    """Check that the stored steps are exactly those that were shown as finished."""
    shown = [f.data for f in stream.seen if f.event == "step.finished" and f.data["parent_call_id"] is None]
    kept = [step for step in service.steps(turn) if step["turn"] == turn["turn"] and step["type"] != "task"]
    assert len(kept) == len(shown) == turn["step_count"]
    assert [step["type"] for step in kept] == [event["kind"] for event in shown]
    assert [step.get("observations") for step in kept] == [event["observations"] for event in shown]
    assert [frame.raw for frame in log_of(service, turn)] == [frame.raw for frame in stream.seen]


def assert_goes_on(service: Service, turn: Event) -> None:
    """Play the next turn, and check that it leaves the steps of this one unchanged."""
    before = service.steps(turn)
    following = service.follow_up(turn, DONE)
    assert (following["status"], following["reply"], following["turn"]) == ("finished", "done", turn["turn"] + 1)
    assert service.steps(turn)[: len(before)] == before


class Workflow(ToolCallingAgent):  # type: ignore[misc, unused-ignore]
    """Calls tools in a loop of its own. A step is in the memory before its output is yielded."""

    def _run_stream(self, task: str, max_steps: int, images: Any = None) -> Any:  # noqa: ARG002
        for number, entry in enumerate(json.loads(task), 1):
            for name, arguments in entry.get("call", ()):
                output = str(self.tools[name](**arguments))
                self.memory.steps.append(ActionStep(step_number=number, timing=Timing(0.0, 1.0), observations=output))
                yield ToolOutput(
                    "call",
                    output,
                    is_final_answer=False,
                    observation=output,
                    tool_call=ToolCall(name, arguments, "call"),
                )
        yield FinalAnswerStep("done")


def make_workflow() -> Workflow:
    return Workflow(tools=agents.TOOLS, model=agents.ScriptedModel(), verbosity_level=LogLevel.OFF)
