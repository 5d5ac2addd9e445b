"""Ends of turns that were taken over: by which process, with which error, and the limits of their first process.

The turns of `killed` block, each at its chosen calls, when their one process is killed. Another process lives on.
"""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
import pytest

from tests.support import ledgers
from tests.support.killed_turns import (
    SETTINGS,
    WITHOUT_CODE,
    KilledTurn,
    check_log,
    kill_when_blocked,
    make_killed_turn,
    note_call,
    spoken,
    submit_killed_turn,
)
from tests.support.ledgers import Ledger
from tests.support.providers import used
from tests.support.service import PATIENCE_S, Service, wait_until
from tests.support.store_server import PARTITION, Raw, StoreServer, running_store
from tests.support.streaming import Event, Stream, log_of, place, watching
from tests.support.tiers import mostly_deep
from tests.support.turns import DONE, cancel, submit_next, wait_for_end

ONLOOKER = {"AGENTS": "idle=tests.support.ledgers:make_teller", "DEMO_AGENTS": "0"}
DEADLINE_S = 6.0


def flip_a_bit(raw: Raw, journal: str) -> None:
    name = named(raw, journal, b"tool:")[0]
    blob = bytearray(raw.hget(journal, name))
    blob[-1] ^= 1
    raw.hset(journal, name, bytes(blob))


def replace_by_another_kind(raw: Raw, journal: str) -> None:
    one, other = named(raw, journal, b"tool:")[0], named(raw, journal, b"model:")[0]
    raw.hset(journal, one, raw.hget(journal, other))


def swap(raw: Raw, journal: str) -> None:
    one, other = named(raw, journal, b"model:")[:2]
    first, second = raw.hmget(journal, one, other)
    raw.hset(journal, mapping={one: second, other: first})


def named(raw: Raw, journal: str, start: bytes) -> list[bytes]:
    """Return the keys of effects in the journal that begin with `start`."""
    return sorted(name for name, effect in raw.hgetall(journal).items() if effect and name.startswith(start))


TAMPERINGS: dict[str, Callable[[Raw, str], None]] = {
    "a flipped bit": flip_a_bit,
    "an effect of another kind": replace_by_another_kind,
    "effects that changed places": swap,
}
BLOCKED_AT = {
    **dict.fromkeys(["changed", "stopped", "spoilt step", "behind", "watched elsewhere", *TAMPERINGS], (4,)),
    **dict.fromkeys(["changed at first", "stopped at first"], (1,)),
    "cut": (3,),
    "rolled back": (4, 6),
}


@dataclass
class Killed:
    service: Service
    turns: dict[str, KilledTurn]
    behind: list[Event]
    earlier: Event
    reader: Stream
    stops: list[httpx2.Response]

    def ended(self, name: str, *, steps: int = 1, status: str = "failed", code: str | None = None) -> Event:
        """Check the end of a turn that went no further, and return it."""
        it = self.turns[name]
        turn = wait_for_end(self.service, it.turn)
        assert (turn["status"], (turn["error"] or {}).get("code"), turn["attempts"]) == (status, code, 2)
        assert it.ledger.calls == it.calls
        assert (turn["step_count"], kinds_of(self.service, turn)) == (steps, ["task"] + ["action"] * steps)
        following = self.service.follow_up(turn, note_call(str(it.ledger.path), "on"), DONE)
        assert (following["reply"], following["turn"]) == ("done", 2)
        return turn


@pytest.fixture(scope="module")
def killed(folder: Path) -> Iterator[Killed]:
    """Yield turns on a store of their own, as their service would take over turns of other tests."""
    with running_store(folder / "store") as server, resumed(folder, server) as found:
        yield found


