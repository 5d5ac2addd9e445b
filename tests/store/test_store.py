"""Conversations outlive kills and stops of processes and of the store, floods of restarts, and tampering."""

import base64
import hashlib
import io
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import PIL.Image
import pytest
from redis import Redis
from smolagents import MultiStepAgent

from smolsessions.store.seal import Sealer, parse_keys
from tests.support import agents
from tests.support.metrics import is_playing
from tests.support.pictures import png
from tests.support.service import PLAIN, Service
from tests.support.stopwatch import Stopwatch
from tests.support.store_server import (
    PARTITION,
    SEAL_KEY,
    Raw,
    StoreServer,
    conversation_keys,
    event_names,
)
from tests.support.turns import error_code, submit_turn, wait_for_end, wait_until_back
from tests.support.waiting import PATIENCE_S, Gate, wait_until

FINAL = {"turn.finished", "turn.failed", "turn.cancelled"}
Script = list[dict[str, Any]]


@pytest.fixture
def pair(server: StoreServer, tmp_path: Path) -> Iterator[tuple[Service, Service]]:
    """Yield two services on one store."""
    with ExitStack() as stack:
        yield (
            stack.enter_context(Service(tmp_path / "a", PLAIN | server.settings)),
            stack.enter_context(Service(tmp_path / "b", PLAIN | server.settings)),
        )


@dataclass
class Talk:
    """A conversation, and a bare agent that plays the same turns without interruption."""

    agent: str
    bare: MultiStepAgent
    turns: list[tuple[Script, dict[str, Any]]]
    last: dict[str, Any] = field(default_factory=dict)

    def go_on(self, service: Service) -> None:
        """Play the next turn, and check that its reply, often the model's prompt, equals the bare agent's."""
        script, body = self.turns.pop(0)
        images = [PIL.Image.open(io.BytesIO(base64.b64decode(image))) for image in body.get("images", [])]
        expected = self.bare.run(
            json.dumps(script), reset=False, images=[*images] or None, max_steps=body.get("max_steps")
        )
        agents.show_forced(self.bare)
        if self.last:
            self.last = service.follow_up(self.last, *script, **body)
        else:
            self.last = service.play(*script, agent=self.agent, **body)
        assert self.last["reply"] == str(expected)


SHOW: tuple[Script, dict[str, Any]] = ([{"prompt": True}], {})


def talks() -> list[Talk]:
    """Return conversations with every kind of error. Some of their turns answer with the model's prompt."""
    echo = {"call": [["echo", {"text": "ü"}]]}
    scripted: list[tuple[Script, dict[str, Any]]] = [
        ([echo, {"call": [["fail", {"reason": "tool error"}]]}, {"say": "one"}], {}),
        ([{"text": "a parse error"}, {"call": [["nonexistent", {}]]}, {"say": "two"}], {}),
        SHOW,
        ([echo], {"max_steps": 2}),
        ([echo, {"call": [["picture", {}]]}, {"say": "seen"}], {"images": [png("red"), png("blue")]}),
        SHOW,
        ([{"call": [["echo", {"wrong": 1}]]}, {"call": [["make", {"what": "money"}]]}, {"say": "four"}], {}),
        SHOW,
    ]
    planner: list[tuple[Script, dict[str, Any]]] = [
        ([echo, {"say": "one"}], {}),
        ([{"call": [["fail", {"reason": "no"}]]}, {"say": "two"}], {}),
        SHOW,
        ([echo], {"max_steps": 1}),
        SHOW,
        SHOW,
    ]
    boxed = "class Box:\n    def __str__(self):\n        return 'box'\nBox()"
    code: list[tuple[Script, dict[str, Any]]] = [
        ([{"code": "print('shown')\nundefined_name"}, {"code": "this is no Python"}, {"say": "one"}], {}),
        ([{"text": "no code"}, {"code": boxed}, {"code": "fail(reason='tool error')"}, {"say": "two"}], {}),
        SHOW,
        ([{"code": "make(what='date')"}], {"max_steps": 2, "images": [png("green")]}),
        SHOW,
        SHOW,
    ]
    checked: list[tuple[Script, dict[str, Any]]] = [
        ([{"say": "no full stop"}, {"say": "a full stop."}], {}),
        ([{"say": "never"}], {"max_steps": 2}),
        ([{"say": "now."}], {}),
    ]
    return [
        Talk("scripted", agents.make_scripted(), scripted),
        Talk("planner", agents.make_planner(), planner),
        Talk("code", agents.make_code(), code),
        Talk("checked", agents.make_checked(), checked),
    ]


