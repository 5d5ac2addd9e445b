"""The record of a turn is whole, however it ended: its times, its tokens, and the reason."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.service import CODELESS, Service
from tests.support.turns import DONE, submit_turn, wait_for_end
from tests.support.waiting import wait_until

INPUT, OUTPUT = 10, 5  # tokens of each call of the scripted model
ECHO = {"call": [["echo", {"text": "hello"}]]}
ENDLESS = {"endless": "on and on ", "pace_s": 0.002}


def tokens(calls: int) -> dict[str, int]:
    return {"input_tokens": calls * INPUT, "output_tokens": calls * OUTPUT}


def assert_timed(turn: dict[str, Any]) -> None:
    timing = turn["timing"]
    assert timing["submitted_at"] <= timing["started_at"] <= timing["finished_at"]
    assert timing["queued_ms"] >= 0
    assert timing["duration_ms"] > 0


def running(service: Service, **body: Any) -> dict[str, Any]:
    """Begin a turn that calls a tool and then talks without end. Return the turn once it talks."""
    turn = submit_turn(service, ECHO, ENDLESS, agent="streamed", **body)
    where = f"/conversations/{turn['conversation_id']}/turns/{turn['turn']}/events"
    with service.client.stream("GET", where) as answer:
        assert any("on and on" in line for line in answer.iter_lines())
    return turn


def cancel(service: Service, turn: dict[str, Any]) -> None:
    service.post(f"/conversations/{turn['conversation_id']}/turns/{turn['turn']}/cancel")


def test_a_cancelled_turn_counts_its_calls(narrow: Service) -> None:
    turn = running(narrow)
    cancel(narrow, turn)

    ended = wait_for_end(narrow, turn)

    assert (ended["status"], ended["usage"], ended["steps"]) == ("cancelled", tokens(1), 1)
    assert_timed(ended)


def test_a_turn_at_its_deadline_counts_its_calls(narrow: Service) -> None:
    ended = wait_for_end(narrow, running(narrow, deadline_s=4))

    assert (ended["error"]["code"], ended["usage"]) == ("deadline_exceeded", tokens(1))
    assert_timed(ended)


def test_a_failed_turn_counts_its_calls(narrow: Service) -> None:
    ended = narrow.play(ECHO, {"raise": "model_error"})

    assert (ended["status"], ended["usage"]) == ("failed", tokens(1))
    assert_timed(ended)


@pytest.mark.parametrize(("on_busy", "rolled_back"), [("interrupt", False), ("rollback", True)])
def test_a_turn_that_another_one_stops_says_so(narrow: Service, on_busy: str, rolled_back: bool) -> None:
    turn = running(narrow)
    narrow.follow_up(turn, DONE, on_busy=on_busy)

    ended = wait_for_end(narrow, turn)

    assert (ended["status"], ended["rolled_back"], ended["usage"]) == ("cancelled", rolled_back, tokens(1))
    assert_timed(ended)


def test_a_turn_that_never_started_says_so(narrow: Service) -> None:
    first = running(narrow)
    waiting = submit_turn(narrow, DONE)
    cancel(narrow, waiting)

    ended = wait_for_end(narrow, waiting)
    cancel(narrow, first)

    timing = ended["timing"]
    assert (ended["status"], ended["attempts"], ended["usage"]) == ("cancelled", 0, tokens(0))
    assert timing["started_at"] is None
    assert timing["finished_at"] >= timing["submitted_at"]
    assert timing["queued_ms"] > 0
    assert timing["duration_ms"] == 0


def test_a_turn_that_is_given_up_after_a_crash_counts_the_calls_of_its_unfinished_step(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    service = Service(tmp_path, CODELESS | {"DRAIN_S": "0"})
    service.start()
    turn = submit_turn(service, ECHO, {"call": [["wait_for", {"path": str(gate)}]]}, agent="streamed")
    wait_until(gate.with_suffix(".started").exists)
    service.kill()
    service.settings["AGENTS"] = "streamed=tests.support.streaming:make_streamed_planner"
    with service:
        ended = wait_for_end(service, turn)

    assert (ended["error"]["code"], ended["usage"], ended["attempts"]) == ("agent_changed", tokens(2), 2)
    assert_timed(ended)
