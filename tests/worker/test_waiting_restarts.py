"""Waiting turns outlive restarts, drains, kills, and takeovers, and each approved call is made once."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.answering import (
    APPROVE,
    answer,
    answering,
    ask,
    asking_service,
    decisions,
    mail,
    read,
    sent,
)
from tests.support.streaming import FINAL, log_of, watching
from tests.support.turns import DONE, cancel, wait_for_end, wait_for_gate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.service import Service
    from tests.support.store_server import StoreServer
    from tests.support.streaming import Event
    from tests.support.waiting import Gate

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def pair(outside: StoreServer, tmp_path: Path) -> Iterator[tuple[Service, Service]]:
    """Yield two services on one store, with one outbox. The second one is not started."""
    first, second = (asking_service(tmp_path, **outside.settings) for _ in range(2))
    second.folder = tmp_path / "second"
    with ExitStack() as stack:
        stack.callback(lambda: second.stop() if hasattr(second, "process") else None)
        yield stack.enter_context(first), second


def loop(*receivers: str) -> Event:
    return {"code": f"import random\nfor to in {[*receivers]!r}:\n    print(send_email(to, str(random.random())))"}


def receivers(service: Service) -> list[str]:
    return [line.partition(":")[0] for line in sent(service)]


def check_log(service: Service, turn: Event) -> None:
    """Check that a log is whole, in order, and has one end."""
    frames = log_of(service, turn)
    assert [frame.id for frame in frames] == list(range(1, len(frames) + 1))
    assert [frame.event for frame in frames if frame.event in FINAL] == [frames[-1].event]


def test_a_wait_outlives_restarts_and_kills(pair: tuple[Service, Service]) -> None:
    service, _ = pair
    turn = ask(service, loop("a", "b"), DONE, agent="code-mailer")
    service.stop()
    service.start()
    assert read(service, turn)["requests"] == turn["requests"]
    again = answer(service, turn, APPROVE, status=202)
    service.kill()
    service.start()
    assert read(service, turn)["requests"] == again["requests"]
    ended = answer(service, again, APPROVE)
    assert (ended["status"], receivers(service)) == ("finished", ["a", "b"])
    assert ended["attempts"] == 3  # neither the drain nor the kill began one
    check_log(service, turn)


def test_a_drain_leaves_a_waiting_turn_alone_and_ends_its_stream(pair: tuple[Service, Service]) -> None:
    service, _ = pair
    turn = ask(service, {"call": [mail("drained")]}, DONE)
    with watching(service, turn) as stream:
        stream.until("turn.waiting")
        service.process.send_signal(signal.SIGTERM)
        assert stream.rest() == []
    assert service.stop() == 0
    service.start()
    assert answer(service, turn, APPROVE)["status"] == "finished"
    assert receivers(service) == ["drained"]


def test_another_process_takes_the_answer_and_plays_on(pair: tuple[Service, Service]) -> None:
    service, other = pair
    turn = ask(service, loop("a", "b", "c"), DONE, agent="code-mailer")
    other.start()
    turn = answer(other, turn, APPROVE, status=202)
    service.kill()
    turn = answer(other, turn, APPROVE, status=202)
    ended = answer(other, turn, APPROVE)
    assert (ended["status"], receivers(service)) == ("finished", ["a", "b", "c"])
    check_log(other, turn)
    service.start()


def test_a_kill_right_after_the_answer_asks_nobody_again(pair: tuple[Service, Service]) -> None:
    service, _ = pair
    turns = [ask(service, {"call": [mail(f"k{number}")]}, DONE) for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        found = [pool.submit(answering, service, turn, APPROVE, Prefer="respond-async") for turn in turns]
        answered = [each.result().status_code for each in found]
        service.kill()
    assert answered == [202] * 6
    service.start()
    for turn in turns:
        ended = wait_for_end(service, turn, 30)
        assert (ended["status"], decisions(ended)) == ("finished", [("send_email", "approved")]), ended["error"]
        assert [frame.event for frame in log_of(service, turn)].count("turn.waiting") == 1
        check_log(service, turn)
    repeated = [call["repeated"] for turn in turns for call in read(service, turn)["tool_calls"]]
    assert sorted({*receivers(service)}) == [f"k{number}" for number in range(6)]
    assert len(receivers(service)) <= 6 + sum(repeated)  # a call that a kill met is repeated, and says so


def test_a_kill_during_an_approved_call_repeats_it_without_asking(pair: tuple[Service, Service], gate: Gate) -> None:
    service, _ = pair
    turn = ask(service, wait_for_gate(gate.path), DONE, agent="plain", approve=["wait_for"])
    answering(service, turn, APPROVE, Prefer="respond-async")
    gate.reached(30)
    service.kill()
    gate.open()
    service.start()
    ended = wait_for_end(service, turn, 30)
    assert (ended["status"], decisions(ended)) == ("finished", [("wait_for", "approved")])
    assert [call["repeated"] for call in ended["tool_calls"]] == [True]
    assert [frame.event for frame in log_of(service, turn)].count("turn.waiting") == 1


def test_a_cancel_during_an_outage_of_all_processes_ends_the_turn(pair: tuple[Service, Service]) -> None:
    service, other = pair
    turn = ask(service, {"call": [mail("none")]}, DONE)
    other.start()
    service.kill()
    assert cancel(other, turn, "wait=20").json()["status"] == "cancelled"
    assert receivers(other) == []
    service.start()
