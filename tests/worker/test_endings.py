"""The record of a turn that ended before it started."""

from pathlib import Path

from tests.support.metrics import totals
from tests.support.service import Service
from tests.support.turns import DONE, cancel, held_turn, submit_turn, wait_for_end


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
