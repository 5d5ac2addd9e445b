"""Conversations move between environments: another Python, or another smolagents, continues them, and back."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.environments import OLDEST_SMOLAGENTS, environment
from tests.support.killed_turns import SETTINGS, kill_when_blocked, make_killed_turn, submit_killed_turn
from tests.support.service import ROOT, Service
from tests.support.tiers import deep
from tests.support.turns import DONE, wait_for_end

AS_BARE_SMOLAGENTS = (
    "tests/memory/test_steps.py::test_every_step_of_a_run_is_finished_and_comes_back",
    "tests/agents/test_constructors.py",
    "tests/agents/test_partial_texts.py",
)


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the Python of an environment with the oldest smolagents that is supported."""
    return environment(tmp_path_factory.mktemp("older"), OLDEST_SMOLAGENTS)


@deep
@pytest.mark.timeout(120)
@pytest.mark.parametrize("first", ["other", "own"])
def test_a_turn_that_another_smolagents_began_is_continued(first: str, older: str, tmp_path: Path) -> None:
    pythons = [older, sys.executable] if first == "other" else [sys.executable, older]
    for agent in ("teller", "writer"):
        (tmp_path / agent).mkdir()
    ledger = tmp_path / "writer" / "turn.ledger"
    script = [{"code": f"import time\nfor _ in range(2):\n    note(str(time.time()), {str(ledger)!r})"}, DONE]
    its = [
        make_killed_turn(tmp_path / "teller", 4, agent="teller"),
        make_killed_turn(tmp_path / "writer", 3, agent="writer", script=script),
    ]
    service = Service(tmp_path / "service", SETTINGS | {"DRAIN_S": "1"}, python=pythons[0])
    service.start()
    for it in its:
        submit_killed_turn(service, it)
    kill_when_blocked(service, its)
    service.python = pythons[1]
    with service:
        for it in its:
            ended = wait_for_end(service, it.turn)
            assert (ended["status"], ended["attempts"]) == ("finished", 2), ended["error"]
            notes = [call for call in it.ledger.calls if call.startswith("note")]
            assert sorted(Counter(notes).values()) == [1, 2]
            assert [call["repeated"] for call in ended["tool_calls"]] == [False, True]
            assert service.follow_up(it.turn, DONE)["status"] == "finished"


@deep
def test_the_oldest_smolagents_is_hosted_as_it_is(older: str) -> None:
    command = [older, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "", *AS_BARE_SMOLAGENTS]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=580)
    assert not ended.returncode, ended.stdout[-5000:]
