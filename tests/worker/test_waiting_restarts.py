"""Waiting turns outlive restarts, drains, kills, takeovers and days, and each approved call is made once."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
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
    observed,
    read,
    sent,
)
from tests.support.service import PATIENCE_S, Gate, Service
from tests.support.store_server import PARTITION, Raw, StoreServer
from tests.support.streaming import Event, check_numbers, log_of, watching
from tests.support.turns import DONE, cancel, wait_for_end

pytestmark = pytest.mark.timeout(300)
DAY_S = 86_400


@pytest.fixture
def pair(outside: StoreServer, tmp_path: Path) -> Iterator[tuple[Service, Service]]:
    first, second = (asking_service(tmp_path, **outside.settings) for _ in range(2))
    second.folder = tmp_path / "second"
    with ExitStack() as stack:
        stack.callback(lambda: second.stop() if hasattr(second, "process") else None)
        yield stack.enter_context(first), second


def loop(*receivers: str) -> Event:
    return {"code": f"import random\nfor to in {[*receivers]!r}:\n    print(send_email(to, str(random.random())))"}


def receivers(service: Service) -> list[str]:
    return [line.partition(":")[0] for line in sent(service)]


def test_a_wait_outlives_drains_kills_and_days(pair: tuple[Service, Service], outside: StoreServer) -> None:
    service, other = pair
    turn = ask(service, loop("a", "b", "c"), DONE, agent="code-mailer")
    stopped = ask(service, {"call": [mail("none")]}, DONE)
    with watching(service, turn) as stream:
        stream.until("turn.waiting")
        service.process.send_signal(signal.SIGTERM)
        assert stream.rest() == []
    assert service.stop() == 0
    service.start()
    assert read(service, turn)["requests"] == turn["requests"]
    turn = answer(service, turn, APPROVE, status=202)
    service.kill()
    pass_time(outside.client(), turn, 2 * DAY_S)
    other.start()
    assert read(other, turn)["requests"] == turn["requests"]
    assert cancel(other, stopped, "wait=100").json()["status"] == "cancelled"
    turn = answer(other, turn, APPROVE, status=202)
    ended = answer(other, turn, APPROVE)
    assert (ended["status"], receivers(service)) == ("finished", ["a", "b", "c"])
    assert ended["attempts"] == 4  # neither the drain nor the kill began one
    check_numbers(log_of(other, turn))


def test_results_of_a_clients_tool_are_asked_for_once_over_kills(pair: tuple[Service, Service]) -> None:
    playing, other = pair
    square = {"name": "square", "description": "Square it.", "parameters": {"properties": {"n": {"type": "integer"}}}}
    block = {"code": "for n in range(5):\n    print(n, square(n=n))"}
    turn = ask(playing, block, DONE, agent="code-mailer", client_tools=[square])
    for n in range(5):
        playing.kill()
        playing, other = other, playing
        playing.start()
        assert [request["arguments"] for request in turn["requests"]] == [{"n": n}]
        turn = answer(playing, turn, {"result": n * n}, status=200 if n == 4 else 202)
    assert "0 0\n1 1\n2 4\n3 9\n4 16" in observed(playing, turn)[0]
    assert [(call["where"], call["repeated"]) for call in turn["tool_calls"]] == [("client", False)] * 5
    check_numbers(log_of(playing, turn))


def test_an_approved_call_is_not_approved_again_after_a_kill(pair: tuple[Service, Service], gate: Gate) -> None:
    """One call ends its process, while others have just been approved, or run."""
    service, _ = pair
    turns = [ask(service, {"call": [mail(f"k{number}")]}, DONE) for number in range(4)]
    held = ask(service, gate.script, DONE, agent="plain", approve=["wait_for"])
    crashing = ask(service, {"call": [["send_and_crash", {"to": "boom"}]]}, DONE, agent="careful")
    assert answering(service, held, APPROVE, Prefer="respond-async").status_code == 202
    gate.reached()
    with ThreadPoolExecutor(5) as pool:
        answered = [pool.submit(answering, service, turn, APPROVE, Prefer="respond-async") for turn in turns]
        assert [each.result().status_code for each in answered] == [202] * 4
        with suppress(httpx2.TransportError):
            answering(service, crashing, APPROVE)
    service.process.wait(PATIENCE_S)
    service.kill()  # closes its pipes
    gate.open()
    service.start()
    for turn in turns:
        ended = wait_for_end(service, turn)
        assert (ended["status"], decisions(ended)) == ("finished", [("send_email", "approved")]), ended["error"]
    repeated = [call["repeated"] for turn in turns for call in read(service, turn)["tool_calls"]]
    assert {*receivers(service)} == {"boom", *(f"k{number}" for number in range(4))}
    assert len(receivers(service)) <= 5 + sum(repeated)  # a call that the end met is repeated, and says so
    ended = wait_for_end(service, held)
    assert (ended["status"], decisions(ended)) == ("finished", [("wait_for", "approved")])
    assert [call["repeated"] for call in ended["tool_calls"]] == [True]
    ended = wait_for_end(service, crashing)
    assert ended["status"] == "finished", ended["error"]
    assert receivers(service).count("boom") == 1  # it is unsafe to repeat
    assert any("it is not known whether" in str(frame.data.get("error")) for frame in log_of(service, crashing))
    (call,) = ended["tool_calls"]
    assert (call["approval"]["decision"], call["ok"]) == ("approved", False)
    for turn in (*turns, held, crashing):
        assert [frame.event for frame in log_of(service, turn)].count("turn.waiting") == 1
        check_numbers(log_of(service, turn))


def test_an_agent_that_was_changed_takes_no_answer(pair: tuple[Service, Service]) -> None:
    service, _ = pair
    turns = [ask(service, {"call": [mail("changed")]}, DONE, agent="moody") for _ in range(2)]
    service.stop()
    service.environment["APPROVALS_INSTRUCTIONS"] = "Be another one."
    service.settings["DRAIN_S"] = "1"  # how long the turns are left to processes that have the agent as it was
    service.start()
    assert read(service, turns[0])["status"] == "waiting"
    for turn, said in zip(turns, (APPROVE, REJECT), strict=True):
        ended = answer(service, turn, said)
        error = ended["error"]
        assert (ended["status"], error["code"], error["retryable"]) == ("failed", "agent_changed", True)
        assert "input.answered" not in [frame.event for frame in log_of(service, turn)]
    assert receivers(service) == []


def pass_time(raw: Raw, turn: Event, seconds: float) -> None:
    """Let a time pass for a turn: move the times that the store compares with its clock back by that much."""
    ref, us = f"local/{turn['conversation_id']}", int(seconds * 1_000_000)
    run = f"{PARTITION}:run:{ref}:{turn['turn']}"
    for name in ("waits", "waits_since"):
        raw.hincrby(run, name, -us)
    raw.zincrby(f"{PARTITION}:waiting", -us, ref)