def test_conversations_go_on_after_kills(tmp_path: Path) -> None:
    service = Service(tmp_path)
    service.start()
    conversations = talks()
    while any(talk.turns for talk in conversations):
        for talk in conversations:
            for _ in talk.turns[:2]:
                talk.go_on(service)
        service.kill()
        service.start()
    service.stop()


def test_two_services_play_one_conversation_as_one_agent(server: StoreServer, tmp_path: Path) -> None:
    with Service(tmp_path / "a", server.settings) as one, Service(tmp_path / "b", server.settings) as other:
        for talk in talks():
            for number in range(len(talk.turns)):
                talk.go_on((one, other)[(number + 1) // 2 % 2])


def shown_next(service: Service, turn: dict[str, Any], *scripts: Script) -> tuple[str, str]:
    """Return the prompt of the next turn's model: the service's, and a bare agent's after the same turns."""
    bare = agents.make_scripted()
    for script in scripts:
        bare.run(json.dumps(script), reset=False)
    expected = bare.run(json.dumps([{"prompt": True}]), reset=False)
    return service.follow_up(turn, {"prompt": True})["reply"], str(expected)


def test_a_turn_whose_process_dies_is_played_on_by_the_next_one(tmp_path: Path, gate: Gate) -> None:
    script: Script = [{"call": [["echo", {"text": "kept"}]]}, gate.script, {"say": "end"}]
    service = Service(tmp_path / "service", PLAIN)
    service.start()
    turn = submit_turn(service, *script)
    gate.reached()
    wait_until(lambda: len(service.steps(turn)) == 2)
    kept = service.steps(turn)
    service.kill()
    gate.open()
    with service:
        ended = wait_for_end(service, turn)
        assert (ended["status"], ended["reply"], ended["steps"], ended["attempts"]) == ("finished", "end", 3, 2)
        assert [call["repeated"] for call in ended["tool_calls"] if not call["internal"]] == [False, True]
        assert service.steps(turn)[:2] == kept
        assert [step["type"] for step in service.steps(turn)] == ["task", "action", "action", "action"]
        with Redis(unix_socket_path=str(service.folder / "data" / "store.sock")) as raw:
            assert [name for name in event_names(raw, turn) if name in FINAL] == ["turn.finished"]
        shown, expected = shown_next(service, turn, script)
        assert shown == expected
        assert service.get(f"/conversations/{turn['conversation_id']}/turns/1") == ended


def test_turns_that_outlive_the_drain_are_handed_back_before_the_process_ends(tmp_path: Path) -> None:
    gates = [Gate(tmp_path / f"gate {number}") for number in range(3)]
    service = Service(tmp_path / "service", PLAIN | {"DRAIN_S": "0.5", "LEASE_S": "30"})
    echo = {"call": [["echo", {"text": "kept"}]]}
    with service:
        turns = [submit_turn(service, echo, gate.script, {"say": "end"}) for gate in gates]
        for gate in gates:
            gate.reached()
        assert service.stop() == 0
    assert service.log().count("is handed back") == len(turns)
    with service:
        for turn, gate in zip(turns, gates, strict=True):
            assert service.get(f"/conversations/{turn['conversation_id']}/turns/1")["status"] == "running"
            gate.open()
            ended = wait_for_end(service, turn)
            assert (ended["status"], ended["reply"], ended["attempts"]) == ("finished", "end", 2)
            assert len(service.steps(turn)) == 4
            shown, expected = shown_next(service, turn, [echo, gate.script, {"say": "end"}])
            assert shown == expected
        with Redis(unix_socket_path=str(service.folder / "data" / "store.sock")) as raw:
            assert [name for name in event_names(raw, turns[0]) if name in FINAL] == ["turn.finished"]


def test_a_turn_whose_process_dies_is_played_on_by_another(
    pair: tuple[Service, Service], server: StoreServer, gate: Gate
) -> None:
    one, other = pair
    turn = submit_turn(one, gate.script, {"say": "end"})
    gate.reached()
    holder, heir = (one, other) if is_playing(one) else (other, one)
    holder.kill()
    gate.open()
    ended = wait_for_end(heir, turn)
    assert (ended["status"], ended["reply"], ended["attempts"]) == ("finished", "end", 2)
    assert [name for name in event_names(server.client(), turn) if name in FINAL] == ["turn.finished"]
    shown, expected = shown_next(heir, turn, [gate.script, {"say": "end"}])
    assert shown == expected
    holder.start()
    assert holder.follow_up(turn, {"say": "on"})["reply"] == "on"


def test_turns_that_wait_when_the_process_dies_are_played(tmp_path: Path, gate: Gate) -> None:
    service = Service(tmp_path / "service", PLAIN | {"THREADS": "1"})
    service.start()
    running_turn = submit_turn(service, gate.script, {"say": "end"})
    gate.reached()
    waiting = [submit_turn(service, {"say": f"number {number}"}) for number in range(5)]
    shown = service.get(f"/conversations/{waiting[0]['conversation_id']}")
    assert (shown["running_turn"], shown["queued_turns"]) == (None, 1)
    service.kill()
    gate.open()
    with service:
        assert wait_for_end(service, running_turn)["reply"] == "end"
        ended = [wait_for_end(service, turn) for turn in waiting]
        assert [(turn["reply"], turn["attempts"]) for turn in ended] == [(f"number {number}", 1) for number in range(5)]


def test_a_waiting_caller_is_answered_when_another_service_plays_the_turn(
    server: StoreServer, tmp_path: Path, gate: Gate
) -> None:
    with Service(tmp_path / "a", PLAIN | server.settings | {"THREADS": "1"}) as full:
        blocking = submit_turn(full, gate.script, {"say": "end"})
        gate.reached()
        with Service(tmp_path / "b", PLAIN | server.settings):
            delays = []
            for number in range(5):
                with Stopwatch() as watch:
                    assert full.play({"say": str(number)})["reply"] == str(number)
                delays.append(watch.s)
            assert min(delays) < 1
            gate.open()
            assert wait_for_end(full, blocking)["reply"] == "end"


def assert_away(service: Service, turn: dict[str, Any], within_s: float) -> None:
    """Check that each call that needs the store reports its absence in time, and that nothing else fails."""
    calls: list[tuple[str, str, Mapping[str, Any]]] = [
        ("POST", "/turn", {"json": {"message": "hello", "agent": "demo"}}),
        ("GET", f"/conversations/{turn['conversation_id']}", {}),
        ("GET", "/conversations", {}),
        ("DELETE", f"/conversations/{turn['conversation_id']}", {}),
    ]
    with Stopwatch() as watch, ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda call: service.client.request(call[0], call[1], **call[2]), calls))
        assert service.client.get("/livez").status_code == 200
    assert watch.s < within_s
    for response in answers:
        assert (response.status_code, response.json()["code"]) == (503, "store_unavailable")
        assert int(response.headers["retry-after"]) > 0


