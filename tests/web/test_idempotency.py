"""A repeated request with the same Idempotency-Key returns the turn of the first one, from any process."""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis

from tests.support.idempotency import post_with_key, turn_of
from tests.support.problems import nothing_stored, problem
from tests.support.service import Gate, Service, wait_until
from tests.support.sounds import sent
from tests.support.store_server import StoreServer
from tests.support.streaming import EVENTS, Event, Stream, log_of, two_services
from tests.support.turns import DONE, ECHO, cancel, held_turn, png, submit_next, submit_turn, turn_counts, wait_for_end

DAY_S = 86_400


@pytest.fixture(scope="module")
def pair(outside: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Service]]:
    settings = outside.settings | {"ID_REUSE_S": "1", "MAX_TURNS_BEHIND": "1"}
    with two_services(tmp_path_factory.mktemp("pair"), settings) as both:
        yield both


@pytest.fixture
def key() -> str:
    return f'"{os.urandom(8).hex()}"'


def conversations(service: Service) -> int:
    with Redis.from_url(service.settings["REDIS_URL"]) as store:
        return int(store.zcard("{p000}:owner:local"))


@pytest.mark.parametrize("is_over", [False, True])
def test_a_repeated_stream_has_all_events(pair: tuple[Service, Service], key: str, gate: Gate, is_over: bool) -> None:
    asked = {"agent": "streamed", "message": json.dumps([ECHO, gate.script, DONE])}
    headers = EVENTS | {"Idempotency-Key": key}
    if is_over:
        gate.open()
    raw: list[list[Event]] = []
    for number, service in enumerate((*pair, pair[0])):
        with service.client.stream("POST", "/turn", json=asked, headers=headers) as response:
            assert response.status_code == 200, response.read()
            stream = Stream(response)
            if not is_over:
                stream.until("tool.call", name="wait_for")
            if number == 2:
                gate.open()
            if is_over or number == 2:
                stream.rest()
            raw.append([frame.data for frame in stream.seen])
    whole = [frame.data for frame in log_of(pair[1], raw[0][0])]
    assert raw[-1] == whole
    assert all(events == whole[: len(events)] for events in raw)
    assert [events[0]["type"] for events in raw] == ["turn.queued"] * 3


def at_once(pair: tuple[Service, Service], key: str, **body: Any) -> list[Event]:
    with ThreadPoolExecutor(12) as pool:
        answers = pool.map(lambda number: post_with_key(pair[number % 2], key, DONE, **body), range(12))
        return [turn_of(answer) for answer in answers]


@pytest.mark.parametrize("on_busy", ["enqueue", "interrupt", "rollback"])
def test_simultaneous_requests_add_one_turn(pair: tuple[Service, Service], key: str, on_busy: str) -> None:
    first = submit_turn(pair[0], {"call": [["compute", {"seconds": 0.2}]]}, DONE)
    body: Event = {"conversation_id": first["conversation_id"], "on_busy": on_busy}
    turns = at_once(pair, key, **body)
    assert turns == turns[:1] * 12
    assert (turns[0]["turn"], turns[0]["status"]) == (2, "finished")
    assert turn_of(post_with_key(pair[1], key, DONE, **body)) == turns[0]
    assert turn_counts(pair[0], first) == (2, None, 0)


BASE: Event = {
    "files": [sent("a.csv", "text/csv", "3")],
    "additional_args": {"a": 1, "b": [1, 2]},
    "max_steps": 5,
    "metadata": {"m": "é"},
    "images": [png("red")],
}
OTHERS: dict[str, Event] = {
    "message": {"message": json.dumps([{"say": "другое"}])},
    "agent": {"agent": "checked"},
    "no agent": {"agent": "demo"},
    "arguments": {"additional_args": {"a": 1, "b": [2, 1]}},
    "no arguments": {"additional_args": {}},
    "max_steps": {"max_steps": 6},
    "deadline_s": {"deadline_s": 9.5},
    "reset": {"reset": True},
    "on_busy": {"on_busy": "enqueue"},
    "approve": {"approve": ["echo"]},
    "metadata": {"metadata": {"m": "e"}},
    "no image": {"images": []},
    "another image": {"images": [png("blue")]},
    "an image twice": {"images": [png("red")] * 2},
    "no file": {"files": []},
    "another file": {"files": [sent("a.csv", "text/csv", "2")]},
    "a conversation": {"conversation_id": "another"},
    "an agent that is not there": {"agent": "nobody"},
}


