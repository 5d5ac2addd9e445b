"""Asynchronous tools run on one event loop: parallel calls overlap, and a stop cancels them."""

from pathlib import Path

import pytest

from tests.support.answering import observed
from tests.support.service import Service, shared_service, wait_until
from tests.support.turns import DONE, cancel, submit_turn, wait_for_end

AGENTS = "tools=tests.support.async_tools:make_tools,coder=tests.support.async_tools:make_coder"


service = shared_service({"AGENTS": AGENTS, "DEMO_AGENTS": "0"})


def test_parallel_calls_of_a_step_overlap(service: Service) -> None:
    calls = [["meet", {"name": name, "count": 2}] for name in ("ann", "bob")]
    assert observed(service, service.play({"call": calls}, DONE, agent="tools"))[0] == "ann met 1\nbob met 1"


def test_code_gets_the_result(service: Service) -> None:
    turn = service.play({"code": "print(meet('eve', 1) + '!')"}, DONE, agent="coder")
    assert "eve met 0!" in observed(service, turn)[0]


@pytest.mark.parametrize("agent", ["tools", "coder"])
def test_a_stop_cancels_a_call(service: Service, tmp_path: Path, agent: str) -> None:
    path = tmp_path / "said"
    entry = {"call": [["hang", {"path": str(path)}]]} if agent == "tools" else {"code": f"hang({str(path)!r})"}
    turn = submit_turn(service, entry, DONE, agent=agent)
    wait_until(lambda: path.exists() and path.read_text() == "begun")
    cancel(service, turn)
    assert wait_for_end(service, turn)["status"] == "cancelled"
    assert path.read_text() == "cancelled"


@pytest.mark.parametrize("how", ["exit", "cancel"])
def test_a_tool_that_gives_up_ends_neither_loop_nor_process(service: Service, how: str) -> None:
    first = service.post(
        "/turn", agent="tools", message=f'[{{"call": [["give_up", {{"how": "{how}"}}]]}}, {{"say": "x"}}]'
    )
    assert first.status_code == 200
    turn = service.play({"call": [["meet", {"name": "zoe", "count": 1}]]}, DONE, agent="tools")
    assert observed(service, turn)[0] == "zoe met 0"
