"""A stop works wherever the turn is, keeps finished steps, and leaves the next turn working. A deadline is a stop."""

import json
from pathlib import Path

import pytest

from tests.support.killed_turns import UNHEEDED, assert_goes_on, assert_steps_stored, cancel_and_check
from tests.support.problems import nothing_stored, problem
from tests.support.service import CODELESS, Gate, Service, totals, wait_until
from tests.support.streaming import Event, Stream, log_of, place, posting, watching
from tests.support.turns import DONE, ECHO, ENDLESS, cancel, delegate, held_turn, submit_turn, wait_for_end

SWALLOWING = {"code": "while True:\n    try:\n        compute(seconds=0.002)\n    finally:\n        continue"}
NAGGING = {"call": [["nag", {"times": 10**9}]]}


def test_a_turn_that_has_not_started_is_stopped_at_once_and_counted(narrow: Service, tmp_path: Path) -> None:
    name = 'smolsessions_turns_total{agent="streamed",code="",status="cancelled"}'
    before = totals(narrow).get(name, 0)
    with held_turn(narrow, tmp_path / "gate") as ahead:
        with posting(narrow, DONE) as stream:
            turn = stream.until("turn.queued")
            answer = cancel(narrow, turn)
            assert (answer.status_code, answer.json()["status"], answer.json()["step_count"]) == (200, "cancelled", 0)
            assert [frame.event for frame in stream] == ["turn.cancelled"]
        assert narrow.get(place(turn)) == answer.json() == stream.seen[-1].data["result"]
        assert narrow.get(place(ahead))["status"] == "running"
        assert (narrow.steps(turn), totals(narrow)[name]) == ([], before + 1)
        later = submit_turn(narrow, DONE, agent="streamed", conversation_id=turn["conversation_id"])
    assert [wait_for_end(narrow, each)["reply"] for each in (ahead, later)] == ["done", "done"]
    assert later["turn"] == 2
    ended, timing = answer.json(), answer.json()["timing"]
    assert (ended["attempts"], ended["usage"]["input_tokens"]) == (0, 0)
    assert (timing["started_at"], timing["duration_ms"], timing["queued_ms"] > 0) == (None, 0, True)
    assert timing["finished_at"] >= timing["submitted_at"]


def test_a_stop_lands_in_the_middle_of_a_stream(service: Service) -> None:
    with posting(service, ECHO, ENDLESS) as stream:
        stream.until("message.delta", step=2)
        turn = cancel_and_check(service, stream)
    assert turn["step_count"] == 1
    assert turn["usage"]["input_tokens"] > 10  # those of the first step, and an estimate
    assert turn["usage"]["output_tokens"] > 5
    timing = turn["timing"]
    assert timing["submitted_at"] <= timing["started_at"] <= timing["finished_at"]
    assert stream.seen[-2].event == "message.delta"
    assert_goes_on(service, turn)


def stop_at(service: Service, gate: Gate, stream: Stream) -> Event:
    """Stop a turn while its call waits at the gate, and open the gate then."""
    stream.until("tool.call", name="wait_for")
    gate.reached()
    answer = cancel(service, stream.seen[0].data)
    gate.open()
    return cancel_and_check(service, stream, answer)


def test_a_stop_between_steps_keeps_the_one_and_does_not_begin_the_other(service: Service, gate: Gate) -> None:
    with posting(service, gate.script, ENDLESS) as stream:
        turn = stop_at(service, gate, stream)
    assert turn["step_count"] == 1
    assert turn["tool_call_names"] == ["wait_for"]
    assert_goes_on(service, turn)


def test_a_stop_keeps_the_finished_steps_of_a_loop_of_an_authors_own(tmp_path: Path, gate: Gate) -> None:
    settings = {"AGENTS": "workflow=tests.support.killed_turns:make_workflow", "DEMO_AGENTS": "0"}
    with Service(tmp_path, settings) as service, posting(service, ECHO, gate.script, ECHO, agent="workflow") as stream:
        turn = stop_at(service, gate, stream)
        assert turn["step_count"] == 2
        assert_goes_on(service, turn)


def test_a_stop_lands_inside_agents_that_are_managed(service: Service) -> None:
    helped = {"call": [delegate("helper", ECHO, ENDLESS)]}
    with posting(service, ECHO, {"call": [delegate("lead", ECHO, helped)]}, DONE, agent="family") as stream:
        stream.until("message.delta", agent="family/lead/helper", step=2)
        turn = cancel_and_check(service, stream)
    assert turn["tool_call_names"] == ["echo", "lead", "echo", "helper", "echo"]
    assert [call["ok"] for call in turn["tool_calls"]] == [True, False, True, False, True]
    assert_goes_on(service, turn)


@pytest.mark.parametrize(
    ("agent", "entry", "name"), [("streamed-code", SWALLOWING, "compute"), ("streamed", NAGGING, "echo")]
)
def test_a_stop_lands_though_it_is_swallowed_for_ever(narrow: Service, agent: str, entry: Event, name: str) -> None:
    is_code, stuck = agent == "streamed-code", threads(narrow)["stuck"]
    with posting(narrow, {"code": "x = 1"} if is_code else ECHO, entry, agent=agent) as stream:
        stream.until("tool.result", name=name, step=2)
        turn = cancel_and_check(narrow, stream, heeds=is_code)
    assert turn["step_count"] == 1
    # The service ends the process of code.
    wait_until(lambda: threads(narrow) == {"stuck": stuck + (not is_code), "busy": 0, "free": 1})
    assert_goes_on(narrow, turn)