def test_a_key_that_is_reused_for_another_request_is_refused(pair: tuple[Service, Service], key: str) -> None:
    first = turn_of(post_with_key(pair[0], key, DONE, **BASE))
    with nothing_stored(pair[0]):
        for what, other in OTHERS.items():
            response = post_with_key(pair[1], key, DONE, **BASE | other)
            assert response.status_code == 422, what
            found = problem(response, 422, "idempotency_key_reused")
            assert (found["errors"][0]["in"], found["errors"][0]["parameter"]) == ("header", "Idempotency-Key")
            assert "new key" in found["detail"]
    spelt = BASE | {"images": [f"data:image/png;base64,{png('red')}"]}
    assert turn_of(post_with_key(pair[1], key, DONE, **spelt)) == first


def test_form_of_the_answer_and_order_of_names_make_no_other_request(pair: tuple[Service, Service], key: str) -> None:
    conversation = pair[0].post("/conversations", agent="scripted").json()["id"]
    first = turn_of(post_with_key(pair[0], key, DONE, **BASE, conversation_id=conversation))
    turned = BASE | {"additional_args": {"b": [1, 2], "a": 1}, "reset": False, "on_busy": "reject"}
    named = turned | {"conversation_id": conversation}
    for query in ("", "?on_disconnect=cancel"):  # with a query FastAPI answers
        for path, body in ((f"/conversations/{conversation}/turns", turned), ("/turn", named)):
            assert turn_of(post_with_key(pair[1], key, DONE, path=path + query, **body)) == first
    path = "/turn?include_internal_tools=true"
    shown = turn_of(post_with_key(pair[1], key, DONE, path=path, **named))
    assert (shown["tool_call_names"], shown["turn"]) == (["final_answer"], 1)


def test_a_key_is_any_visible_ascii(service: Service) -> None:
    with nothing_stored(service):
        for bad in ("", "x" * 256, "a b", "a\tb", "ключ", "é"):
            headers = [(b"Idempotency-Key", bad.encode())]
            response = service.client.post("/turn", json={"message": "hi", "agent": "demo"}, headers=headers)
            found = problem(response, 422, "invalid_request")
            assert (found["errors"][0]["in"], found["errors"][0]["parameter"]) == ("header", "Idempotency-Key")
    for good in ("x", "~", "x" * 255, '"8e03978e-40d5-43dd-bc93-6894a57f9324"', "!#$%&'*+-.^_`|~:,;/\\"):
        turns = [turn_of(post_with_key(service, good, {"say": "ok"})) for _ in range(2)]
        assert turns[0] == turns[1]


def test_a_key_is_looked_up_first_and_no_refusal_is_kept(pair: tuple[Service, Service], key: str, gate: Gate) -> None:
    body = {"conversation_id": pair[0].play(DONE)["conversation_id"]}
    earlier = turn_of(post_with_key(pair[0], key + "2", DONE, **body))
    with held_turn(pair[0], gate.path, **body) as held:
        waiting = submit_next(pair[0], held, DONE)
        assert turn_of(post_with_key(pair[1], key + "2", DONE, **body)) == earlier
        problem(post_with_key(pair[0], key, DONE, **body), 409, "busy")
        problem(post_with_key(pair[0], key, DONE, on_busy="enqueue", **body), 429, "too_many_turns")
        problem(post_with_key(pair[0], key, DONE, max_steps=1000, **body), 422, "invalid_request")
        problem(post_with_key(pair[0], key, DONE, conversation_id="nowhere"), 404, "conversation_not_found")
        problem(post_with_key(pair[0], key, DONE, agent="demo", **body), 409, "agent_mismatch")
        problem(post_with_key(pair[0], key, DONE, agent="nobody"), 422, "unknown_agent")
    assert wait_for_end(pair[0], waiting)["status"] == "finished"
    assert turn_of(post_with_key(pair[1], key, DONE, **body))["turn"] == 5


def test_a_failed_or_cancelled_turn_is_not_played_again(pair: tuple[Service, Service], key: str, gate: Gate) -> None:
    failed = turn_of(post_with_key(pair[0], key, {"raise": "no"}))
    assert (failed["status"], turn_of(post_with_key(pair[1], key, {"raise": "no"}))) == ("failed", failed)
    with held_turn(pair[0], gate.path) as first:
        body = {"conversation_id": first["conversation_id"], "on_busy": "enqueue"}
        waiting = turn_of(post_with_key(pair[0], key + "2", DONE, prefer="respond-async", **body), 202)
        assert turn_of(post_with_key(pair[1], key + "2", DONE, prefer="respond-async", **body), 202) == waiting
        cancelled = cancel(pair[0], waiting).json()
        assert turn_of(post_with_key(pair[1], key + "2", DONE, **body)) == cancelled
    assert cancelled["status"] == "cancelled"