def test_a_service_outlives_the_store_again_and_again(pair: tuple[Service, Service], server: StoreServer) -> None:
    talk = Talk("scripted", agents.make_scripted(), [([{"prompt": True}, {"say": "x"}], {}) for _ in range(12)])
    talk.go_on(pair[0])
    for _ in range(5):
        server.kill()
        for service in pair:
            assert_away(service, talk.last, 5)
        server.start()
        for service in pair:
            wait_until_back(service)
            talk.go_on(service)
    assert all(service.process.poll() is None for service in pair)


def test_services_hear_of_each_other_again_after_the_store_was_away(
    server: StoreServer, tmp_path: Path, gate: Gate
) -> None:
    with (
        Service(tmp_path / "a", PLAIN | server.settings | {"THREADS": "1"}) as full,
        Service(tmp_path / "b", PLAIN | server.settings) as other,
    ):
        server.kill()
        server.start()
        for service in (full, other):
            wait_until_back(service)
        blocking = [submit_turn(full, gate.script, {"say": "end"}) for _ in range(2)]
        wait_until(lambda: is_playing(full))
        delays = []
        for number in range(8):
            with Stopwatch() as watch:
                assert full.play({"say": str(number)})["reply"] == str(number)
            delays.append(watch.s)
        assert min(delays) < 1
        gate.open()
        assert [wait_for_end(full, turn)["reply"] for turn in blocking] == ["end", "end"]