@contextmanager
def resumed(folder: Path, server: StoreServer) -> Iterator[Killed]:
    service = Service(folder / "service", WITHOUT_CODE | server.settings | {"DRAIN_S": "1"})
    turns = {}
    for name, at in BLOCKED_AT.items():
        agent = "changing" if name.startswith("changed") else "teller"
        turns[name] = make_killed_turn(folder / name.replace(" ", "-"), *at, agent=agent)
    raw = server.client()
    service.start()
    earlier = service.play(note_call(str(Ledger.at(folder / "earlier.ledger").path), "x"), DONE, agent="teller")
    turns["rolled back"].body = {"conversation_id": earlier["conversation_id"]}
    cut = turns["cut"]
    reading = Thread(target=cut.watch, args=[service])
    reading.start()
    for it in turns.values():
        if it is not cut:
            submit_killed_turn(service, it)
    wait_until(lambda: any(frame.data.get("call_id") == "2.m1" for frame in list(cut.frames)))
    wait_until(lambda: all(it.stands_in(raw) for it in turns.values()))
    behind = [submit_next(service, turns["behind"].turn, {"say": f"{number}"}) for number in range(3)]
    late = turns["late"] = make_killed_turn(folder / "late", 4, deadline_s=DEADLINE_S)
    with (
        Service(folder / "onlooker", ONLOOKER | server.settings) as onlooker,
        watching(onlooker, turns["watched elsewhere"].turn) as reader,
    ):
        reader.until("tool.call", call_id="2.1")
        submit_killed_turn(service, late)
        began = time.monotonic()
        kill_when_blocked(service, [*turns.values()])
        reading.join()
        stops = [cancel(onlooker, turns[name].turn) for name in ("stopped", "stopped at first")]
        for name, tamper in TAMPERINGS.items():
            tamper(raw, f"{PARTITION}:journal:local/{turns[name].turn['conversation_id']}:1")
        raw.lset(f"{PARTITION}:steps:local/{turns['spoilt step'].turn['conversation_id']}:0", -1, b"x" * 60)
        wait_until(lambda: time.monotonic() - began > DEADLINE_S)
        service.environment["LEDGER_INSTRUCTIONS"] = "Be long."
        with service:
            yield Killed(service, turns, behind, earlier, reader, stops)


def kinds_of(service: Service, turn: Event) -> list[str]:
    return [step["type"] for step in service.steps(turn) if step["turn"] == turn["turn"]]


def test_a_message_that_was_cut_is_taken_back_and_told_anew(killed: Killed) -> None:
    it = killed.turns["cut"]
    assert it.frames[-1].event == "message.delta"
    it.read_on(killed.service)
    restarted = [frame.data for frame in it.frames if frame.event == "message.restarted"]
    assert [(event["call_id"], event["step_id"], event["attempt"]) for event in restarted] == [("2.m1", "2", 2)]
    assert [frame.raw for frame in log_of(killed.service, it.turn)] == [frame.raw for frame in it.frames]
    texts = spoken(it.frames)
    assert texts["2.m1", "thought", None] == texts["1.m1", "thought", None] == "I call."
    assert json.loads(texts["2.m1", "arguments", 0]) == it.script[1]["call"][0][1]
    check_log(it.frames, it.frames)


def test_a_turn_whose_agent_is_another_one_now_ends_with_its_finished_steps_and_counts_its_calls(
    killed: Killed,
) -> None:
    ended = killed.ended("changed", code="agent_changed")
    assert ended["error"]["retryable"]
    assert ended["usage"] == used(20, 10)
    assert [(call["name"], call["ok"]) for call in ended["tool_calls"]] == [("note", True), ("note", False)]
    killed.ended("changed at first", steps=0, code="agent_changed")


def test_a_turn_that_is_stopped_while_its_process_is_dead_ends_cancelled(killed: Killed) -> None:
    assert [(stop.status_code, stop.json()["status"]) for stop in killed.stops] == [(202, "running")] * 2
    ended = killed.ended("stopped", status="cancelled")
    assert (ended["error"], ended["reply"]) == (None, None)
    killed.ended("stopped at first", steps=0, status="cancelled")


def test_a_deadline_counts_from_the_first_attempt(killed: Killed) -> None:
    assert killed.ended("late", code="deadline_exceeded")["timing"]["duration_ms"] >= DEADLINE_S * 1000


@pytest.mark.parametrize("what", TAMPERINGS)
def test_a_journal_that_was_tampered_with_ends_the_turn_and_says_so(killed: Killed, what: str) -> None:
    killed.ended(what, code="seal_broken")


