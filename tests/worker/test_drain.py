"""A process that is asked to end finishes its running steps within its time, and hands their turns back."""

import json
import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import ledgers
from tests.support.killed_turns import SETTINGS, WITHOUT_CODE, KilledTurn, Script, check_log, note_call
from tests.support.ledgers import Ledger
from tests.support.service import Service
from tests.support.stopwatch import Stopwatch
from tests.support.store_server import running_store
from tests.support.streaming import FINAL, Event, Frame, log_of, place, posting
from tests.support.turns import DONE, submit_turn, wait_for_end
from tests.support.waiting import PATIENCE_S, wait_until

LEASE = {"LEASE_S": "30"}  # long: a turn that continues at once was handed back, its lease did not expire
UNKNOWN = "it is not known whether this call of charge had its effect"


def make_killed_turn(folder: Path, *at: int, agent: str = "teller", script: Script | None = None) -> KilledTurn:
    ledger = Ledger.at(folder / "turn.ledger", *at)
    path = str(ledger.path)
    return KilledTurn(ledger, agent, script or [note_call(path, "a"), note_call(path, "b"), DONE])


def called(it: KilledTurn) -> list[str]:
    """Return the calls of a turn, without the models' prompts."""
    return [call.split(" ")[0] if call.startswith("model") else call for call in it.ledger.calls]


def told(service: Service, turn: Event) -> list[Frame]:
    """Check the log of a turn that is over, and return it."""
    frames = log_of(service, turn)
    check_log(frames, frames)
    assert [count for count in Counter(frame.raw for frame in frames).values() if count > 1] == []
    return frames


def goes_on(service: Service, it: KilledTurn, turn: Event) -> bool:
    """Return whether the next turn's prompt equals that of a bare agent that was never handed over."""
    bare = getattr(ledgers, f"make_{it.agent}")()
    bare.run(json.dumps(it.script), reset=False)
    shown = service.follow_up(turn, {"prompt": True})["reply"]
    return bool(shown == bare.run(json.dumps([{"prompt": True}]), reset=False))


@pytest.mark.parametrize(("at", "where"), [(1, "model"), (2, "tool")])
def test_the_step_that_runs_is_finished_and_the_next_one_is_begun_elsewhere(
    tmp_path: Path, at: int, where: str
) -> None:
    it = make_killed_turn(tmp_path, at)
    service = Service(tmp_path / "service", WITHOUT_CODE | LEASE)
    with service:
        with posting(service, *it.script, agent=it.agent) as stream:
            it.turn = stream.until("turn.queued")
            wait_until(lambda: it.ledger.stands)
            service.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "stopping" in service.log())
            it.ledger.go()
            stream.rest()
        assert service.stop() == 0
    assert called(it) == ["model", "note a"], where
    assert stream.seen[-1].event == "step.finished"
    assert FINAL.isdisjoint(frame.event for frame in stream.seen)
    with service:
        ended = wait_for_end(service, it.turn)
        assert (ended["status"], ended["reply"], ended["attempts"]) == ("finished", "done", 2)
        assert [call["repeated"] for call in ended["tool_calls"]] == [False, False]
        assert called(it) == ["model", "note a", "model", "note b", "model"]
        frames = told(service, ended)
        assert [frame.raw for frame in frames[: len(stream.seen)]] == [frame.raw for frame in stream.seen]
        assert not [frame for frame in frames if frame.event == "message.restarted"]
        assert goes_on(service, it, ended)


def told_to_end_amid(service: Service, it: KilledTurn) -> None:
    """Play a turn until it blocks at its call, ask its process to end, and release the call."""
    it.turn = submit_turn(service, *it.script, agent=it.agent)
    wait_until(lambda: it.ledger.stands)
    service.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in service.log())
    it.ledger.go()
    assert service.process.wait(PATIENCE_S) == 0