def test_a_store_that_stands_still_is_an_outage_and_takes_no_turn_away(
    pair: tuple[Service, Service], server: StoreServer, gate: Gate
) -> None:
    first = pair[0].play({"say": "one"})
    turn = submit_turn(pair[0], gate.script, {"say": "end"}, conversation_id=first["conversation_id"])
    gate.reached()
    server.freeze()
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda service: assert_away(service, first, 10), pair))
    finally:
        server.thaw()
    for service in pair:
        wait_until_back(service)
    fresh = [service.play({"say": "two"})["reply"] for service in pair]
    gate.open()
    ended = wait_for_end(pair[1], turn)
    assert (ended["status"], ended["reply"], ended["attempts"], fresh) == ("finished", "end", 1, ["two", "two"])
    assert pair[1].follow_up(turn, {"say": "three"})["reply"] == "three"


@pytest.mark.parametrize("how", ["killed", "frozen", "flushed"])
def test_a_turn_that_runs_while_the_store_is_away_finishes(
    tmp_path: Path, server: StoreServer, gate: Gate, how: str
) -> None:
    script: Script = [gate.script, {"call": [["echo", {"text": "after"}]]}, {"say": "end"}]
    with Service(tmp_path / "service", PLAIN | server.settings) as service, ThreadPoolExecutor() as pool:
        first = service.play({"say": "one"})
        waiting = pool.submit(service.follow_up, first, *script)
        gate.reached()
        if how == "flushed":
            server.client().script_flush()
        else:
            away = server.kill if how == "killed" else server.freeze
            back = server.start if how == "killed" else server.thaw
            away()
            gate.open()
            since = time.monotonic()
            wait_until(lambda: time.monotonic() - since > 2)
            back()
        gate.open()
        turn = waiting.result(PATIENCE_S)
        assert (turn["status"], turn["reply"], turn["attempts"], turn["steps"]) == ("finished", "end", 1, 3)
        assert wait_for_end(service, turn) == turn
        bare = agents.make_scripted()
        for played in ([{"say": "one"}], script):
            bare.run(json.dumps(played), reset=False)
        shown = service.follow_up(turn, {"prompt": True})["reply"]
        assert shown == bare.run(json.dumps([{"prompt": True}]), reset=False)
        events = service.client.get(f"/conversations/{turn['conversation_id']}/turns/{turn['turn']}/events").text
        assert [name for name in re.findall("^event: (.+)$", events, re.MULTILINE) if name in FINAL] == [
            "turn.finished"
        ]


def test_a_turn_that_ends_while_the_store_takes_nothing_is_whole_when_it_does(
    tmp_path: Path, server: StoreServer, gate: Gate
) -> None:
    echo = {"call": [["echo", {"text": "while it took nothing"}]]}
    raw = server.client()
    with Service(tmp_path / "service", PLAIN | server.settings) as service:
        turn = submit_turn(service, gate.script, echo, {"say": "end"})
        gate.reached()
        raw.config_resetstat()
        raw.config_set("maxmemory", 1)
        gate.open()
        wait_until(lambda: raw.info("errorstats").get("errorstat_OOM", {"count": 0})["count"] > 6)
        assert service.get(f"/conversations/{turn['conversation_id']}/turns/1")["status"] == "running"
        raw.config_set("maxmemory", 0)
        ended = wait_for_end(service, turn)
        assert (ended["status"], ended["reply"], ended["steps"], ended["attempts"]) == ("finished", "end", 3, 1)
        assert [step["type"] for step in service.steps(turn)] == ["task", "action", "action", "action"]
        assert service.log().count(" waits: ") == 1
        assert service.follow_up(turn, {"say": "on"})["reply"] == "on"
    with Service(tmp_path / "service", PLAIN | server.settings) as fresh:
        assert fresh.follow_up(turn, {"say": "and on"})["reply"] == "and on"