def test_a_spoilt_step_of_an_earlier_attempt_costs_the_turn_and_not_its_conversation(killed: Killed) -> None:
    turn = wait_for_end(killed.service, killed.turns["spoilt step"].turn)
    assert (turn["status"], turn["error"]["code"], turn["step_count"]) == ("failed", "seal_broken", 0)
    assert kinds_of(killed.service, turn) == []
    path = str(killed.turns["spoilt step"].ledger.path)
    assert killed.service.follow_up(turn, note_call(path, "on"), DONE)["reply"] == "done"


def test_readers_of_a_living_process_see_the_turn_of_a_dead_one_go_on(killed: Killed) -> None:
    frames = killed.reader.rest()
    assert frames[0].event == "turn.started"
    assert frames[-1].data["result"]["reply"] == "done"
    check_log(killed.reader.seen, killed.reader.seen)


def test_turns_that_wait_behind_one_whose_process_dies_are_played_after_it(killed: Killed) -> None:
    ended = [wait_for_end(killed.service, turn) for turn in (killed.turns["behind"].turn, *killed.behind)]
    assert [turn["reply"] for turn in ended] == ["done", "0", "1", "2"]
    assert [turn["attempts"] for turn in ended] == [2, 1, 1, 1]
    times = [turn["timing"]["finished_at"] for turn in ended]
    assert times == sorted(times)


def test_a_turn_that_was_taken_over_can_be_rolled_back_with_the_steps_of_all_attempts(killed: Killed) -> None:
    service, it = killed.service, killed.turns["rolled back"]
    wait_until(lambda: it.stands(service))
    assert kinds_of(service, it.turn).count("action") == 2
    later = submit_next(service, killed.earlier, {"prompt": True}, on_busy="rollback")
    it.ledger.go()
    ended = wait_for_end(service, it.turn)
    assert (ended["status"], ended["attempts"], ended["step_count"]) == ("cancelled", 2, 0)
    bare = ledgers.make_teller()
    bare.run(killed.earlier["message"], reset=False)
    assert wait_for_end(service, later)["reply"] == bare.run(later["message"], reset=False)
    assert {step["turn"] for step in service.steps(it.turn)} == {1, 3}


def test_a_turn_is_left_to_processes_with_its_unchanged_agent_first(tmp_path: Path, outside: StoreServer) -> None:
    it = make_killed_turn(tmp_path, 4, agent="changing")
    settings = WITHOUT_CODE | outside.settings
    first = Service(tmp_path / "first", settings)
    first.start()
    submit_killed_turn(first, it)
    kill_when_blocked(first, [it])
    newer = Service(tmp_path / "newer", settings | {"DRAIN_S": "60"}, {"LEDGER_INSTRUCTIONS": "Be long."})
    ready, ref = f"{PARTITION}:ready:changing", f"local/{it.turn['conversation_id']}"
    with newer:
        wait_until(lambda: outside.client().zscore(ready, ref))
        assert newer.play(note_call(str(it.ledger.path), "x"), DONE, agent="changing")["status"] == "finished"
        assert newer.get(place(it.turn))["status"] == "running"
        with first:
            ended = wait_for_end(newer, it.turn)
        assert (ended["status"], ended["reply"], ended["attempts"]) == ("finished", "done", 2)


def test_a_turn_that_ends_its_process_again_and_again_runs_alone_and_is_given_up(tmp_path: Path) -> None:
    """Its first attempt wrote effects before, so it does not count."""
    neighbour = make_killed_turn(tmp_path / "neighbour", 4)
    it = make_killed_turn(tmp_path / "crash", 4, 5, 6, 7)
    path = str(it.ledger.path)
    it.script = [note_call(path, "a"), {"call": [["crash", {"ledger": path}]]}, DONE]
    innocent = {"agent": "teller", "message": json.dumps([note_call(str(neighbour.ledger.path), "x"), DONE])}
    service = Service(tmp_path / "service", WITHOUT_CODE)
    for number in (4, 5, 6, 7):
        service.start()
        if number == 4:
            submit_killed_turn(service, neighbour)
            wait_until(lambda: neighbour.ledger.stands)
            submit_killed_turn(service, it)
        wait_until(lambda number=number: it.ledger.reached == number)  # type: ignore[misc]  # mypy takes no defaults
        beside = service.client.post("/turn", json=innocent, headers={"Prefer": "wait=2" if number == 7 else "wait=60"})
        assert beside.json()["status"] == ("queued" if number == 7 else "finished")
        neighbour.ledger.go()
        it.ledger.go()
        assert service.process.wait(PATIENCE_S) == -signal.SIGKILL
        service.kill()  # ends the processes that it left
    with service:
        ended = wait_for_end(service, it.turn)
        assert (ended["status"], ended["error"]["code"], ended["step_count"]) == ("failed", "crashed_repeatedly", 1)
        assert (it.ledger.calls.count("crash"), it.ledger.calls.count("note a")) == (4, 1)
        assert kinds_of(service, it.turn) == ["task", "action"]
        for turn in (neighbour.turn, beside.json()):
            assert wait_for_end(service, turn)["reply"] == "done"
        assert neighbour.ledger.calls.count("note a") == 1