def test_a_step_of_managed_agents_is_finished_with_all_of_theirs(tmp_path: Path) -> None:
    ledger = Ledger.at(tmp_path / "turn.ledger", 3)
    path = str(ledger.path)
    task = json.dumps([note_call(path, "a"), note_call(path, "b"), {"say": "helped"}])
    it = KilledTurn(ledger, "boss", [{"call": [["helper", {"task": task}]]}, note_call(path, "c"), DONE])
    service = Service(tmp_path / "service", SETTINGS | LEASE)
    with service:
        told_to_end_amid(service, it)
    assert called(it) == ["model", "model", "note a", "model", "note b", "model"]
    with service:
        ended = wait_for_end(service, it.turn)
        assert (ended["reply"], ended["attempts"]) == ("done", 2)
        assert called(it)[6:] == ["model", "note c", "model"]
        told(service, ended)
        assert goes_on(service, it, ended)


def test_a_plan_that_is_made_is_kept(tmp_path: Path) -> None:
    it = make_killed_turn(tmp_path, 1, agent="planner")
    service = Service(tmp_path / "service", WITHOUT_CODE | LEASE)
    with service:
        told_to_end_amid(service, it)
    assert called(it) == ["model"]
    with service:
        ended = wait_for_end(service, it.turn)
        assert (ended["reply"], ended["attempts"]) == ("done", 2)
        assert max(Counter(it.ledger.calls).values()) == 1
        told(service, ended)
        assert goes_on(service, it, ended)


def test_a_block_that_outlives_the_drain_is_broken_off_at_its_next_call_and_none_is_made_twice(tmp_path: Path) -> None:
    ledger = Ledger.at(tmp_path / "turn.ledger", 2)
    path = str(ledger.path)
    block = f"import time\nfor n in range(100):\n    note(str(n), {path!r})\n    time.sleep(0.02)"
    it = KilledTurn(ledger, "writer", [{"code": block}, DONE])
    service = Service(tmp_path / "service", SETTINGS | LEASE | {"DRAIN_S": "0.5"})
    with service:
        it.turn = submit_turn(service, *it.script, agent=it.agent)
        wait_until(lambda: it.ledger.stands)
        began = time.monotonic()
        with Stopwatch() as watch:
            service.process.send_signal(signal.SIGTERM)
            it.ledger.go()
            assert service.process.wait(PATIENCE_S) == 0
        assert time.monotonic() - began >= 0.5
        assert watch.s < 8
    before = called(it)
    assert before[:2] == ["model", "note 0"]
    assert 1 < len(before) < 101
    assert "does not heed" not in service.log()
    with service:
        ended = wait_for_end(service, it.turn)
        assert (ended["reply"], ended["attempts"], ended["steps"]) == ("done", 2, 2)
        assert called(it) == ["model", *(f"note {n}" for n in range(100)), "model"]
        repeated = [number for number, call in enumerate(ended["tool_calls"]) if call["repeated"]]
        next_one = len(before) - 1
        assert repeated in ([], [next_one]), "broken off where it was said to begin, and had not begun"
        told(service, ended)


@pytest.mark.parametrize("tool", ["note", "charge"])
def test_a_tool_that_outlives_the_drain_is_left_and_is_of_unknown_outcome_to_the_next_process(
    tmp_path: Path, tool: str
) -> None:
    ledger = Ledger.at(tmp_path / "turn.ledger", 2)
    path = str(ledger.path)
    it = KilledTurn(ledger, "teller", [{"call": [[tool, {"what": "a", "ledger": path}]]}, DONE])
    service = Service(tmp_path / "service", WITHOUT_CODE | LEASE | {"DRAIN_S": "0.3"})
    with service:
        with posting(service, *it.script, agent=it.agent) as stream, Stopwatch() as watch:
            it.turn = stream.until("tool.call")
            wait_until(lambda: it.ledger.stands)
            began = time.monotonic()
            watch.restart()
            service.process.send_signal(signal.SIGTERM)
            stream.rest()
            assert service.process.wait(PATIENCE_S) == 0
        assert time.monotonic() - began >= 2
        assert watch.s < 10
    assert FINAL.isdisjoint(frame.event for frame in stream.seen)
    assert "does not heed" in service.log()
    ledger.go()
    with service:
        ended = wait_for_end(service, it.turn)
        assert (ended["status"], ended["reply"], ended["attempts"]) == ("finished", "done", 2)
        (call,) = ended["tool_calls"]
        first = service.steps(ended)[1]
        if tool == "note":
            assert called(it) == ["model", "note a", "note a", "model"]
            assert (call["ok"], call["repeated"]) == (True, True)
            assert goes_on(service, it, ended)
        else:
            assert called(it) == ["model", "charge a", "model"]
            assert (call["ok"], call["repeated"]) == (False, False)
            assert UNKNOWN in first["error"]["message"]
        frames = told(service, ended)
        assert [frame.raw for frame in frames[: len(stream.seen)]] == [frame.raw for frame in stream.seen]


