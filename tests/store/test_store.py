"""Conversations outlive kills and stops of processes and of the store, floods of restarts, and tampering."""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from smolsessions.store.seal import Sealer, parse_keys
from tests.support import old_data
from tests.support.old_data import TALKS
from tests.support.old_data_checks import messages_of
from tests.support.problems import problem
from tests.support.service import PATIENCE_S, PLAIN, Gate, Service, shared_service, wait_until
from tests.support.store_server import PARTITION, SEAL_KEY, Raw, StoreServer
from tests.support.streaming import two_services
from tests.support.tiers import mostly_deep
from tests.support.turns import DONE, error_code, png, submit_next, submit_turn, wait_for_end, wait_until_back

FINAL = {"turn.finished", "turn.failed", "turn.cancelled"}
Script = list[dict[str, Any]]


@pytest.fixture
def pair(server: StoreServer, tmp_path: Path) -> Iterator[tuple[Service, Service]]:
    with two_services(tmp_path, PLAIN | server.settings) as both:
        yield both


@pytest.mark.parametrize("how", mostly_deep(["by turns", "killed"], fast=["by turns"]))
def test_two_services_play_one_conversation_as_one_agent(server: StoreServer, tmp_path: Path, how: str) -> None:
    with Service(tmp_path / "a", server.settings) as one, Service(tmp_path / "b", server.settings) as other:
        for name in TALKS if how == "killed" else ("tools", "plans", "code"):
            agent, turns = TALKS[name]
            here = old_data.play_as_new(one, name, f"{name}-here")
            other.post("/conversations", id=name, agent=agent).raise_for_status()
            for number, (script, more) in enumerate(turns, 1):
                service = (one, other)[(number + 1) // 2 % 2]
                there = service.play(*script, agent=agent, conversation_id=name, **more)
                if how == "killed":
                    service.kill()
                    service.start()
            assert messages_of(one, there) == messages_of(other, there) == messages_of(one, here)
            for service in (one, other):
                replies = [service.follow_up(turn, {"prompt": True})["reply"] for turn in (here, there)]
                assert replies[:1] == replies[1:]


def assert_away(service: Service, turn: dict[str, Any]) -> None:
    """Check that each call that needs the store reports its absence, and that nothing else fails."""
    calls: list[tuple[str, str, Mapping[str, Any]]] = [
        ("POST", "/turn", {"json": {"message": "hello", "agent": "demo"}}),
        ("GET", f"/conversations/{turn['conversation_id']}", {}),
        ("GET", "/conversations", {}),
        ("DELETE", f"/conversations/{turn['conversation_id']}", {}),
    ]
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda call: service.client.request(call[0], call[1], **call[2]), calls))
        assert service.client.get("/livez").status_code == 200
    for response in answers:
        assert (response.status_code, response.json()["code"]) == (503, "store_unavailable")
        assert int(response.headers["retry-after"]) > 0


def test_a_service_outlives_the_store_again_and_again(pair: tuple[Service, Service], server: StoreServer) -> None:
    turn = pair[0].play({"say": "0"})
    for number in (2, 4):
        server.kill()
        for service in pair:
            assert_away(service, turn)
        server.start()
        for nth, service in enumerate(pair, number):
            wait_until_back(service)
            turn = service.follow_up(turn, {"say": str(nth)})
            assert (turn["turn"], turn["reply"]) == (nth, str(nth))
    assert all(service.process.poll() is None for service in pair)


@pytest.mark.parametrize("how", mostly_deep(["killed", "frozen", "flushed"], fast=["frozen", "flushed"]))
def test_a_turn_finishes_while_the_store_is_away(tmp_path: Path, server: StoreServer, gate: Gate, how: str) -> None:
    script: Script = [gate.script, {"call": [["echo", {"text": "after"}]]}, {"say": "end"}]
    with Service(tmp_path / "service", PLAIN | server.settings) as service, ThreadPoolExecutor() as pool:
        waiting = pool.submit(service.follow_up, service.play({"say": "one"}), *script)
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
        assert (turn["status"], turn["reply"], turn["attempts"], turn["step_count"]) == ("finished", "end", 1, 3)
        assert wait_for_end(service, turn) == turn
        same = service.follow_up(service.play({"say": "one"}), *script)
        assert len({service.follow_up(each, {"prompt": True})["reply"] for each in (turn, same)}) == 1
        events = service.client.get(f"/conversations/{turn['conversation_id']}/turns/{turn['turn']}/events").text
        names = re.findall("^event: (.+)$", events, re.MULTILINE)
        assert [name for name in names if name in FINAL] == ["turn.finished"]


def test_an_unreadable_message_ends_nothing_and_hides_no_end(cold: Service, outside: StoreServer, gate: Gate) -> None:
    turn, raw = submit_turn(cold, gate.script, {"say": "end"}), outside.client()
    gate.reached()
    ref = f"local/{turn['conversation_id']}".encode()
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
    with ThreadPoolExecutor() as pool:
        where = f"/conversations/{turn['conversation_id']}/turns/{turn['turn']}/events"
        reading = pool.submit(cold.client.get, where)
        wait_until(lambda: raw.scard(f"{PARTITION}:watch:{ref.decode()}:1"))
        for message in odd:
            for channel in raw.execute_command("PUBSUB", "SHARDCHANNELS", f"{PARTITION}:*"):
                assert raw.execute_command("SPUBLISH", channel, message) == 1
        wait_until(lambda: cold.log().count("message of the store cannot be read") >= 3)
        gate.open()
        assert "event: turn.finished" in reading.result(PATIENCE_S).text
    assert cold.follow_up(turn, {"say": "on"})["reply"] == "on"