def test_a_key_whose_conversation_was_deleted_makes_no_other_turn(pair: tuple[Service, Service], key: str) -> None:
    conversation = f"phoenix-{key[1:-1]}"
    pair[0].post("/conversations", id=conversation, agent="scripted")
    body = {"conversation_id": conversation}
    turns = [turn_of(post_with_key(pair[0], key, DONE)), turn_of(post_with_key(pair[0], key + "2", DONE, **body))]
    for turn in turns:
        assert pair[0].client.delete(f"/conversations/{turn['conversation_id']}").status_code == 204
    assert "new key" in problem(post_with_key(pair[1], key, DONE), 404, "conversation_not_found")["detail"]
    problem(post_with_key(pair[1], key + "2", DONE, **body), 404, "conversation_not_found")
    problem(post_with_key(pair[1], key, {"say": "other"}), 422, "idempotency_key_reused")
    wait_until(lambda: pair[0].post("/conversations", id=conversation, agent="scripted").status_code == 201)
    pair[0].play({"say": "of another life"}, **body)
    problem(post_with_key(pair[1], key + "2", DONE, **body), 404, "conversation_not_found")
    assert turn_counts(pair[0], turns[1]) == (1, None, 0)


def test_a_key_lasts_a_day_and_no_longer(pair: tuple[Service, Service], outside: StoreServer, key: str) -> None:
    seen = set()
    for _ in range(2):
        with outside.client() as store:
            before = set(store.keys("{p000}:idem:*"))
            first = turn_of(post_with_key(pair[0], key, DONE))
            (name,) = set(store.keys("{p000}:idem:*")) - before
            assert DAY_S - 600 < store.ttl(name) <= DAY_S
            assert key.encode() not in name + store.get(name)
            assert at_once(pair, key) == [first] * 12
            seen.add(first["conversation_id"])
            store.delete(name)  # as if its time to live had passed
    assert len(seen) == 2
    body = {"conversation_id": first["conversation_id"]}
    assert [turn_of(post_with_key(pair[0], key, DONE, **body))["turn"] for _ in range(2)] == [2, 2]


def test_a_process_without_the_agent_attaches_all_the_same(replicas: tuple[Service, Service], key: str) -> None:
    first = turn_of(post_with_key(replicas[0], key, DONE))
    assert turn_of(post_with_key(replicas[1], key, DONE)) == first
    problem(post_with_key(replicas[1], key + "2", DONE), 422, "unknown_agent")


def test_a_repeated_creation_fork_or_import_returns_the_first_ones_conversation(pair: tuple[Service, Service]) -> None:
    client, other_client = (service.client for service in pair)
    origin = pair[0].play({"say": "hi"})["conversation_id"]
    document = pair[0].get(f"/conversations/{origin}/export")
    for path, body, other in (
        ("/conversations", {"agent": "scripted"}, {"agent": "scripted", "metadata": {"a": 1}}),
        (f"/conversations/{origin}/fork", {"turn": 1}, {"turn": 0}),
        ("/imports", document, document | {"metadata": {"a": 1}}),
    ):
        key = {"Idempotency-Key": path}
        first, again = (each.post(path, json=body, headers=key) for each in (client, other_client))
        assert (first.status_code, again.status_code) == (201, 201), (first.text, again.text)
        assert first.json() == again.json()
        assert first.headers["location"] == again.headers["location"]
        assert client.post(path, json=body).json()["id"] != first.json()["id"]
        problem(client.post(path, json=other, headers=key), 422, "idempotency_key_reused")
        problem(client.post("/turn", json={"message": "hi"}, headers=key), 422, "idempotency_key_reused")


def test_a_refused_creation_does_not_take_the_key(pair: tuple[Service, Service], key: str) -> None:
    client, headers = pair[0].client, {"Idempotency-Key": key}
    taken = client.post("/conversations", json={"agent": "scripted"}).json()["id"]
    for _ in range(2):
        problem(client.post("/conversations", json={"id": taken}, headers=headers), 409, "conversation_exists")
    assert client.post("/conversations", json={}, headers=headers).status_code == 201


def test_creations_with_one_key_at_once_make_one_conversation(pair: tuple[Service, Service], key: str) -> None:
    before = conversations(pair[0])
    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(service.client.post, "/conversations", json={}, headers={"Idempotency-Key": key})
            for service in pair * 4
        ]
        assert len({each.result().json()["id"] for each in asked}) == 1
    assert conversations(pair[0]) == before + 1
