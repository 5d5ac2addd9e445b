"""A repeated request with the same Idempotency-Key returns the turn of the first one, from any process."""

import base64
import hashlib
import io
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from redis import Redis

from smolsessions.store.seal import new_key
from tests.support.idempotency import post_with_key, turn_of
from tests.support.problems import nothing_stored, problem
from tests.support.service import CODELESS, PLAIN, Service, write_private
from tests.support.store_server import SEAL_KEY, StoreServer, running_store
from tests.support.streaming import EVENTS, Event, Stream, log_of
from tests.support.turns import (
    DONE,
    ECHO,
    cancel,
    held_turn,
    submit_next,
    submit_turn,
    turn_counts,
    wait_for_end,
    wait_for_gate,
)
from tests.support.waiting import wait_until

REPEAT = range(int(os.environ.get("SMOLSESSIONS_TEST_REPEAT", "3")))
DAY_S = 86_400
Raw = Any  # redis-py annotates the answers of both its clients at once


@pytest.fixture(scope="module")
def pair(outside: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Service]]:
    """Yield two services on one store."""
    folder = tmp_path_factory.mktemp("pair")
    settings = CODELESS | outside.settings | {"ID_REUSE_S": "1", "MAX_TURNS_BEHIND": "1"}
    with ExitStack() as stack:
        yield (
            stack.enter_context(Service(folder / "a", settings)),
            stack.enter_context(Service(folder / "b", settings)),
        )


@pytest.fixture
def key() -> str:
    return f'"{os.urandom(8).hex()}"'


def conversations(service: Service) -> int:
    with Redis.from_url(service.settings["REDIS_URL"]) as store:
        return int(store.zcard("{p000}:owner:local"))


