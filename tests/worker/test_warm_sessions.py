"""Agents that stay in memory between turns: how many, for how long, and only while no other process has written."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.metrics import totals
from tests.support.pictures import png
from tests.support.service import PLAIN, Service
from tests.support.store_server import StoreServer
from tests.support.turns import PROMPT, submit_next, wait_for_end
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def few(outside: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service that keeps two agents, with few bytes."""
    settings = PLAIN | outside.settings | {"WARM_SESSIONS": "2", "WARM_MB": "0.0001"}
    with Service(tmp_path_factory.mktemp("few"), settings) as running:
        yield running


def warm(service: Service) -> float:
    return totals(service)["smolsessions_sessions_warm"]


def test_few_agents_stay_and_none_of_a_turn_that_failed_or_with_many_bytes(few: Service) -> None:
    for _ in range(2):
        few.play({"say": "large"}, images=[png("red", (100, 100))])
        wait_until(lambda: warm(few) == 0)
        turn = few.play({"say": "a"})
        few.follow_up(turn, {"say": "a"})
        few.play({"raise": "kaputt"})
        assert warm(few) == 1
        for _ in range(3):
            few.play({"say": "a"})
        wait_until(lambda: warm(few) == 2)


def test_an_unused_agent_does_not_stay_and_one_is_forgotten_if_another_process_played_on(
    few: Service, outside: StoreServer, tmp_path: Path
) -> None:
    first, apart = few.play({"say": "one"}), few.play({"say": "one"})
    with Service(tmp_path, PLAIN | outside.settings | {"WARM_IDLE_S": "0.2"}) as other:
        few.process.send_signal(signal.SIGSTOP)  # otherwise the conversation would be left to it for a moment
        try:
            turn = wait_for_end(other, submit_next(other, first, {"say": "two"}))
        finally:
            few.process.send_signal(signal.SIGCONT)
        assert (turn["status"], turn["attempts"]) == ("finished", 1)
        wait_until(lambda: warm(other) == 0)
    few.follow_up(apart, {"say": "two"})
    assert few.follow_up(first, PROMPT)["reply"] == few.follow_up(apart, PROMPT)["reply"]