def test_a_message_that_cannot_be_read_ends_nothing_and_hides_no_end(
    tmp_path: Path, server: StoreServer, gate: Gate
) -> None:
    with Service(tmp_path / "service", PLAIN | server.settings) as service, ThreadPoolExecutor() as pool:
        waiting = pool.submit(service.play, gate.script, {"say": "end"})
        gate.reached()
        (shown,) = service.get("/conversations")["items"]
        raw, ref = server.client(), f"local/{shown['id']}".encode()
        newer = Sealer(parse_keys(SEAL_KEY)).seal(b'{"a": 1}', ref.decode(), "event", 1, "turn.newer")
        odd = [
            b"hello",
            b"",
            b"\n\n\n\n",
            b"\xff\n1\n2\nturn.started\n",
            ref + b"\none\n2\nturn.started\nx",
            ref + b"\n1\n2\n\xff\nx",
            ref + b"\n1\n2\nturn.finished\n" + b"x" * 60,
            ref + b"\n1\n3\nturn.newer\n" + newer,
        ]
        for message in odd:
            for channel in raw.execute_command("PUBSUB", "SHARDCHANNELS", f"{PARTITION}:*"):
                assert raw.execute_command("SPUBLISH", channel, message) == 1
        wait_until(lambda: service.log().count("message of the store cannot be read") >= 3)
        gate.open()
        assert waiting.result(PATIENCE_S)["reply"] == "end"
        assert service.play({"say": "on"})["reply"] == "on"
        assert service.process.poll() is None


def test_scripts_that_the_store_forgot_are_loaded_again(pair: tuple[Service, Service], server: StoreServer) -> None:
    turn = pair[0].play({"say": "one"})
    for number in range(6):
        server.client().script_flush()
        service = pair[number % 2]
        answers: list[httpx2.Response] = []

        def answered(service: Service = service, answers: list[httpx2.Response] = answers) -> bool:
            body = {"message": '[{"say": "on"}]', "conversation_id": turn["conversation_id"]}
            answers.append(service.client.post("/turn", json=body))
            return answers[-1].status_code == 200

        wait_until(answered)
        assert answers[-1].json()["reply"] == "on"
        assert {answer.status_code for answer in answers[:-1]} <= {503}


@dataclass
class Tampering:
    """A service, a raw client, and a conversation with a past."""

    service: Service
    raw: Raw
    turn: dict[str, Any]
    old_head: bytes

    def key(self, kind: str, *more: object) -> str:
        return ":".join([PARTITION, kind, f"local/{self.turn['conversation_id']}", *map(str, more)])

    @property
    def steps(self) -> str:
        return self.key("steps", 0)

    @property
    def conversation(self) -> str:
        return self.key("conversation")

    def edit(self, index: int, at: int) -> None:
        blob = bytearray(self.raw.lindex(self.steps, index))
        blob[at] ^= 1
        self.raw.lset(self.steps, index, bytes(blob))

    def swap(self, one: int, other: int) -> None:
        first, second = self.raw.lindex(self.steps, one), self.raw.lindex(self.steps, other)
        self.raw.lset(self.steps, one, second)
        self.raw.lset(self.steps, other, first)

    def of_another(self) -> None:
        """Put a step of another conversation in place of one of ours."""
        other = self.service.play({"call": [["echo", {"text": "a"}]]}, {"say": "one"})
        theirs = f"{PARTITION}:steps:local/{other['conversation_id']}:0"
        self.raw.lset(self.steps, 1, self.raw.lindex(theirs, 1))

    def of_an_undone_past(self) -> None:
        """Roll the whole conversation back, play a turn, and put a step of the undone past in its place."""
        undone = self.raw.lindex(self.steps, 4)
        self.raw.hset(self.conversation, "head", self.old_head)
        self.raw.ltrim(self.steps, 0, 2)
        self.service.follow_up(self.turn, {"say": "three"})
        self.raw.lset(self.steps, 4, undone)

    def image_of_another(self) -> None:
        name, *_ = self.raw.hkeys(self.key("images"))
        other = self.service.play({"say": "one"}, images=[png("yellow")])
        theirs = self.raw.hvals(f"{PARTITION}:images:local/{other['conversation_id']}")
        self.raw.hset(self.key("images"), name, theirs[0])