def test_a_stop_from_another_process_lands(replicas: tuple[Service, Service]) -> None:
    here, there = replicas
    with posting(here, ECHO, ENDLESS) as stream, watching(there, stream.until("message.delta", step=2)) as remote:
        remote.until("message.delta", step=2)
        turn = cancel_and_check(here, stream, cancel(there, stream.seen[0].data))
        assert remote.rest()[-1].data == stream.seen[-1].data
    assert there.get(place(turn)) == turn
    assert cancel(there, turn).status_code == 200
    assert_goes_on(here, turn)


def test_a_stop_may_be_asked_for_again_and_of_a_turn_that_is_over(service: Service, tmp_path: Path) -> None:
    with held_turn(service, tmp_path / "gate") as turn:
        first, second = cancel(service, turn), cancel(service, turn)
        assert [(each.status_code, each.json()["status"]) for each in (first, second)] == [(202, "running")] * 2
        assert first.headers["location"] == place(turn)
    ended = wait_for_end(service, turn)
    assert ended["status"] == "cancelled"
    finished = service.play(DONE)
    for each in (ended, finished):
        before = log_of(service, each)
        with nothing_stored(service):
            answer = cancel(service, each)
        assert (answer.status_code, answer.json()) == (200, each)
        assert log_of(service, each) == before


def test_a_deadline_ends_the_turn_as_failed_and_keeps_what_was_finished(service: Service) -> None:
    unheeded = service.log().count(UNHEEDED)
    with posting(service, ECHO, ENDLESS, deadline_s=0.3) as stream:
        events = [frame.data for frame in stream]
    assert service.log().count(UNHEEDED) == unheeded
    turn = events[-1]["result"]
    assert (events[-1]["type"], turn["status"], turn["error"]["code"]) == ("turn.failed", "failed", "deadline_exceeded")
    assert (turn["error"]["retryable"], turn["usage"]["output_tokens"] > 5) == (True, True)
    assert "0.3 s" in turn["error"]["message"]
    assert turn["timing"]["duration_ms"] >= 300
    assert_steps_stored(service, turn, stream)
    assert_goes_on(service, turn)


def test_the_deadline_of_turns_without_one_is_a_setting_and_so_is_the_longest(tmp_path: Path) -> None:
    with Service(tmp_path, CODELESS | {"DEADLINE_S": "1", "MAX_DEADLINE_S": "60", "LEASE_S": "0.5"}) as service:
        turn = service.play(ECHO, ENDLESS, agent="streamed")
        assert (turn["error"]["code"], turn["step_count"]) == ("deadline_exceeded", 1)
        assert turn["timing"]["duration_ms"] >= 1000
        longer = service.follow_up(turn, {"call": [["compute", {"seconds": 1.2}]]}, DONE, deadline_s=60)
        assert (longer["reply"], longer["attempts"]) == ("done", 1)  # its lease was renewed
        refused = service.post("/turn", agent="scripted", message="[]", deadline_s=60.1)
        assert problem(refused, 422, "invalid_request")["errors"][0]["pointer"] == "/deadline_s"


@pytest.mark.parametrize("how", ["a stop", "a deadline"])
def test_a_tool_that_ignores_a_stop_holds_up_nobody_and_keeps_nothing(narrow: Service, gate: Gate, how: str) -> None:
    stuck = threads(narrow)["stuck"]
    body: Event = {"deadline_s": 4} if how == "a deadline" else {}
    with posting(narrow, ECHO, gate.script, {"say": "a zombie's answer"}, **body) as stream:
        stream.until("tool.call", name="wait_for")
        gate.reached()
        if how == "a stop":
            assert cancel(narrow, stream.seen[0].data, "wait=100").json()["status"] == "cancelled"
        turn = stream.rest()[-1].data["result"]
    assert turn["status"] == ("cancelled" if how == "a stop" else "failed")
    assert_steps_stored(narrow, turn, stream)
    wait_until(lambda: threads(narrow) == {"stuck": stuck + 1, "busy": 0, "free": 1})
    assert_goes_on(narrow, turn)
    before = narrow.steps(turn), [frame.raw for frame in log_of(narrow, turn)], narrow.get(place(turn))
    gate.open()
    wait_until(lambda: threads(narrow) == {"stuck": stuck, "busy": 0, "free": 1})
    assert before == (narrow.steps(turn), [frame.raw for frame in log_of(narrow, turn)], narrow.get(place(turn)))
    assert "zombie" not in json.dumps(narrow.steps(turn)[1:])
    assert narrow.play(DONE)["reply"] == "done"


def threads(service: Service) -> dict[str, float]:
    found = totals(service)
    return {name: found[f"smolsessions_threads_{name}"] for name in ("stuck", "busy", "free")}