def test_a_second_signal_hands_back_at_once_what_the_first_one_waits_for(tmp_path: Path) -> None:
    it = make_killed_turn(tmp_path, 2)
    service = Service(tmp_path / "service", WITHOUT_CODE | LEASE | {"DRAIN_S": "600"})
    with service:
        it.turn = submit_turn(service, *it.script, agent=it.agent)
        wait_until(lambda: it.ledger.stands)
        service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "stopping" in service.log())
        assert service.client.get("/livez").status_code == 200
        with Stopwatch() as watch:
            service.process.send_signal(signal.SIGTERM)
            assert service.process.wait(PATIENCE_S) == 0
        assert watch.s < 10
    assert "is handed back" in service.log()
    it.ledger.go()
    with service:
        ended = wait_for_end(service, it.turn)
        assert (ended["reply"], ended["attempts"]) == ("done", 2)
        assert called(it) == ["model", "note a", "note a", "model", "note b", "model"]


def test_a_turn_that_was_handed_back_many_times_is_not_given_up(tmp_path: Path) -> None:
    it = make_killed_turn(tmp_path, 2, 3, 4, 5, 6)
    service = Service(tmp_path / "service", WITHOUT_CODE | LEASE | {"DRAIN_S": "0.1"})
    for number in (2, 3, 4, 5):
        with service:
            it.turn = it.turn or submit_turn(service, *it.script, agent=it.agent)
            wait_until(lambda number=number: it.ledger.reached == number)  # type: ignore[misc]
            assert service.stop() == 0
    with service:
        wait_until(lambda: it.ledger.reached == 6)
        it.ledger.go()
        ended = wait_for_end(service, it.turn)
        assert (ended["status"], ended["reply"], ended["attempts"]) == ("finished", "done", 5)
        assert called(it) == ["model", *["note a"] * 5, "model", "note b", "model"]
        assert goes_on(service, it, ended)


def test_a_rolling_restart_loses_no_turn_and_makes_no_call_twice(tmp_path: Path) -> None:
    killed_turns = []
    for number in range(6):
        (tmp_path / str(number)).mkdir()
        it = make_killed_turn(tmp_path / str(number))
        slowly = {"pace_s": 0.03}
        it.script = [*(note_call(str(it.ledger.path), str(word)) | slowly for word in range(9)), DONE]
        killed_turns.append(it)
    with running_store(tmp_path / "store") as server, ExitStack() as stack:
        settings = WITHOUT_CODE | LEASE | server.settings
        services = [stack.enter_context(Service(tmp_path / name, settings)) for name in "abc"]
        for it, service in zip(killed_turns, services * 2, strict=True):
            it.turn = submit_turn(service, *it.script, agent=it.agent)
        wait_until(lambda: all(it.ledger.calls for it in killed_turns))
        for service in services:
            assert service.stop() == 0
            service.start()
        ended = [wait_for_end(services[0], it.turn) for it in killed_turns]
        assert [(turn["status"], turn["reply"]) for turn in ended] == [("finished", "done")] * 6
        assert sum(turn["attempts"] for turn in ended) > len(ended)
        for it, turn in zip(killed_turns, ended, strict=True):
            assert called(it) == [*(part for n in range(9) for part in ("model", f"note {n}")), "model"]
            assert [call["repeated"] for call in turn["tool_calls"]] == [False] * 9
            frames = log_of(services[1], turn)
            check_log(frames, frames, turn["attempts"])
            assert services[2].get(place(turn)) == turn
        assert goes_on(services[0], killed_turns[0], ended[0])