TAMPERINGS: dict[str, Callable[[Tampering], object]] = {
    "a bit of a step": lambda it: it.edit(1, -1),
    "a step's version": lambda it: it.edit(1, 0),
    "a step's nonce": lambda it: it.edit(2, 12),
    "steps swapped": lambda it: it.swap(1, 2),
    "a step twice": lambda it: it.raw.lset(it.steps, 2, it.raw.lindex(it.steps, 1)),
    "a step of another conversation": Tampering.of_another,
    "a step of an undone past": Tampering.of_an_undone_past,
    "a step as the head": lambda it: it.raw.hset(it.conversation, "head", it.raw.lindex(it.steps, 1)),
    "the last step cut": lambda it: it.raw.ltrim(it.steps, 0, -2),
    "the first step cut": lambda it: it.raw.lpop(it.steps),
    "all steps cut": lambda it: it.raw.delete(it.steps),
    "a step added": lambda it: it.raw.rpush(it.steps, it.raw.lindex(it.steps, 1)),
    "an older head": lambda it: it.raw.hset(it.conversation, "head", it.old_head),
    "no head": lambda it: it.raw.hdel(it.conversation, "head"),
    "an empty head": lambda it: it.raw.hset(it.conversation, "head", ""),
    "another agent": lambda it: it.raw.hset(it.conversation, "agent", "code"),
    "another generation": lambda it: it.raw.hset(it.conversation, "generation", 1),
    "an image of another": Tampering.image_of_another,
    "no images": lambda it: it.raw.delete(it.key("images")),
}