def png(colour: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    PIL.Image.new("RGB", (3, 2), colour).save(buffer, "PNG", **options)
    return buffer.getvalue()


def test_a_request_that_is_sent_again_is_answered_with_its_turn(pair: tuple[Service, Service], key: str) -> None:
    first = turn_of(post_with_key(pair[0], key, ECHO, {"say": "ещё раз"}))
    before = conversations(pair[0])
    for service in pair:
        assert turn_of(post_with_key(service, key, ECHO, {"say": "ещё раз"})) == first
        assert turn_of(post_with_key(service, key, ECHO, {"say": "ещё раз"}, prefer="respond-async")) == first
    assert conversations(pair[0]) == before
    assert turn_counts(pair[1], first) == (1, None, 0)


def test_a_request_is_attached_while_its_turn_runs(pair: tuple[Service, Service], key: str, tmp_path: Path) -> None:
    script = [wait_for_gate(tmp_path / "gate"), {"say": "同じ"}]
    with ThreadPoolExecutor(5) as pool:
        first = turn_of(post_with_key(pair[0], key, *script, prefer="respond-async"), 202)
        wait_until((tmp_path / "gate.started").exists)
        assert turn_of(post_with_key(pair[1], key, *script, prefer="respond-async"), 202)["status"] == "running"
        waiting = [pool.submit(post_with_key, pair[number % 2], key, *script) for number in range(4)]
        (tmp_path / "gate").touch()
        answers = [turn_of(answer.result()) for answer in waiting]
    assert answers == [wait_for_end(pair[0], first)] * 4
    assert turn_counts(pair[0], first) == (1, None, 0)


@pytest.mark.parametrize("is_over", [False, True])
def test_a_stream_that_is_asked_for_again_begins_with_the_first_event(
    pair: tuple[Service, Service], key: str, tmp_path: Path, is_over: bool
) -> None:
    asked = {"agent": "streamed", "message": json.dumps([ECHO, wait_for_gate(tmp_path / "gate"), DONE])}
    headers = EVENTS | {"Idempotency-Key": key}
    if is_over:
        (tmp_path / "gate").touch()
    raw: list[list[Event]] = []
    for service in (*pair, pair[0]):
        with service.client.stream("POST", "/turn", json=asked, headers=headers) as response:
            assert response.status_code == 200, response.read()
            stream = Stream(response)
            if not is_over:
                stream.until("tool.call", name="wait_for")
                if len(raw) == 2:
                    (tmp_path / "gate").touch()
                    stream.rest()
            else:
                stream.rest()
            raw.append([frame.data for frame in stream.seen])
    turn = wait_for_end(pair[0], raw[0][0])
    whole = [frame.data for frame in log_of(pair[1], turn)] if not is_over else raw[0]
    assert raw[-1] == whole
    assert all(events == whole[: len(events)] for events in raw)
    assert [events[0]["type"] for events in raw] == ["turn.queued"] * 3


@pytest.mark.parametrize("_time", REPEAT)
def test_requests_that_arrive_everywhere_at_once_begin_one_conversation(
    pair: tuple[Service, Service], key: str, _time: int
) -> None:
    before = conversations(pair[0])
    with ThreadPoolExecutor(12) as pool:
        answers = [*pool.map(lambda number: post_with_key(pair[number % 2], key, DONE), range(12))]
    turns = [turn_of(answer) for answer in answers]
    assert turns == turns[:1] * 12
    assert conversations(pair[0]) == before + 1
    assert (turns[0]["turn"], turn_counts(pair[1], turns[0])) == (1, (1, None, 0))


@pytest.mark.parametrize("on_busy", ["enqueue", "interrupt", "rollback"])
def test_requests_that_arrive_everywhere_at_once_add_one_turn_and_stop_not_their_own(
    pair: tuple[Service, Service], key: str, on_busy: str
) -> None:
    first = submit_turn(pair[0], {"call": [["compute", {"seconds": 0.2}]]}, DONE)
    body = {"conversation_id": first["conversation_id"], "on_busy": on_busy}
    with ThreadPoolExecutor(12) as pool:
        turns = [
            turn_of(a) for a in pool.map(lambda number: post_with_key(pair[number % 2], key, DONE, **body), range(12))
        ]
    assert turns == turns[:1] * 12
    assert (turns[0]["turn"], turns[0]["status"]) == (2, "finished")
    assert turn_of(post_with_key(pair[1], key, DONE, **body)) == turns[0]
    assert turn_counts(pair[0], first) == (2, None, 0)


def test_a_key_is_looked_up_before_it_is_asked_whether_a_turn_runs(
    pair: tuple[Service, Service], key: str, tmp_path: Path
) -> None:
    first = turn_of(post_with_key(pair[0], key, DONE))
    body = {"conversation_id": first["conversation_id"]}
    second = turn_of(post_with_key(pair[0], key + "2", DONE, **body))
    with held_turn(pair[0], tmp_path / "gate", **body) as third:
        assert turn_of(post_with_key(pair[1], key + "2", DONE, **body)) == second
        problem(post_with_key(pair[1], key + "3", DONE, **body), 409, "busy")
        last = submit_next(pair[0], third, DONE)
        problem(post_with_key(pair[1], key + "3", DONE, on_busy="enqueue", **body), 429, "too_many_turns")
    assert [wait_for_end(pair[0], turn)["status"] for turn in (third, last)] == ["finished"] * 2


BASE: Event = {"additional_args": {"a": 1, "b": [1, 2]}, "max_steps": 5, "metadata": {"m": "é"}}
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
    "an image": {"images": [base64.b64encode(png("red")).decode()]},
    "a conversation": {"conversation_id": "another"},
    "an agent that is not there": {"agent": "nobody"},
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_key_that_is_reused_for_another_request_is_refused(
    pair: tuple[Service, Service], key: str, what: str
) -> None:
    first = turn_of(post_with_key(pair[0], key, DONE, **BASE))
    with nothing_stored(pair[0]):
        found = problem(post_with_key(pair[1], key, DONE, **BASE | OTHERS[what]), 422, "idempotency_key_reused")
        assert (found["errors"][0]["in"], found["errors"][0]["parameter"]) == ("header", "Idempotency-Key")
        assert "new key" in found["detail"]
    assert turn_of(post_with_key(pair[1], key, DONE, **BASE)) == first


def test_an_image_makes_a_request_another_one_and_how_it_is_written_does_not(
    pair: tuple[Service, Service], key: str
) -> None:
    data = base64.b64encode(png("red")).decode()
    first = turn_of(post_with_key(pair[0], key, DONE, images=[data]))
    assert turn_of(post_with_key(pair[1], key, DONE, images=[f"data:image/png;base64,{data}"])) == first
    other = base64.b64encode(png("blue")).decode()
    for images in ([other], [data, data], []):
        problem(post_with_key(pair[1], key, DONE, images=images), 422, "idempotency_key_reused")


def test_how_the_answer_is_wanted_and_the_order_of_names_make_no_other_request(
    pair: tuple[Service, Service], key: str
) -> None:
    conversation = pair[0].post("/conversations", agent="scripted").json()["id"]
    first = turn_of(post_with_key(pair[0], key, DONE, **BASE, conversation_id=conversation))
    turned = BASE | {"additional_args": {"b": [1, 2], "a": 1}, "reset": False, "on_busy": "reject"}
    assert turn_of(post_with_key(pair[1], key, DONE, path=f"/conversations/{conversation}/turns", **turned)) == first
    told = turn_of(
        post_with_key(pair[1], key, DONE, **turned, conversation_id=conversation, include_internal_tools=True)
    )
    assert (told["tool_call_names"], told["turn"]) == (["final_answer"], 1)


def test_the_same_key_of_another_owner_is_another_key(tmp_path: Path, key: str) -> None:
    keys = {"alice": "a-secret", "bob": "b-secret"}
    lines = [f"{owner} {hashlib.sha256(secret.encode()).hexdigest()}" for owner, secret in keys.items()]
    file = write_private(tmp_path / "keys", "\n".join(lines))
    with Service(tmp_path / "service", {"API_KEYS_FILE": str(file), "AGENTS": ""}) as service:
        turns = []
        for secret in (*keys.values(), *keys.values()):
            headers = {"Authorization": f"Bearer {secret}", "Idempotency-Key": key}
            turns.append(turn_of(service.client.post("/turn", json={"message": "2 * 3"}, headers=headers)))
    assert turns[:2] == turns[2:]
    assert turns[0]["conversation_id"] != turns[1]["conversation_id"]


@pytest.mark.parametrize("bad", ["", "x" * 256, "a b", "a\tb", "ключ", "é"])
def test_a_key_that_cannot_be_is_refused(service: Service, bad: str) -> None:
    headers = [(b"Idempotency-Key", bad.encode())]
    with nothing_stored(service):
        response = service.client.post("/turn", json={"message": "hi", "agent": "demo"}, headers=headers)
        found = problem(response, 422, "invalid_request")
        assert (found["errors"][0]["in"], found["errors"][0]["parameter"]) == ("header", "Idempotency-Key")


@pytest.mark.parametrize(
    "good", ["x", "~", "x" * 255, '"8e03978e-40d5-43dd-bc93-6894a57f9324"', "!#$%&'*+-.^_`|~:,;/\\"]
)
def test_a_key_is_any_visible_ascii(service: Service, good: str) -> None:
    turns = [turn_of(post_with_key(service, good, {"say": "ok"})) for _ in range(2)]
    assert turns[0] == turns[1]


def test_a_refusal_is_not_kept_under_the_key(pair: tuple[Service, Service], key: str, tmp_path: Path) -> None:
    with held_turn(pair[0], tmp_path / "gate") as first:
        body = {"conversation_id": first["conversation_id"]}
        waiting = submit_next(pair[0], first, DONE)
        problem(post_with_key(pair[0], key, DONE, **body), 409, "busy")
        problem(post_with_key(pair[0], key, DONE, on_busy="enqueue", **body), 429, "too_many_turns")
        problem(post_with_key(pair[0], key, DONE, max_steps=1000, **body), 422, "invalid_request")
        problem(post_with_key(pair[0], key, DONE, conversation_id="nowhere"), 404, "conversation_not_found")
        problem(post_with_key(pair[0], key, DONE, agent="demo", **body), 409, "agent_mismatch")
        problem(post_with_key(pair[0], key, DONE, agent="nobody"), 422, "unknown_agent")
    assert wait_for_end(pair[0], waiting)["status"] == "finished"
    assert turn_of(post_with_key(pair[1], key, DONE, **body))["turn"] == 3


def test_a_turn_that_failed_or_was_cancelled_is_not_played_again(
    pair: tuple[Service, Service], key: str, tmp_path: Path
) -> None:
    failed = turn_of(post_with_key(pair[0], key, {"raise": "no"}))
    assert (failed["status"], turn_of(post_with_key(pair[1], key, {"raise": "no"}))) == ("failed", failed)
    with held_turn(pair[0], tmp_path / "gate") as first:
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


def test_a_key_lasts_a_day_and_then_makes_another_conversation(
    pair: tuple[Service, Service], outside: StoreServer, key: str
) -> None:
    seen = set()
    for _ in range(3):
        with outside.client() as store:
            before = set(store.keys("{p000}:idem:*"))
            first = turn_of(post_with_key(pair[0], key, DONE))
            (name,) = set(store.keys("{p000}:idem:*")) - before
            assert DAY_S - 60 < store.ttl(name) <= DAY_S
            value = store.get(name)
            assert key.encode() not in name + value
            with ThreadPoolExecutor(6) as pool:
                again = [
                    turn_of(a) for a in pool.map(lambda number: post_with_key(pair[number % 2], key, DONE), range(6))
                ]
            assert again == [first] * 6
            seen.add(first["conversation_id"])
            store.delete(name)  # as if its time to live had passed
    assert len(seen) == 3
    body = {"conversation_id": first["conversation_id"]}
    turns = [turn_of(post_with_key(pair[0], key, DONE, **body))["turn"] for _ in range(2)]
    assert turns == [2, 2]


def test_a_key_outlives_a_change_of_the_keys_that_seal_and_a_process(tmp_path: Path, key: str) -> None:
    new = new_key()
    first = None
    with running_store(tmp_path / "store") as outside:
        for number, keys in enumerate((SEAL_KEY, f"{new},{SEAL_KEY}", new)):
            with Service(tmp_path / str(number), PLAIN | outside.settings | {"SEAL_KEYS": keys}) as service:
                if first is None:
                    first = turn_of(post_with_key(service, key, DONE))
                elif keys == new:
                    problem(post_with_key(service, key, {"say": "other"}), 422, "idempotency_key_reused")
                else:
                    assert turn_of(post_with_key(service, key, DONE)) == first
        with outside.client() as store:
            assert set(store.hkeys("{p000}:about")) == {b"schema", b"partitions", b"canary", b"pepper", b"durability"}


def test_a_process_that_does_not_play_the_agent_attaches_all_the_same(
    replicas: tuple[Service, Service], key: str
) -> None:
    first = turn_of(post_with_key(replicas[0], key, DONE))
    assert turn_of(post_with_key(replicas[1], key, DONE)) == first
    problem(post_with_key(replicas[1], key + "2", DONE), 422, "unknown_agent")
