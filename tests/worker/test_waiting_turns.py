"""Turns that wait: ended, refused to others, counted, over in time, and going on after restarts, kills and days."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path

import httpx2
import psutil
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
from tests.support.service import PATIENCE_S, Gate, Service, samples, shared_service, wait_until
from tests.support.store_server import PARTITION, Raw, StoreServer
from tests.support.streaming import Event, check_numbers, log_of, place, watching
from tests.support.turns import DONE, cancel, error_code, submit_next, wait_for_end

pytestmark = pytest.mark.timeout(300)
DAY_S = 86_400
DRAWN = "import sqlite3\nx = sqlite3.connect(':memory:').execute('select hex(randomblob(8))').fetchone()[0]"
WILD = {"code": f"{DRAWN}\nprint(send_email('wild', x))"}


@pytest.fixture(scope="module")
def service(asking: Service) -> Service:
    return asking


# A service that waits one second for an answer.
impatient = shared_service(asking_service, ANSWER_TTL_S="1")


def test_a_cancel_ends_a_wait_and_keeps_the_calls_that_were_made(service: Service) -> None:
    turn = ask(service, {"call": [["echo", {"text": "a"}]]}, {"call": [mail("late1"), ["echo", {"text": "b"}]]}, DONE)
    told = cancel(service, turn)
    assert (told.status_code, told.json()["requests"]) == (202, [])
    ended = wait_for_end(service, turn)
    assert (ended["status"], ended["step_count"]) == ("cancelled", 1)
    assert [call["name"] for call in ended["tool_calls"] if call["ok"]] == ["echo", "echo"]
    names = [frame.event for frame in log_of(service, turn)]
    assert names[-1] == "turn.cancelled"
    assert answering(service, turn, APPROVE).status_code == 409
    assert service.follow_up(turn, DONE)["reply"] == "done"
    assert "late1: hi" not in sent(service)


def test_a_step_that_waited_shows_how_long_its_calls_took(service: Service) -> None:
    turn = ask(service, {"call": [mail("long")], "busy_s": 0.3}, DONE)
    ended = answer(service, turn, APPROVE)
    shown = [step["duration_ms"] for step in service.steps(ended) if step["type"] == "action"]
    told = [frame.data["duration_ms"] for frame in log_of(service, turn) if frame.event == "step.finished"]
    assert shown == told
    assert shown[0] >= 300


def test_a_new_turn_is_refused_and_told_that_the_other_one_waits(service: Service) -> None:
    turn = ask(service, {"call": [mail("busy")]}, DONE)
    response = service.post("/turn", conversation_id=turn["conversation_id"], message="[]")
    assert (response.status_code, error_code(response)) == (409, "busy")
    assert response.json()["waiting"] is True
    answer(service, turn, APPROVE)


@pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
def test_a_new_turn_ends_the_wait(service: Service, on_busy: str) -> None:
    turn = ask(service, {"call": [["echo", {"text": "a"}]]}, {"call": [mail("stopped")]}, DONE)
    later = wait_for_end(service, submit_next(service, turn, {"say": "now"}, on_busy=on_busy))
    assert later["reply"] == "now"
    ended = read(service, turn)
    assert (ended["status"], ended["requests"]) == ("cancelled", [])
    assert answering(service, turn, APPROVE).status_code == 409
    assert "stopped: hi" not in sent(service)
    texts = [step.get("observations") for step in service.steps(later)]
    assert ("a" in texts) is (on_busy == "interrupt")


def test_a_deleted_conversation_waits_no_more(service: Service) -> None:
    turn = ask(service, {"call": [mail("deleted")]}, DONE)
    with watching(service, turn) as stream:
        stream.until("turn.waiting")
        assert service.client.delete(f"/conversations/{turn['conversation_id']}").status_code in {202, 204}
        wait_until(lambda: service.client.get(place(turn)).status_code == 404)
        ended = stream.rest()[-1].data["result"]
    assert ended["error"]["message"].endswith("while this turn waited.")
    assert ended["timing"]["waited_ms"] > 0
    assert answering(service, turn, APPROVE).status_code == 404
    ids = [each["id"] for each in service.get("/conversations", status="waiting", limit=100)["items"]]
    assert turn["conversation_id"] not in ids


def test_waiting_turns_hold_no_thread_and_are_counted(service: Service) -> None:
    process = psutil.Process(service.process.pid)
    turns = [ask(service, {"code": "send_email('held', 'hi')"}, DONE, agent="code-mailer") for _ in range(2)]
    wait_until(lambda: samples(service)["threads_busy", ""] == 0)
    before = process.num_threads(), len(process.children(recursive=True))
    turns += [ask(service, {"code": "send_email('held', 'hi')"}, DONE, agent="code-mailer") for _ in range(8)]
    wait_until(lambda: samples(service)["threads_busy", ""] == 0)
    assert process.num_threads() <= before[0] + 8  # of the pool, which serves all turns
    wait_until(lambda: len(process.children(recursive=True)) <= before[1] + 1)
    wait_until(lambda: samples(service)["turns_waiting", ""] >= 10)
    assert samples(service)["turns_waiting_oldest_seconds", ""] > 0
    for turn in turns:
        cancel(service, turn)
    for turn in turns:
        wait_for_end(service, turn)


def test_a_call_that_nobody_answers_in_time_is_not_made_and_the_model_is_told(impatient: Service) -> None:
    turn = ask(impatient, {"call": [mail("expired"), ["echo", {"text": "x"}]]}, DONE)
    ended = wait_for_end(impatient, turn)
    assert (ended["status"], ended["reply"]) == ("finished", "done")
    assert decisions(ended) == [("send_email", "expired"), ("echo", None)]
    approval = ended["tool_calls"][0]["approval"]
    assert (approval["by"], approval["reason"], approval["at"]) == (
        *(None, "answer_timeout", turn["requests"][0]["expires_at"]),
    )
    sentence = "[rejected] Nobody approved this call of send_email in time (answer_timeout). It was not made."
    assert observed(impatient, turn)[0] == f"{sentence}\nx"
    assert ended["tool_call_names"] == ["echo"]
    late = answering(impatient, turn, APPROVE)
    assert (late.status_code, error_code(late)) == (409, "not_waiting")
    assert "expired: hi" not in sent(impatient)


def test_a_question_that_nobody_answers_says_so(impatient: Service) -> None:
    turn = ask(impatient, {"code": "print(ask_user('Who?'))"}, DONE, agent="code-mailer")
    assert decisions(wait_for_end(impatient, turn)) == [("ask_user", "expired")]
    assert "[no answer] Nobody answered in time (answer_timeout)." in observed(impatient, turn)[0]


def test_an_answer_to_one_of_two_calls_does_not_prolong_the_other(impatient: Service) -> None:
    turn = ask(impatient, {"call": [mail("in time"), mail("out of time")]}, DONE)
    answering(impatient, turn, APPROVE, Prefer="respond-async")
    assert decisions(wait_for_end(impatient, turn)) == [("send_email", "approved"), ("send_email", "expired")]
    assert [line for line in sent(impatient) if "time" in line] == ["in time: hi"]


def test_calls_that_were_asked_together_expire_together(impatient: Service) -> None:
    turn = ask(impatient, {"call": [mail(f"together{number}") for number in range(6)]}, DONE)
    assert len({request["expires_at"] for request in turn["requests"]}) > 1
    ended = wait_for_end(impatient, turn)
    assert decisions(ended) == [("send_email", "expired")] * 6
    assert ended["attempts"] == 2


def test_a_call_that_was_asked_later_waits_its_own_time(impatient: Service) -> None:
    code = "for to in ('x1', 'x2', 'x3'):\n    print(send_email(to, 'hi'))"
    ended = wait_for_end(impatient, ask(impatient, {"code": code}, DONE, agent="code-mailer"))
    assert decisions(ended) == [("send_email", "expired")] * 3
    times = [call["approval"]["at"] for call in ended["tool_calls"]]
    assert times == sorted({*times})


def test_a_replayed_block_with_other_arguments_asks_anew_and_fails_after_three(service: Service) -> None:
    turn = ask(service, WILD, DONE, agent="wild")
    seen: list[Event] = []
    first = turn["requests"][0]["request_id"]
    for number in (1, 2, 3, 4):
        (request,) = turn["requests"]
        assert request["request_id"] == first + ("" if number == 1 else f":{number}")
        assert request["replaces"] == (seen[-1]["request_id"] if seen else None)
        assert request["arguments"] not in [each["arguments"] for each in seen]
        seen.append(request)
        turn = answer(service, turn, APPROVE, status=202 if number < 4 else 200)
    assert (turn["status"], turn["error"]["code"]) == ("failed", "replay_diverged")
    assert not [line for line in sent(service) if line.startswith("wild")]
    assert service.follow_up(turn, {"say": "on"})["status"] == "finished"


def test_no_answer_to_the_earlier_request_approves_the_new_one(service: Service) -> None:
    turn = ask(service, WILD, DONE, agent="wild")
    second = answer(service, turn, APPROVE, status=202)
    again = answer(service, turn, APPROVE, status=202)  # the same answer once more
    assert again["requests"] == second["requests"]
    old = answering(service, second, {"request_id": turn["requests"][0]["request_id"], "decision": "reject"})
    assert (old.status_code, error_code(old)) == (409, "already_answered")
    assert not [line for line in sent(service) if line.startswith("wild")]
    assert cancel(service, second, "wait=100").json()["status"] == "cancelled"


def test_a_turn_that_waits_long_is_not_over_its_deadline(service: Service) -> None:
    turn = ask(service, {"call": [mail("patient")]}, {"call": [mail("again")]}, DONE, deadline_s=3)
    for status in (202, 200):
        time.sleep(1.6)
        turn = answer(service, turn, APPROVE, status=status)
    assert turn["status"] == "finished", turn["error"]
    assert turn["timing"]["waited_ms"] >= 3200
    assert turn["timing"]["duration_ms"] < 3000


def test_an_answer_and_the_end_of_the_wait_at_once_have_one_effect(impatient: Service) -> None:
    turns = [ask(impatient, {"call": [mail(f"r{number}")]}, DONE) for number in range(8)]

    def answer_late(turn: Event) -> httpx2.Response:
        expires = datetime.fromisoformat(turn["requests"][0]["expires_at"]).timestamp()
        time.sleep(max(0.0, expires - time.time() + 0.05 * (turns.index(turn) - 2)))
        return answering(impatient, turn, APPROVE, Prefer="respond-async")

    with ThreadPoolExecutor(8) as pool:
        for number, response in enumerate(pool.map(answer_late, turns)):
            ((_, decision),) = decisions(wait_for_end(impatient, turns[number]))
            is_taken = response.status_code in {200, 202}
            assert decision == ("approved" if is_taken else "expired"), response.text
            assert sent(impatient).count(f"r{number}: hi") == int(is_taken)
            assert is_taken or error_code(response) == "not_waiting"


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