@pytest.fixture(scope="module")
def cold(outside: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service that loads every conversation anew."""
    with Service(tmp_path_factory.mktemp("cold"), outside.settings | {"WARM_SESSIONS": "0", "WAIT_S": "5"}) as service:
        yield service


def with_a_past(service: Service, raw: Raw) -> Tampering:
    turn = service.play({"call": [["echo", {"text": "a"}]]}, {"say": "one"}, images=[png("red")])
    old = raw.hget(f"{PARTITION}:conversation:local/{turn['conversation_id']}", "head")
    return Tampering(service, raw, service.follow_up(turn, {"say": "two"}), old)


@pytest.mark.parametrize("what", TAMPERINGS)
def test_a_conversation_that_was_tampered_with_says_so_and_no_other_is_touched(
    cold: Service, outside: StoreServer, what: str
) -> None:
    other = cold.play({"say": "one"})
    it = with_a_past(cold, outside.client())
    TAMPERINGS[what](it)
    blobs = it.raw.lrange(it.steps, 0, -1)
    for _ in range(2):
        response = cold.post("/turn", message='[{"prompt": true}]', conversation_id=it.turn["conversation_id"])
        assert error_code(response) == "seal_broken", response.text
    assert it.raw.lrange(it.steps, 0, -1) == blobs
    assert cold.follow_up(other, {"say": "two"})["reply"] == "two"
    listed = cold.client.get("/conversations", params={"limit": 100})
    assert other["conversation_id"] in [shown["id"] for shown in listed.json()["items"]]
    assert cold.client.delete(f"/conversations/{it.turn['conversation_id']}").status_code == 204


def test_a_warm_session_never_hides_what_was_tampered_with(outside: StoreServer, tmp_path: Path) -> None:
    tampered = {}
    with Service(tmp_path, outside.settings | {"WAIT_S": "5"}) as warm:
        for what in ("steps swapped", "the last step cut", "all steps cut", "a step added", "no head", "an older head"):
            it = tampered[what] = with_a_past(warm, outside.client())
            TAMPERINGS[what](it)
            for _ in range(2):
                answer = warm.post("/turn", message='[{"say": "on"}]', conversation_id=it.turn["conversation_id"])
                assert answer.status_code == 200, what
    with Service(tmp_path, outside.settings | {"WAIT_S": "5"}) as fresh:
        for what, it in tampered.items():
            answer = fresh.post("/turn", message='[{"prompt": true}]', conversation_id=it.turn["conversation_id"])
            assert error_code(answer) == "seal_broken", what


def test_a_conversation_that_was_given_another_agent_in_the_store_has_none(server: StoreServer, tmp_path: Path) -> None:
    with Service(tmp_path, server.settings) as service:
        turn, other = (service.post("/turn", message="What is 1 + 1?", agent="demo").json() for _ in range(2))
    where = f"/conversations/{turn['conversation_id']}"
    server.client().hset(f"{PARTITION}:conversation:local/{turn['conversation_id']}", "agent", "demo-code")
    with Service(tmp_path, server.settings) as fresh:
        shown = fresh.client.get(where)
        assert (shown.status_code, shown.json()["code"]) == (500, "seal_broken")
        for named in ({}, {"agent": "demo"}, {"agent": "demo-code"}):
            refused = fresh.post("/turn", message="What is 2 + 2?", conversation_id=turn["conversation_id"], **named)
            assert (refused.status_code, error_code(refused)) == (500, "seal_broken"), refused.text
        assert len(fresh.get(f"{where}/turns")["items"]) == 1
        assert [item["id"] for item in fresh.get("/conversations")["items"]] == [other["conversation_id"]]
        going_on = fresh.post("/turn", message="What is 2 + 2?", conversation_id=other["conversation_id"]).json()
        assert (going_on["turn"], going_on["agent"]["name"]) == (2, "demo")
        assert fresh.client.delete(where).status_code == 204


@pytest.mark.parametrize("what", ["edited", "of another turn", "of another conversation", "cut"])
def test_a_turns_record_that_was_tampered_with_is_not_shown(cold: Service, outside: StoreServer, what: str) -> None:
    it = with_a_past(cold, outside.client())
    turns, other = it.key("turns"), with_a_past(cold, it.raw)
    where = f"/conversations/{it.turn['conversation_id']}/turns"
    if what == "edited":
        it.raw.lset(turns, 0, b"x" + it.raw.lindex(turns, 0)[1:])
    elif what == "of another turn":
        it.raw.lset(turns, 0, it.raw.lindex(turns, 1))
    elif what == "of another conversation":
        it.raw.lset(turns, 0, it.raw.lindex(other.key("turns"), 0))
    else:
        it.raw.lset(turns, 0, b"")
    for path in (where, f"{where}/1"):
        response = cold.client.get(path)
        assert (response.status_code, response.json()["code"]) == (500, "seal_broken")
    assert cold.get(f"{where}/2")["reply"] == "two"
    assert cold.follow_up(it.turn, {"say": "on"})["reply"] == "on"


@pytest.mark.parametrize("what", ["record", "input", "no record", "no input", "head", "moved"])
def test_a_waiting_turn_that_was_tampered_with_ends_and_the_others_are_played(
    tmp_path: Path, server: StoreServer, gate: Gate, what: str
) -> None:
    with Service(tmp_path / "service", PLAIN | server.settings | {"THREADS": "1", "WAIT_S": "5"}) as service:
        first = service.play({"say": "one"})
        blocking = submit_turn(service, gate.script, {"say": "end"})
        gate.reached()
        waiting = [
            submit_turn(service, {"say": "before"}),
            submit_turn(service, {"say": "never"}, conversation_id=first["conversation_id"]),
            submit_turn(service, {"say": "after"}),
        ]
        tamper_with_waiting(server.client(), what, *waiting[:2])
        gate.open()
        assert [wait_for_end(service, turn)["reply"] for turn in (blocking, waiting[0], waiting[2])] == [
            "end",
            "before",
            "after",
        ]
        wait_until(lambda: not is_playing(service))
        response = service.client.get(f"/conversations/{first['conversation_id']}/turns/2")
        if what == "no record":
            assert error_code(response) in {"turn_not_found", "seal_broken"}
        else:
            wait_until(lambda: error_code(service.client.get(f"/conversations/{first['conversation_id']}/turns/2")))
            response = service.client.get(f"/conversations/{first['conversation_id']}/turns/2")
            assert error_code(response) == "seal_broken"
        assert service.play({"say": "on"})["reply"] == "on"
        assert service.process.poll() is None


def tamper_with_waiting(raw: Raw, what: str, other: dict[str, Any], turn: dict[str, Any]) -> None:
    ref, theirs = f"local/{turn['conversation_id']}", f"local/{other['conversation_id']}"
    if what == "record":
        raw.lset(f"{PARTITION}:turns:{ref}", 1, b"x" * 60)
    elif what == "input":
        raw.hset(f"{PARTITION}:run:{ref}:2", "input", b"x" * 60)
    elif what == "no record":
        raw.rpop(f"{PARTITION}:turns:{ref}")
    elif what == "no input":
        raw.delete(f"{PARTITION}:run:{ref}:2")
    elif what == "head":
        raw.hset(f"{PARTITION}:conversation:{ref}", "head", b"x" * 60)
    else:
        raw.lset(f"{PARTITION}:turns:{ref}", 1, raw.lindex(f"{PARTITION}:turns:{theirs}", 0))
        raw.hset(f"{PARTITION}:run:{ref}:2", "input", raw.hget(f"{PARTITION}:run:{theirs}:1", "input"))


def test_a_record_that_was_tampered_with_hides_no_other_conversation(cold: Service, outside: StoreServer) -> None:
    it, other = with_a_past(cold, outside.client()), cold.play({"say": "one"})
    it.raw.hset(it.conversation, "record", b"x" * 60)
    shown = cold.client.get(f"/conversations/{it.turn['conversation_id']}")
    assert (shown.status_code, shown.json()["code"]) == (500, "seal_broken")
    listed = [item["id"] for item in cold.get("/conversations", limit=100)["items"]]
    assert other["conversation_id"] in listed
    assert it.turn["conversation_id"] not in listed


def noise(seed: int) -> str:
    return "".join(hashlib.sha256(f"{seed} {part}".encode()).hexdigest() for part in range(4))


def test_what_is_stored_grows_with_the_turns_and_no_faster(cold: Service, outside: StoreServer) -> None:
    raw, sizes = outside.client(), []
    turn: dict[str, Any] = {}
    for number in range(1, 41):
        script: Script = [{"call": [["echo", {"text": noise(number)}]]}, {"say": "ok"}]
        turn = cold.follow_up(turn, *script) if turn else cold.play(*script)
        if number in {20, 40}:
            sizes.append(sum(len(raw.dump(key)) for key in raw.keys(f"*{turn['conversation_id']}*")))
    assert 1.8 < sizes[1] / sizes[0] < 2.2


def test_an_image_that_many_steps_show_is_stored_once(cold: Service, outside: StoreServer) -> None:
    echo = {"call": [["echo", {"text": "look"}]]}
    turn = cold.play(echo, echo, {"say": "seen"}, images=[png("red")])
    turn = cold.follow_up(turn, echo, {"say": "again"}, images=[png("red")])
    assert len(cold.steps(turn)) == 7
    assert outside.client().hlen(f"{PARTITION}:images:local/{turn['conversation_id']}") == 1


def test_a_turn_that_is_over_leaves_no_working_keys(cold: Service, outside: StoreServer, gate: Gate) -> None:
    raw = outside.client()
    turn = cold.play({"call": [["echo", {"text": "a"}]]}, {"say": "one"})
    turn = cold.follow_up(turn, {"raise": "model_error"})
    assert turn["status"] == "failed"
    assert conversation_keys(raw, turn) == {"conversation:C", "turns:C", "steps:C:0", "logs:C", "heads:C"}
    assert raw.hkeys(f"{PARTITION}:logs:local/{turn['conversation_id']}") == [b"1", b"2"]
    running_turn = submit_turn(
        cold, gate.script, {"say": "x"}, conversation_id=turn["conversation_id"], images=[png("red")]
    )
    gate.reached()
    working = {"run:C:3", "journal:C:3", "watch:C:3", "queue:C", "log:C:3"}
    assert conversation_keys(raw, turn) >= working
    gate.open()
    wait_for_end(cold, running_turn)
    assert conversation_keys(raw, turn).isdisjoint(working)
    assert not raw.zrange(f"{PARTITION}:leases", 0, -1)
    assert not raw.zrange(f"{PARTITION}:ready:scripted", 0, -1)


def test_a_deleted_conversation_leaves_a_tombstone(cold: Service, outside: StoreServer, gate: Gate) -> None:
    raw = outside.client()
    turn = cold.play({"say": "one"}, images=[png("red")])
    turn = submit_turn(cold, gate.script, {"say": "x"}, conversation_id=turn["conversation_id"])
    gate.reached()
    assert cold.client.delete(f"/conversations/{turn['conversation_id']}").status_code == 204
    gate.open()
    wait_until(lambda: not is_playing(cold))
    assert conversation_keys(raw, turn) == {"conversation:C"}
    assert 0 < raw.ttl(f"{PARTITION}:conversation:local/{turn['conversation_id']}") <= 3600
    assert raw.hkeys(f"{PARTITION}:conversation:local/{turn['conversation_id']}") == [b"deleted"]
    assert not raw.zscore(f"{PARTITION}:leases", f"local/{turn['conversation_id']}")
    assert turn["conversation_id"] not in str(raw.zrange(f"{PARTITION}:owner:local", 0, -1))


def test_nothing_that_was_said_can_be_read_in_the_store(cold: Service, outside: StoreServer) -> None:
    secret = "the-quick-brown-fox"
    turn = cold.play({"call": [["echo", {"text": secret}]]}, {"say": secret}, metadata={secret: secret})
    raw = outside.client()
    for key in raw.keys(f"*{turn['conversation_id']}*"):
        assert secret.encode() not in key + raw.dump(key)
    assert secret not in cold.log()
