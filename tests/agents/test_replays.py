"""Replays: a turn that goes on after a kill or a wait takes its results from the journal, and acts no other way."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.answering import APPROVE, answer, ask, mail
from tests.support.approvals import OUTBOX
from tests.support.ledgers import Ledger
from tests.support.providers import used
from tests.support.service import Gate, Service, listed, wait_until
from tests.support.streaming import Event, log_of, place
from tests.support.turns import DONE, ECHO, cancel, submit_turn, wait_for_end

AGENTS = ",".join(
    [listed("agents", "scripted wavering"), listed("ledgers", "judged"), listed("approvals", "code-mailer")]
)
HELPED = f"helper(task={json.dumps([ECHO, {'say': 'h'}])!r})"
UNHELPFUL = f"helper(task={json.dumps([{'say': 'h'}])!r})"


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    settings = {"AGENTS": AGENTS, "DEMO_AGENTS": "0", "LEASE_S": "0.5"}
    with Service(folder / "service", settings, {OUTBOX: str(folder / "outbox")}) as running:
        yield running


@pytest.fixture(scope="module")
def resumed(service: Service, folder: Path) -> dict[str, Event]:
    """Play turns until each is inside a tool, kill their process, and return them as the next one ended them.

    Code finds the file `later` in the replay alone.
    """
    gates = {name: Gate(folder / name) for name in ("shorter", "earlier", "other", "counted", "misnamed")}
    later, ready = folder / "later", folder / "ready"
    ready.touch()
    waits, acts = ({name: f"wait_for({str(folder / f'{name}{end}')!r})" for name in gates} for end in ("", ".acted"))
    blocks = {
        "shorter": f"    echo('a')\n    {waits['shorter']}",
        "earlier": f"    {UNHELPFUL}\nelse:\n    {acts['earlier']}\n{HELPED}\n{waits['earlier']}",
        "other": f"    wait_for({str(ready)!r})\nelse:\n    {acts['other']}\n{waits['other']}",
    }
    turns = {
        name: submit_turn(
            service,
            {"code": f"import os\nif not os.access({str(later)!r}, 0):\n{block}\nfinal_answer('an end')"},
            agent="wavering",
        )
        for name, block in blocks.items()
    }
    usage = {"prompt_tokens_details": {"cached_tokens": 7}, "cache_creation_input_tokens": 1}
    turns["counted"] = submit_turn(service, {**ECHO, "usage": usage}, gates["counted"].script, {**DONE, "usage": usage})
    turns["misnamed"] = submit_turn(service, {**ECHO, "role": "model"}, gates["misnamed"].script, DONE)
    for gate in gates.values():
        gate.reached()
    service.kill()
    later.touch()
    for name, gate in gates.items():
        gate.open()
        (folder / f"{name}.acted").touch()
    service.start()
    return {name: wait_for_end(service, turn) for name, turn in turns.items()}


def test_a_replay_that_asks_for_less_than_the_journal_diverges(service: Service, resumed: dict[str, Event]) -> None:
    turn = resumed["shorter"]
    assert (turn["status"], turn["reply"], turn["attempts"]) == ("failed", None, 2)
    assert turn["error"]["code"] == "replay_diverged"
    assert service.follow_up(turn, DONE)["status"] == "finished"


@pytest.mark.parametrize("name", ["earlier", "other"])
def test_a_call_that_was_made_later_or_otherwise_is_not_made(
    resumed: dict[str, Event], folder: Path, name: str
) -> None:
    assert resumed[name]["error"]["code"] == "replay_diverged"
    assert not (folder / f"{name}.acted.started").exists()


def test_usage_of_the_attempt_before_counts_once(resumed: dict[str, Event]) -> None:
    turn = resumed["counted"]
    assert turn["reply"] == "done"
    assert turn["usage"] == used(30, 15, cached_input_tokens=14, cache_write_tokens=2)
    assert [call["repeated"] for call in turn["tool_calls"]] == [False, True]


def test_a_role_that_smolagents_does_not_know_is_replayed_as_the_models(resumed: dict[str, Event]) -> None:
    assert (resumed["misnamed"]["reply"], resumed["misnamed"]["attempts"]) == ("done", 2)


def test_a_check_of_an_answer_is_journaled_before_it_runs(service: Service, tmp_path: Path) -> None:
    ledger = Ledger.at(tmp_path / "turn.ledger", 2)  # the model is its first call
    turn = submit_turn(service, {"say": "a.", "about": str(ledger.path)}, agent="judged")
    wait_until(lambda: ledger.stands)
    effects = service.get(place(turn, "/effects"))["items"]
    assert [(each["kind"], each["call_id"], each["state"]) for each in effects] == [
        ("model", "1.m1", "done"),
        ("check", "1.c1", "begun"),
    ]
    ledger.go()
    assert wait_for_end(service, turn)["reply"] == "a."


def test_a_block_that_waited_was_not_repeated(service: Service) -> None:
    code = {"code": f"final_answer(send_email(**{mail('ann')[1]!r}))"}
    ended = answer(service, ask(service, code, agent="code-mailer"), APPROVE)
    assert ended["reply"] == "sent to ann"
    calls = [f.data for f in log_of(service, ended, include_internal_tools=True) if f.event == "tool.result"]
    assert {(call["name"], call["repeated"]) for call in calls} == {
        ("python_interpreter", False),
        ("send_email", False),
        ("final_answer", False),
    }


def test_after_a_stop_no_further_call_begins(service: Service, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    turn = submit_turn(service, {"code": f"wait_for({str(gate.path)!r})\necho('after')"}, agent="wavering")
    gate.reached()
    cancel(service, turn)
    gate.open()
    assert wait_for_end(service, turn)["status"] == "cancelled"
    called = [frame.data["name"] for frame in log_of(service, turn) if frame.event == "tool.call"]
    assert called == ["python_interpreter", "wait_for"]
