"""The record of a turn is whole, however it ended: its times, its tokens, and the reason."""

from pathlib import Path

import pytest

from tests.support.metrics import totals
from tests.support.service import Service
from tests.support.streaming import Event, posting
from tests.support.turns import DONE, ECHO, ENDLESS, cancel, held_turn, submit_turn, wait_for_end


def assert_counted(turn: Event, calls: int) -> None:
    """Check the times and the tokens of a turn. Each call of the scripted model takes 10 and gives 5."""
    assert turn["usage"] == {"input_tokens": 10 * calls, "output_tokens": 5 * calls}
    timing = turn["timing"]
    assert timing["submitted_at"] <= timing["started_at"] <= timing["finished_at"]
    assert timing["queued_ms"] >= 0
    assert timing["duration_ms"] > 0


@pytest.mark.parametrize("how", ["cancel", "deadline", "interrupt", "rollback"])
def test_a_turn_that_is_stopped_counts_its_calls_and_says_why(service: Service, how: str) -> None:
    body: Event = {"deadline_s": 4} if how == "deadline" else {}
    with posting(service, ECHO, ENDLESS, **body) as stream:
        turn = stream.until("message.delta", step=2) | {"agent": {"name": "streamed"}}
        if how == "cancel":
            cancel(service, turn)
        elif how != "deadline":
            service.follow_up(turn, DONE, on_busy=how)
    ended = wait_for_end(service, turn)
    codes = {"deadline": "deadline_exceeded", "interrupt": "interrupted", "rollback": "rolled_back"}
    assert (ended["error"] or {}).get("code") == codes.get(how)
    assert (ended["rolled_back"], ended["steps"]) == (how == "rollback", int(how != "rollback"))
    assert_counted(ended, 1)


def test_a_failed_turn_counts_its_calls(service: Service) -> None:
    ended = service.play(ECHO, {"raise": "model_error"})
    assert ended["status"] == "failed"
    assert_counted(ended, 1)


def test_a_turn_that_never_started_says_so(narrow: Service, tmp_path: Path) -> None:
    name = 'smolsessions_turns_total{agent="scripted",code="",status="cancelled"}'
    before = totals(narrow).get(name, 0)
    with held_turn(narrow, tmp_path / "gate"):
        waiting = submit_turn(narrow, DONE)
        cancel(narrow, waiting)
        ended = wait_for_end(narrow, waiting)
    assert totals(narrow)[name] == before + 1
    timing = ended["timing"]
    assert (ended["status"], ended["attempts"], ended["usage"]["input_tokens"]) == ("cancelled", 0, 0)
    assert timing["started_at"] is None
    assert timing["finished_at"] >= timing["submitted_at"]
    assert timing["queued_ms"] > 0
    assert timing["duration_ms"] == 0