def test_a_turn_that_crashed_twice_runs_alone_until_it_advances(tmp_path: Path, outside: StoreServer) -> None:
    it, other = make_killed_turn(tmp_path / "it", 1, 2, 4), make_killed_turn(tmp_path / "other", 1)
    settings = WITHOUT_CODE | outside.settings
    crashing = Service(tmp_path / "crashing", settings)
    crashing.start()
    submit_killed_turn(crashing, it)
    kill_when_blocked(crashing, [it])
    crashing.start()
    wait_until(lambda: it.ledger.reached == 2)
    with Service(tmp_path / "busy", settings) as busy:
        submit_killed_turn(busy, other)
        wait_until(lambda: other.ledger.stands)
        kill_when_blocked(crashing, [it])
        wait_until(lambda: outside.client().exists(f"{PARTITION}:alone") or len(it.ledger.calls) > 2)
        assert len(it.ledger.calls) == 2
        other.ledger.go()
        assert wait_for_end(busy, other.turn)["reply"] == "done"
        wait_until(lambda: it.ledger.reached == 4)
        assert busy.play(note_call(str(other.ledger.path), "x"), DONE, agent="teller")["reply"] == "done"
        it.ledger.go()
        assert wait_for_end(busy, it.turn)["reply"] == "done"


@pytest.mark.parametrize("agent", mostly_deep(["teller", "writer"], fast=["teller"]))
def test_a_process_that_stood_still_for_longer_than_its_lease_does_nothing_more_to_the_turn(
    tmp_path: Path, outside: StoreServer, agent: str
) -> None:
    it = make_killed_turn(tmp_path, 4, agent=agent)
    path = str(it.ledger.path)
    if agent == "writer":
        it.script = [{"code": f"L = {path!r}\nnote('a', L)"}, {"code": "note('b', L)\nnote('c', L)"}, DONE]
    settings = (SETTINGS if agent == "writer" else WITHOUT_CODE) | outside.settings
    with Service(tmp_path / "stalled", settings) as stalled:
        submit_killed_turn(stalled, it)
        wait_until(lambda: it.stands_in(outside.client()))
        stalled.process.send_signal(signal.SIGSTOP)
        try:
            with Service(tmp_path / "heir", settings) as heir:
                ended = wait_for_end(heir, it.turn)
                assert (ended["status"], ended["reply"], ended["attempts"]) == ("finished", "done", 2)
                called = it.ledger.calls
                assert (called.count("note a"), called.count("note b")) == (1, 2)
                found = state_of(heir, it.turn)
                stalled.process.send_signal(signal.SIGCONT)
                it.ledger.go()
                wait_until(lambda: it.ledger.ends.count("note b") == 2)  # it returns to an agent that must do nothing
                assert stalled.play(note_call(path, "other"), DONE, agent="teller")["status"] == "finished"
                wait_until(lambda: "was taken away" in stalled.log())
                rest = it.ledger.calls[len(called) :]
                assert [call for call in rest if call.startswith("note")] == ["note other"]
                assert len(rest) == 3
                assert state_of(heir, it.turn) == found
        finally:
            stalled.process.send_signal(signal.SIGCONT)


def state_of(service: Service, turn: Event) -> Any:
    return service.get(place(turn)), [frame.raw for frame in log_of(service, turn)], service.steps(turn)
