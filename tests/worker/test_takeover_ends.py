"""Ends of turns that were taken over: by which process, with which error, and the limits of their first process."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

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
    settings_for,
    spoken,
    submit_killed_turn,
)
from tests.support.ledgers import Ledger
from tests.support.service import Service, spawn
from tests.support.store_server import PARTITION, Raw, StoreServer
from tests.support.streaming import Event, log_of, place, posting, watching
from tests.support.turns import DONE, submit_turn, wait_for_end
from tests.support.waiting import PATIENCE_S, wait_until

ONLOOKER = {"AGENTS": "idle=tests.support.ledgers:make_teller", "DEMO_AGENTS": "0"}
FEW_CRASHES = 8


def kinds_of(service: Service, turn: Event) -> list[str]:
    return [step["type"] for step in service.steps(turn)]


def test_a_message_that_was_cut_is_taken_back_and_told_anew(tmp_path: Path) -> None:
    it = make_killed_turn(tmp_path, 3)
    service = Service(tmp_path / "service", WITHOUT_CODE)
    service.start()
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(it.watch, service)
        wait_until(lambda: any(frame.data.get("call_id") == "2.m1" for frame in list(it.frames)))
        kill_when_blocked(service, [it])
        reading.result()
    shown = list(it.frames)
    assert shown[-1].event == "message.delta"
    with service:
        it.read_on(service)
        restarted = [frame.data for frame in it.frames if frame.event == "message.restarted"]
        assert [(event["call_id"], event["step_id"], event["attempt"]) for event in restarted] == [("2.m1", "2", 2)]
        whole = log_of(service, it.turn)
        assert [frame.raw for frame in whole] == [frame.raw for frame in it.frames]
        texts = spoken(it.frames)
        assert texts["2.m1", "thought", None] == "I call."
        assert json.loads(texts["2.m1", "arguments", 0]) == it.script[1]["call"][0][1]
        assert texts["1.m1", "thought", None] == "I call."
        check_log(it.frames, it.frames)


def test_a_turn_whose_agent_is_another_one_now_ends_with_its_finished_steps(tmp_path: Path) -> None:
    it = make_killed_turn(tmp_path, 4, agent="changing")
    service = Service(tmp_path / "service", WITHOUT_CODE | {"DRAIN_S": "1"})
    service.start()
    submit_killed_turn(service, it)
    kill_when_blocked(service, [it])
    service.environment["LEDGER_INSTRUCTIONS"] = "Be long."
    with service:
        ended = wait_for_end(service, it.turn)
        assert (ended["status"], ended["error"]["code"], ended["attempts"]) == ("failed", "agent_changed", 2)
        assert ended["error"]["retryable"]
        assert it.ledger.calls == it.calls
        assert (ended["steps"], kinds_of(service, it.turn)) == (1, ["task", "action"])
        following = service.follow_up(it.turn, note_call(str(it.ledger.path), "on"), DONE)
        assert (following["status"], following["turn"]) == ("finished", 2)
        assert service.play(note_call(str(it.ledger.path), "other"), DONE, agent="teller")["status"] == "finished"


def test_a_turn_is_left_for_a_while_to_those_that_have_its_agent_as_it_was(
    tmp_path: Path, outside: StoreServer
) -> None:
    it = make_killed_turn(tmp_path, 4, agent="changing")
    settings = WITHOUT_CODE | outside.settings
    first = Service(tmp_path / "first", settings)
    first.start()
    submit_killed_turn(first, it)
    kill_when_blocked(first, [it])
    newer = Service(tmp_path / "newer", settings | {"DRAIN_S": "60"}, {"LEDGER_INSTRUCTIONS": "Be long."})
    with newer:
        wait_until(
            lambda: outside.client().zscore(f"{PARTITION}:ready:changing", f"local/{it.turn['conversation_id']}")
        )
        own = newer.play(note_call(str(it.ledger.path), "x"), DONE, agent="changing")
        assert own["status"] == "finished"
        assert newer.get(place(it.turn))["status"] == "running"
        with first:
            ended = wait_for_end(newer, it.turn)
        assert (ended["status"], ended["reply"], ended["attempts"]) == ("finished", "done", 2)


def test_a_turn_that_ends_its_process_again_and_again_is_given_up_and_its_neighbours_are_not(
    tmp_path: Path, outside: StoreServer
) -> None:
    settings = WITHOUT_CODE | outside.settings
    with ExitStack() as stack:
        onlooker = stack.enter_context(Service(tmp_path / "onlooker", ONLOOKER | outside.settings))
        neighbours = []
        for number in range(3):
            (tmp_path / f"{number}").mkdir()
            neighbours.append(make_killed_turn(tmp_path / f"{number}", 4))
        (tmp_path / "crash").mkdir()
        it = make_killed_turn(tmp_path / "crash")
        path = str(it.ledger.path)
        it.script = [note_call(path, "a"), {"call": [["crash", {"ledger": path}]]}, DONE]
        service = Service(tmp_path / "service", settings)
        service.start()
        for neighbour in neighbours:
            submit_killed_turn(service, neighbour)
        wait_until(lambda: all(neighbour.ledger.stands for neighbour in neighbours))
        submit_killed_turn(service, it)
        assert service.process.wait(PATIENCE_S) == -signal.SIGKILL
        service.kill()  # ends the processes that it left
        for neighbour in neighbours:
            neighbour.ledger.go()
        crashes = 1
        while crashes < FEW_CRASHES:
            process = stack.enter_context(spawn(service.folder, settings))
            stack.callback(process.terminate)
            wait_until(
                lambda process=process: (  # type: ignore[misc]  # mypy takes no defaults in a lambda
                    process.poll() is not None or onlooker.get(place(it.turn))["status"] == "failed"
                ),
                30,
            )
            if process.poll() is None:
                break
            crashes += 1
        ended = wait_for_end(onlooker, it.turn)
        assert (ended["status"], ended["error"]["code"], ended["steps"]) == ("failed", "crashed_repeatedly", 1)
        assert crashes == it.ledger.calls.count("crash") == 4  # the first one wrote effects before, so it did not count
        assert it.ledger.calls.count("note a") == 1
        with Service(tmp_path / "service", settings) as alive:
            assert kinds_of(alive, it.turn) == ["task", "action"]
        for neighbour in neighbours:
            its = wait_for_end(onlooker, neighbour.turn)
            assert (its["status"], its["reply"]) == ("finished", "done")
            assert neighbour.ledger.calls.count("note a") == 1
            assert 1 <= neighbour.ledger.calls.count("note b") <= crashes


def test_a_turn_that_is_stopped_while_its_process_is_dead_ends_cancelled(tmp_path: Path, outside: StoreServer) -> None:
    it = make_killed_turn(tmp_path, 4)
    with Service(tmp_path / "onlooker", ONLOOKER | outside.settings) as onlooker:
        service = Service(tmp_path / "service", WITHOUT_CODE | outside.settings)
        service.start()
        submit_killed_turn(service, it)
        kill_when_blocked(service, [it])
        answer = onlooker.post(place(it.turn, "/cancel"))
        assert (answer.status_code, answer.json()["status"]) == (202, "running")
        with service:
            ended = wait_for_end(onlooker, it.turn)
            assert (ended["status"], ended["error"], ended["reply"]) == ("cancelled", None, None)
            assert it.ledger.calls == it.calls
            assert (ended["steps"], kinds_of(service, it.turn)) == (1, ["task", "action"])
            assert service.follow_up(it.turn, note_call(str(it.ledger.path), "on"), DONE)["reply"] == "done"


def test_a_deadline_counts_from_the_first_attempt(tmp_path: Path) -> None:
    it = make_killed_turn(tmp_path, 4, deadline_s=10)
    service = Service(tmp_path / "service", WITHOUT_CODE)
    service.start()
    submit_killed_turn(service, it)
    began = time.monotonic()
    kill_when_blocked(service, [it])
    wait_until(lambda: time.monotonic() - began > 10)
    with service:
        ended = wait_for_end(service, it.turn)
        assert (ended["status"], ended["error"]["code"], ended["attempts"]) == ("failed", "deadline_exceeded", 2)
        assert it.ledger.calls == it.calls
        assert (ended["steps"], kinds_of(service, it.turn)) == (1, ["task", "action"])
        assert ended["timing"]["duration_ms"] >= 10_000


def flipped(raw: Raw, journal: str) -> None:
    name = named(raw, journal, b"tool:")[0]
    blob = bytearray(raw.hget(journal, name))
    blob[-1] ^= 1
    raw.hset(journal, name, bytes(blob))


def moved(raw: Raw, journal: str) -> None:
    one, other = named(raw, journal, b"tool:")[0], named(raw, journal, b"model:")[0]
    raw.hset(journal, one, raw.hget(journal, other))


def named(raw: Raw, journal: str, start: bytes) -> list[bytes]:
    """Return the keys of effects in the journal that begin with `start`."""
    return sorted(name for name, effect in raw.hgetall(journal).items() if effect and name.startswith(start))


def renumbered(raw: Raw, journal: str) -> None:
    one, other = named(raw, journal, b"model:")[:2]
    first, second = raw.hmget(journal, one, other)
    raw.hset(journal, mapping={one: second, other: first})


TAMPERINGS: dict[str, Callable[[Raw, str], None]] = {
    "a flipped bit": flipped,
    "an effect of another kind": moved,
    "effects that changed places": renumbered,
}


@pytest.mark.parametrize("what", TAMPERINGS)
def test_a_journal_that_was_tampered_with_ends_the_turn_and_says_so(
    tmp_path: Path, outside: StoreServer, what: str
) -> None:
    it = make_killed_turn(tmp_path, 4)
    service = Service(tmp_path / "service", WITHOUT_CODE | outside.settings)
    service.start()
    submit_killed_turn(service, it)
    kill_when_blocked(service, [it])
    TAMPERINGS[what](outside.client(), f"{PARTITION}:journal:local/{it.turn['conversation_id']}:1")
    with service:
        ended = wait_for_end(service, it.turn)
        assert (ended["status"], ended["error"]["code"], ended["attempts"]) == ("failed", "seal_broken", 2)
        assert it.ledger.calls == it.calls
        assert (ended["steps"], kinds_of(service, it.turn)) == (1, ["task", "action"])
        assert service.follow_up(it.turn, note_call(str(it.ledger.path), "on"), DONE)["reply"] == "done"
        assert service.play(note_call(str(it.ledger.path), "other"), DONE, agent="teller")["status"] == "finished"


def test_a_spoilt_step_of_an_earlier_attempt_costs_the_turn_and_not_its_conversation(
    tmp_path: Path, outside: StoreServer
) -> None:
    it = make_killed_turn(tmp_path, 4)
    service = Service(tmp_path / "service", WITHOUT_CODE | outside.settings)
    service.start()
    submit_killed_turn(service, it)
    kill_when_blocked(service, [it])
    raw, steps = outside.client(), f"{PARTITION}:steps:local/{it.turn['conversation_id']}:0"
    raw.lset(steps, -1, b"x" * 60)
    with service:
        ended = wait_for_end(service, it.turn)
        assert (ended["status"], ended["error"]["code"], ended["steps"]) == ("failed", "seal_broken", 0)
        assert raw.llen(steps) == 0
        assert service.follow_up(it.turn, note_call(str(it.ledger.path), "on"), DONE)["reply"] == "done"


@pytest.mark.parametrize("agent", ["teller", "writer"])
def test_a_process_that_stood_still_for_longer_than_its_lease_does_nothing_more_to_the_turn(
    tmp_path: Path, outside: StoreServer, agent: str
) -> None:
    it = make_killed_turn(tmp_path, 4, agent=agent)
    path = str(it.ledger.path)
    if agent == "writer":
        it.script = [{"code": f"L = {path!r}\nnote('a', L)"}, {"code": "note('b', L)\nnote('c', L)"}, DONE]
    settings = settings_for(agent) | outside.settings
    with Service(tmp_path / "stalled", settings) as stalled:
        submit_killed_turn(stalled, it)
        wait_until(lambda: it.stands_in(outside.client()))
        stalled.process.send_signal(signal.SIGSTOP)
        try:
            with Service(tmp_path / "heir", settings) as heir:
                ended = wait_for_end(heir, it.turn)
                assert (ended["status"], ended["reply"], ended["attempts"]) == ("finished", "done", 2)
                called = it.ledger.calls
                assert called.count("note a") == 1
                assert called.count("note b") == 2
                events = [frame.raw for frame in log_of(heir, it.turn)]
                steps = heir.steps(it.turn)
                stalled.process.send_signal(signal.SIGCONT)
                it.ledger.go()
                wait_until(lambda: it.ledger.ends.count("note b") == 2)  # it returns to an agent that must do nothing
                assert stalled.play(note_call(path, "other"), DONE, agent="teller")["status"] == "finished"
                wait_until(lambda: "was taken away" in stalled.log())
                rest = it.ledger.calls[len(called) :]
                assert [call for call in rest if call.startswith("note")] == ["note other"]
                assert len(rest) == 3
                assert heir.get(place(it.turn)) == ended
                assert [frame.raw for frame in log_of(heir, it.turn)] == events
                assert heir.steps(it.turn) == steps
        finally:
            stalled.process.send_signal(signal.SIGCONT)


def test_readers_of_a_living_process_see_the_turn_of_a_dead_one_go_on(tmp_path: Path, outside: StoreServer) -> None:
    it = make_killed_turn(tmp_path, 4)
    with Service(tmp_path / "onlooker", ONLOOKER | outside.settings) as onlooker:
        service = Service(tmp_path / "service", WITHOUT_CODE | outside.settings)
        service.start()
        with posting(service, *it.script, agent=it.agent) as stream:
            it.turn = stream.until("turn.queued")
        with watching(onlooker, it.turn) as reader:
            reader.until("tool.call", call_id="2.1")
            wait_until(lambda: it.stands_in(outside.client()))
            service.kill()
            it.ledger.go()
            with service:
                frames = reader.rest()
                assert frames[-1].data["result"]["reply"] == "done"
            check_log(reader.seen, reader.seen)
            assert frames[0].event == "turn.started"


def test_a_block_that_is_killed_after_its_calls_runs_again_and_they_do_not(tmp_path: Path) -> None:
    """After its calls, the block only loops for a time. The second run has the clock of the first."""
    it = make_killed_turn(tmp_path, agent="writer")
    path = str(it.ledger.path)
    waiting = (
        f"end = time.time() + 10\ndrawn.append(note('b', {path!r}))\n"
        "while time.time() < end:\n    time.sleep(0.01)\nprint(drawn)"
    )
    it.script = [{"code": f"import time\ndrawn = [note('a', {path!r})]"}, {"code": waiting}, DONE]
    service = Service(tmp_path / "service", SETTINGS)
    with posting_killed(service, it) as turn, service:
        ended = wait_for_end(service, turn)
        assert (ended["status"], ended["reply"], ended["attempts"]) == ("finished", "done", 2)
        whole = service.get(place(turn), include_internal_tools=True)["tool_calls"]
        repeated = [(call["call_id"], call["repeated"]) for call in whole]
        assert repeated == [
            ("1.1", False),
            ("1.2", False),
            ("2.1", True),
            ("2.2", False),
            ("3.1", False),
            ("3.2", False),
        ]
        notes = [call for call in it.ledger.calls if call.startswith("note")]
        assert notes == ["note a", "note b"]
        assert "['noted a', 'noted b']" in service.steps(turn)[2]["observations"]


@contextmanager
def posting_killed(service: Service, it: KilledTurn) -> Iterator[Event]:
    """Play a turn until its second tool has returned, kill the process, and yield the turn."""
    service.start()
    with posting(service, *it.script, agent=it.agent) as stream:
        stream.until("tool.result", call_id="2.2")
        service.kill()
        with suppress(httpx2.TransportError):
            stream.rest()
    yield stream.seen[0].data


def test_a_turn_that_was_taken_over_can_be_rolled_back_with_the_steps_of_all_attempts(tmp_path: Path) -> None:
    it = make_killed_turn(tmp_path, 4, 6)
    earlier = note_call(str(Ledger.at(tmp_path / "earlier.ledger").path), "x")
    service = Service(tmp_path / "service", WITHOUT_CODE)
    service.start()
    before = service.play(earlier, DONE, agent=it.agent)
    it.body = {"conversation_id": before["conversation_id"]}
    submit_killed_turn(service, it)
    kill_when_blocked(service, [it])
    with service:
        wait_until(lambda: it.stands(service))
        assert kinds_of(service, it.turn).count("action") == 2 + 2
        asked = json.dumps([{"prompt": True}])
        body = {"message": asked, "on_busy": "rollback", "conversation_id": before["conversation_id"]}
        answer = service.client.post("/turn", json=body, headers={"Prefer": "respond-async"})
        assert answer.status_code == 202, answer.text
        it.ledger.go()
        ended = wait_for_end(service, it.turn)
        assert (ended["status"], ended["attempts"], ended["steps"]) == ("cancelled", 2, 0)
        following = wait_for_end(service, answer.json())
        bare = ledgers.make_teller()
        bare.run(json.dumps([earlier, DONE]), reset=False)
        assert following["reply"] == bare.run(asked, reset=False)
        assert {step["turn"] for step in service.steps(it.turn)} == {1, 3}


def test_turns_that_wait_behind_one_whose_process_dies_are_played_after_it(tmp_path: Path) -> None:
    it = make_killed_turn(tmp_path, 4)
    service = Service(tmp_path / "service", WITHOUT_CODE)
    service.start()
    submit_killed_turn(service, it)
    wait_until(lambda: it.stands(service))
    behind = {"conversation_id": it.turn["conversation_id"], "on_busy": "enqueue"}
    waiting = [submit_turn(service, {"say": f"{number}"}, agent=it.agent, **behind) for number in range(3)]
    kill_when_blocked(service, [it])
    with service:
        ended = [wait_for_end(service, turn) for turn in (it.turn, *waiting)]
        assert [turn["reply"] for turn in ended] == ["done", "0", "1", "2"]
        assert [turn["attempts"] for turn in ended] == [2, 1, 1, 1]
        times = [turn["timing"]["finished_at"] for turn in ended]
        assert times == sorted(times)


def test_a_process_that_is_killed_while_it_drains_loses_nothing(tmp_path: Path) -> None:
    it = make_killed_turn(tmp_path, 2)
    service = Service(tmp_path / "service", WITHOUT_CODE)
    service.start()
    submit_killed_turn(service, it)
    wait_until(lambda: it.stands(service))
    service.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in service.log())
    kill_when_blocked(service, [it])
    with service:
        ended = wait_for_end(service, it.turn)
        assert (ended["status"], ended["reply"], ended["attempts"]) == ("finished", "done", 2)
        assert [call["repeated"] for call in ended["tool_calls"]] == [True, False]
        assert it.ledger.calls.count("note b") == 1


def test_turns_that_were_killed_in_their_first_call_hold_up_nobody_once_they_got_further(tmp_path: Path) -> None:
    killed_turns = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        killed_turns.append(make_killed_turn(tmp_path / str(number), 1, 4))
    service = Service(tmp_path / "service", WITHOUT_CODE)
    service.start()
    for it in killed_turns:
        submit_killed_turn(service, it)
    kill_when_blocked(service, killed_turns)
    with service:
        try:
            wait_until(lambda: any(it.ledger.reached == 4 for it in killed_turns))
            path = str(Ledger.at(tmp_path / "innocent.ledger").path)
            innocent = submit_turn(service, note_call(path, "x"), DONE, agent="teller")
            assert wait_for_end(service, innocent)["reply"] == "done"
            wait_until(lambda: all(it.ledger.reached == 4 for it in killed_turns))
        finally:
            for it in killed_turns:
                it.ledger.go()
        assert [wait_for_end(service, it.turn)["reply"] for it in killed_turns] == ["done", "done"]