def test_a_stream_passes_many_events_of_a_newer_release(cold: Service, outside: StoreServer, tmp_path: Path) -> None:
    first, second = Gate(tmp_path / "first"), Gate(tmp_path / "second")
    first_turn = submit_turn(cold, first.script, DONE)
    first.reached()
    where = f"/conversations/{first_turn['conversation_id']}/turns"
    submit_next(cold, first_turn, second.script, DONE)
    ref = f"local/{first_turn['conversation_id']}"
    newer = Sealer(parse_keys(SEAL_KEY)).seal(b"{}", ref, "event", 2, "turn.newer")
    outside.client().rpush(f"{PARTITION}:log:{ref}:2", *[b"turn.newer\n" + newer] * 1200)
    with cold.client.stream("GET", f"{where}/2/events") as stream:
        texts = stream.iter_text()
        first.open()
        seen = ""
        while "event: turn.started" not in seen:
            seen += next(texts)
        second.open()
        assert "event: turn.finished" in "".join(texts)


def test_a_stream_ends_at_damage_and_the_turn_goes_on(cold: Service, outside: StoreServer, tmp_path: Path) -> None:
    first, second, logged = Gate(tmp_path / "first"), Gate(tmp_path / "second"), len(cold.log())
    turn = submit_turn(cold, first.script, second.script, {"say": "end"})
    first.reached()
    where = f"/conversations/{turn['conversation_id']}/turns/{turn['turn']}"
    with cold.client.stream("GET", f"{where}/events") as stream:
        texts = stream.iter_text()
        seen = next(texts)
        outside.client().rpush(f"{PARTITION}:log:local/{turn['conversation_id']}:1", b"turn.started\nforeign")
        first.open()
        seen += "".join(texts)
    second.open()
    assert "turn.queued" in seen
    assert "the rest cannot be read" in seen
    assert wait_for_end(cold, turn)["reply"] == "end"
    assert "Traceback" not in cold.log()[logged:]


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

    def of_an_undone_past(self) -> None:
        """Roll the whole conversation back, play a turn, and put a step of the undone past in its place."""
        undone = self.raw.lindex(self.steps, 4)
        self.raw.hset(self.conversation, "head", self.old_head)
        self.raw.ltrim(self.steps, 0, 2)
        self.service.follow_up(self.turn, {"say": "three"})
        self.raw.lset(self.steps, 4, undone)


TAMPERINGS: dict[str, Callable[[Tampering], object]] = {
    "a bit of a step": lambda it: it.edit(1, -1),
    "steps swapped": lambda it: it.swap(1, 2),
    "a step twice": lambda it: it.raw.lset(it.steps, 2, it.raw.lindex(it.steps, 1)),
    "a step of an undone past": Tampering.of_an_undone_past,
    "a step as the head": lambda it: it.raw.hset(it.conversation, "head", it.raw.lindex(it.steps, 1)),
    "the last step cut": lambda it: it.raw.ltrim(it.steps, 0, -2),
    "the first step cut": lambda it: it.raw.lpop(it.steps),
    "all steps cut": lambda it: it.raw.delete(it.steps),
    "the last turn cut": lambda it: it.raw.rpop(it.key("turns")),
    "a step added": lambda it: it.raw.rpush(it.steps, it.raw.lindex(it.steps, 1)),
    "an older head": lambda it: it.raw.hset(it.conversation, "head", it.old_head),
    "no head": lambda it: it.raw.hdel(it.conversation, "head"),
    "another agent": lambda it: it.raw.hset(it.conversation, "agent", "code"),
}
cold = shared_service({"WARM_SESSIONS": "0", "WAIT_S": "5"}, on_outside=True)


def with_a_past(service: Service, raw: Raw) -> Tampering:
    turn = service.play({"call": [["echo", {"text": "a"}]]}, {"say": "one"}, images=[png("red")])
    old = raw.hget(f"{PARTITION}:conversation:local/{turn['conversation_id']}", "head")
    return Tampering(service, raw, service.follow_up(turn, {"say": "two"}), old)


@pytest.mark.parametrize("what", TAMPERINGS)
def test_tampering_is_named_and_touches_no_other(cold: Service, outside: StoreServer, what: str) -> None:
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
        problem(cold.client.get(path), 500, "seal_broken")
    assert cold.get(f"{where}/2")["reply"] == "two"
    assert cold.follow_up(it.turn, {"say": "on"})["reply"] == "on"


def test_what_is_stored_grows_with_the_turns_and_no_faster(cold: Service, outside: StoreServer) -> None:
    raw, sizes = outside.client(), []
    turn: dict[str, Any] = {}
    for number in range(1, 41):
        script: Script = [{"call": [["echo", {"text": os.urandom(128).hex()}]]}, {"say": "ok"}]
        turn = cold.follow_up(turn, *script) if turn else cold.play(*script)
        if number in {20, 40}:
            sizes.append(sum(len(raw.dump(key)) for key in raw.keys(f"*{turn['conversation_id']}*")))
    assert 1.8 < sizes[1] / sizes[0] < 2.2


def test_nothing_that_was_said_can_be_read_in_the_store(cold: Service, outside: StoreServer) -> None:
    secret = "the-quick-brown-fox"
    more = {"metadata": {secret: secret}, "additional_args": {secret: secret}}
    turn = cold.play({"code": f"name = echo({secret!r})"}, {"say": secret}, agent="code", **more)
    raw = outside.client()
    for key in raw.keys(f"*{turn['conversation_id']}*"):
        assert secret.encode() not in key + raw.dump(key)
    assert secret not in cold.log()
