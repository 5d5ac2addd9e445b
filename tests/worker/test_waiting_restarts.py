"""Waiting turns outlive restarts, drains, kills, takeovers and days, and each approved call is made once."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path

import httpx2
import pytest

from tests.support.answering import (
    APPROVE,
    REJECT,
    answer,
    answering,
    ask,
    asking_service,
    decisions,
    mail,
    read,
    sent,
    wait_for_requests,
)
from tests.support.service import Service
from tests.support.store_server import PARTITION, Raw, StoreServer
from tests.support.streaming import FINAL, Event, log_of, watching
from tests.support.turns import DONE, cancel, error_code, wait_for_end, wait_for_gate
from tests.support.waiting import Gate

pytestmark = pytest.mark.timeout(300)
DAY_S = 86_400


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


def test_an_approved_call_that_ends_its_process_is_approved_again_by_nobody(pair: tuple[Service, Service]) -> None:
    service, _ = pair
    turn = ask(service, {"call": [["send_and_crash", {"to": "boom"}]]}, DONE, agent="careful")
    with suppress(httpx2.TransportError):
        answering(service, turn, APPROVE)
    service.process.wait(30)
    service.kill()  # closes its pipes
    service.start()
    ended = wait_for_end(service, turn, 30)
    assert ended["status"] == "finished", ended["error"]
    assert receivers(service) == ["boom"]  # it is unsafe to repeat
    assert any("it is not known whether" in str(frame.data.get("error")) for frame in log_of(service, turn))
    (call,) = ended["tool_calls"]
    assert (call["approval"]["decision"], call["ok"]) == ("approved", False)


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


def test_an_agent_that_was_changed_takes_no_answer(pair: tuple[Service, Service]) -> None:
    service, _ = pair
    turns = [ask(service, {"call": [mail("changed")]}, DONE, agent="moody") for _ in range(2)]
    service.stop()
    service.environment["APPROVALS_INSTRUCTIONS"] = "Be another one."
    service.start()
    assert read(service, turns[0])["status"] == "waiting"
    for turn, said in zip(turns, (APPROVE, REJECT), strict=True):
        ended = answer(service, turn, said)
        assert (ended["status"], ended["error"]["code"], ended["error"]["retryable"]) == (
            "failed",
            "agent_changed",
            True,
        )
        names = [frame.event for frame in log_of(service, turn)]
        assert "input.answered" not in names
    assert receivers(service) == []
    service.stop()
    service.environment["APPROVALS_INSTRUCTIONS"] = "Be brief."
    service.start()
    turn = ask(service, {"call": [mail("same")]}, DONE, agent="moody")
    service.stop()
    service.start()
    assert answer(service, turn, APPROVE)["status"] == "finished"


def test_a_cancel_during_an_outage_of_all_processes_ends_the_turn(pair: tuple[Service, Service]) -> None:
    service, other = pair
    turn = ask(service, {"call": [mail("none")]}, DONE)
    other.start()
    service.kill()
    assert cancel(other, turn, "wait=20").json()["status"] == "cancelled"
    assert receivers(other) == []
    service.start()


def pass_time(raw: Raw, turn: Event, seconds: float) -> None:
    """Let a time pass for a turn: move the times that the store compares with its clock back by that much."""
    ref, us = f"local/{turn['conversation_id']}", int(seconds * 1_000_000)
    run = f"{PARTITION}:run:{ref}:{turn['turn']}"
    for name in ("waits", "waits_since"):
        raw.hincrby(run, name, -us)
    raw.zincrby(f"{PARTITION}:waiting", -us, ref)


def test_a_loop_over_five_approvals_takes_two_days_kills_and_two_processes(
    pair: tuple[Service, Service], outside: StoreServer
) -> None:
    service, other = pair
    raw, names = outside.client(), ["one", "two", "three", "four", "five"]
    turn = ask(service, loop(*names), DONE, agent="code-mailer", deadline_s=60)
    other.start()
    both, passed_s = [service, other], 0.0
    for number, name in enumerate(names):
        asked, answers = both[number % 2], both[(number + 1) % 2]
        turn = wait_for_requests(answers, turn)
        assert [request["arguments"]["to"] for request in turn["requests"]] == [name]
        asked.kill()
        pass_time(raw, turn, DAY_S / 2)
        passed_s += DAY_S / 2
        before = answers.get("/conversations", status="waiting", limit=100)["items"]
        assert turn["conversation_id"] in [each["id"] for each in before]
        assert receivers(service) == names[:number]
        assert answering(answers, turn, APPROVE, Prefer="respond-async").status_code == 202
        if number == 2:  # the process that got the answer ends right after it, too
            answers.kill()
            asked.start()
            answers.start()
        else:
            asked.start()
    assert passed_s > 2 * DAY_S
    ended = wait_for_end(both[0], turn, 60)
    assert ended["status"] == "finished", ended["error"]
    assert receivers(service) == names
    assert decisions(ended) == [("send_email", "approved")] * 5
    texts = {line.split(": ")[1] for line in sent(service)}
    assert len(texts) == 5
    check_log(both[1], turn)


def test_an_answer_and_the_end_of_the_wait_at_once_have_one_effect(tmp_path: Path) -> None:
    with asking_service(tmp_path, ANSWER_TTL_S="2") as service, ThreadPoolExecutor(8) as pool:
        turns = [ask(service, {"call": [mail(f"r{number}")]}, DONE) for number in range(8)]

        def answer_late(turn: Event) -> httpx2.Response:
            expires = datetime.fromisoformat(turn["requests"][0]["expires_at"]).timestamp()
            time.sleep(max(0.0, expires - time.time() + 0.05 * (turns.index(turn) - 2)))
            return answering(service, turn, APPROVE, Prefer="respond-async")

        for number, response in enumerate(pool.map(answer_late, turns)):
            ended = wait_for_end(service, turns[number], 30)
            ((_, decision),) = decisions(ended)
            is_taken = response.status_code == 202
            assert decision == ("approved" if is_taken else "expired"), response.text
            assert receivers(service).count(f"r{number}") == int(is_taken)
            assert is_taken or error_code(response) == "not_waiting"
