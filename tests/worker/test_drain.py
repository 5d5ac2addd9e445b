"""A process that is asked to end finishes its running steps within its time, and hands their turns back.

The turns of a fixture block, each at its chosen call, when their process is asked to end. The next one is running then.
"""

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from tests.support import ledgers
from tests.support.killed_turns import (
    SETTINGS,
    WITHOUT_CODE,
    KilledTurn,
    check_log,
    make_killed_turn,
    note_call,
    submit_killed_turn,
)
from tests.support.service import PATIENCE_S, Service, wait_until
from tests.support.streaming import FINAL, Event, Frame, log_of
from tests.support.turns import DONE, wait_for_end

LEASE = {"LEASE_S": "30"}  # long: a turn that continues at once was handed back, its lease did not expire
UNKNOWN = "it is not known whether this call of charge had its effect"
HURRIED_S = 2.0  # until a thread that ignores a stop is abandoned


def called(it: KilledTurn) -> list[str]:
    return [call.split(" ")[0] if call.startswith("model") else call for call in it.ledger.calls]


def told(service: Service, turn: Event) -> list[Frame]:
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


def ended(service: Service, it: KilledTurn) -> Event:
    turn = wait_for_end(service, it.turn)
    assert (turn["status"], turn["reply"], turn["attempts"]) == ("finished", "done", 2)
    assert [frame.raw for frame in told(service, turn)[: len(it.frames)]] == [frame.raw for frame in it.frames]
    return turn


@contextmanager
def asked_to_end(service: Service, turns: list[KilledTurn], released: list[KilledTurn]) -> Iterator[None]:
    """Play turns until each is blocked, ask their process to end, and release some. Start the next process."""
    service.start()
    reading = [Thread(target=it.watch, args=[service]) for it in turns]
    for thread in reading:
        thread.start()
    wait_until(lambda: all(it.stands(service) for it in turns))
    service.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in service.log())
    for it in released:
        it.ledger.go()
    for thread in reading:
        thread.join()
    assert service.stop() == 0
    for it in turns:
        it.calls = called(it)
        assert FINAL.isdisjoint(frame.event for frame in it.frames)
        it.ledger.go()
    with service:
        yield


@pytest.fixture(scope="module")
def drained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, dict[str, KilledTurn]]]:
    folder = tmp_path_factory.mktemp("drained")
    turns = {"model": make_killed_turn(folder / "model", 1), "tool": make_killed_turn(folder / "tool", 2)}
    turns["plan"] = make_killed_turn(folder / "plan", 1, agent="planner")
    turns["agents"] = it = make_killed_turn(folder / "agents", 3, agent="chief")
    path = str(it.ledger.path)
    task = json.dumps([note_call(path, "a"), note_call(path, "b"), {"say": "helped"}])
    it.script = [{"call": [["helper", {"task": task}]]}, note_call(path, "c"), DONE]
    service = Service(folder / "service", WITHOUT_CODE | LEASE)
    with asked_to_end(service, [*turns.values()], [*turns.values()]):
        yield service, turns


@pytest.mark.parametrize("where", ["model", "tool"])
def test_the_next_step_runs_elsewhere(drained: tuple[Service, dict[str, KilledTurn]], where: str) -> None:
    service, it = drained[0], drained[1][where]
    assert it.calls == ["model", "note a"]
    assert it.frames[-1].event == "step.finished"
    turn = ended(service, it)
    assert [call["repeated"] for call in turn["tool_calls"]] == [False, False]
    assert called(it) == ["model", "note a", "model", "note b", "model"]
    assert not [frame for frame in told(service, turn) if frame.event == "message.restarted"]
    assert goes_on(service, it, turn)


def test_a_step_of_managed_agents_is_finished_with_all_of_theirs(
    drained: tuple[Service, dict[str, KilledTurn]],
) -> None:
    service, it = drained[0], drained[1]["agents"]
    assert it.calls == ["model", "model", "note a", "model", "note b", "model"]
    turn = ended(service, it)
    assert called(it)[6:] == ["model", "note c", "model"]
    assert goes_on(service, it, turn)


def test_a_plan_that_is_made_is_kept(drained: tuple[Service, dict[str, KilledTurn]]) -> None:
    service, it = drained[0], drained[1]["plan"]
    assert it.calls == ["model"]
    turn = ended(service, it)
    assert max(Counter(it.ledger.calls).values()) == 1
    assert goes_on(service, it, turn)


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, dict[str, KilledTurn]]]:
    """Yield turns that outlive the drain: a block goes on, and tools are left."""
    folder = tmp_path_factory.mktemp("hurried")
    turns = {}
    for name, agent in (("block", "writer"), ("note", "teller"), ("charge", "teller")):
        it = turns[name] = make_killed_turn(folder / name, 2, agent=agent)
        path = str(it.ledger.path)
        block = f"import time\nfor n in range(100):\n    note(str(n), {path!r})\n    time.sleep(0.02)"
        it.script = [{"code": block} if name == "block" else {"call": [[name, {"what": "a", "ledger": path}]]}, DONE]
    service = Service(folder / "service", SETTINGS | LEASE | {"DRAIN_S": "0.5"})
    began = time.monotonic()
    with asked_to_end(service, [*turns.values()], [turns["block"]]):
        assert time.monotonic() - began >= 0.5 + HURRIED_S
        assert service.log().count("ignores a request") == 2
        yield service, turns


def test_a_block_that_outlives_the_drain_is_broken_off_at_its_next_call_and_none_is_made_twice(
    hurried: tuple[Service, dict[str, KilledTurn]],
) -> None:
    service, it = hurried[0], hurried[1]["block"]
    assert it.calls[:2] == ["model", "note 0"]
    assert 2 < len(it.calls) < 101
    turn = ended(service, it)
    assert turn["step_count"] == 2
    assert called(it) == ["model", *(f"note {n}" for n in range(100)), "model"]
    repeated = [number for number, call in enumerate(turn["tool_calls"]) if call["repeated"]]
    assert repeated in ([], [len(it.calls) - 1]), "broken off where it was said to begin, and had not begun"


@pytest.mark.parametrize("tool", ["note", "charge"])
def test_a_tool_that_outlives_the_drain_has_an_unknown_outcome(
    hurried: tuple[Service, dict[str, KilledTurn]], tool: str
) -> None:
    service, it = hurried[0], hurried[1][tool]
    turn = ended(service, it)
    (call,) = turn["tool_calls"]
    if tool == "note":
        assert called(it) == ["model", "note a", "note a", "model"]
        assert (call["ok"], call["repeated"]) == (True, True)
        assert goes_on(service, it, turn)
    else:
        assert called(it) == ["model", "charge a", "model"]
        assert (call["ok"], call["repeated"]) == (False, False)
        assert UNKNOWN in service.steps(turn)[1]["error"]["message"]


def test_a_second_signal_hands_back_at_once_what_the_first_one_waits_for(tmp_path: Path) -> None:
    it = make_killed_turn(tmp_path, 2)
    service = Service(tmp_path / "service", WITHOUT_CODE | LEASE | {"DRAIN_S": "600"})
    with service:
        submit_killed_turn(service, it)
        wait_until(lambda: it.stands(service))
        service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "stopping" in service.log())
        assert service.client.get("/livez").status_code == 200
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(PATIENCE_S) == 0
    assert "is handed back" in service.log()
    it.ledger.go()
    with service:
        ended(service, it)
        assert called(it) == ["model", "note a", "note a", "model", "note b", "model"]
