"""Going back in time: a fork or a rollback equals a conversation that stopped at that turn."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.data import table
from tests.support.histories import (
    KINDS,
    SETTINGS,
    assert_consistent,
    fork,
    history_of,
    new_conversation,
    probe,
    record_of,
    roll_back,
    step_counts,
    variable_x,
)
from tests.support.problems import nothing_stored, problem
from tests.support.service import Service, shared_service
from tests.support.store_server import PARTITION, Raw, StoreServer, conversation_keys, raw_store
from tests.support.streaming import log_of
from tests.support.tiers import mostly_deep
from tests.support.turns import DONE, ECHO, PROMPT, cancel, held_turn, png, submit_turn, wait_for_end

service = shared_service(SETTINGS, on_outside=True)
# A service that plays one turn at a time, on a store of its own.
AGENTS = "scripted=tests.support.agents:make_scripted,other=tests.support.agents:make_scripted"
narrow = shared_service(SETTINGS | {"AGENTS": AGENTS, "THREADS": "1"})
raw = raw_store()


@pytest.mark.parametrize("kind", mostly_deep(KINDS, fast=["rememberer"]))
def test_forks_and_rollbacks_equal_a_shorter_conversation(service: Service, tmp_path: Path, kind: str) -> None:
    past, expected = history_of(kind, tmp_path), []
    whole, last = new_conversation(service, kind), len(past.turns)
    for turn in range(last + 1):
        short = new_conversation(service, kind)
        past.play(service, short, 1, turn)
        expected.append(probe(service, short, kind))
    past.play(service, whole, 1, last)
    before = record_of(service, whole)
    for turn, probed in enumerate(expected):
        made = fork(service, whole, turn=turn)
        assert made["turn_count"] == turn
        assert made["forked_from"] == {"conversation_id": whole, "turn": turn}
        assert probe(service, made["id"], kind) == probed, turn
    assert record_of(service, whole) == before
    assert probe(service, fork(service, whole)["id"], kind) == expected[-1]
    steps = service.get(f"/conversations/{whole}/steps", limit=100)["items"]
    for turn in (6, 3, 0, 7, 4, 1, 5, 2):
        assert roll_back(service, whole, turn)["turn_count"] == last
        assert probe(service, whole, kind) == expected[turn], turn
        last += 2
    record = service.get(f"/conversations/{whole}/steps", limit=100, archived="true")["items"]
    assert [step["index"] for step in record] == [*range(len(record))]
    for was, now in zip(steps, record, strict=False):
        assert {**was, "rolled_back": 0, "hidden": 0} == {**now, "rolled_back": 0, "hidden": 0}


def test_a_fork_lives_on_by_itself(service: Service, outside: StoreServer, tmp_path: Path, raw: Raw) -> None:
    kind = "code-rememberer"
    past = history_of(kind, tmp_path)
    whole = new_conversation(service, kind)
    past.play(service, whole, 1, 2)
    first = fork(service, whole, metadata={"branch": 1})
    assert first["metadata"] == {"branch": 1}
    past.play(service, whole, 3, 4)
    second = fork(service, fork(service, first["id"])["id"], turn=1)
    assert (first["forked_from"]["turn"], second["forked_from"]["turn"]) == (2, 1)
    record, kept = record_of(service, whole), record_of(service, first["id"])
    expected = probe(service, fork(service, first["id"])["id"], kind)
    told = [[(f.id, f.event) for f in log_of(service, {"conversation_id": n, "turn": 2})] for n in (whole, first["id"])]
    assert told[0] == told[1]
    assert told[0][0] == (1, "turn.queued")
    past.play(service, fork(service, whole, turn=2)["id"], 3, 7)
    assert record_of(service, whole) == record
    assert service.client.delete(f"/conversations/{whole}").status_code == 204
    (image,) = [
        step["images"][0] for step in service.get(f"/conversations/{first['id']}/steps")["items"] if step.get("images")
    ][:1]
    assert service.client.get(image["url"]).content[:4] == b"\x89PNG"
    with Service(tmp_path / "cold", SETTINGS | outside.settings) as cold:
        assert record_of(cold, first["id"]) == kept
        assert cold.client.get(image["url"]).status_code == 200
        assert probe(cold, first["id"], kind) == expected
        assert probe(cold, second["id"], kind) == probe(cold, fork(cold, first["id"], turn=1)["id"], kind)
        roll_back(cold, first["id"], 1)
        assert probe(cold, first["id"], kind) == probe(cold, fork(cold, first["id"], turn=1)["id"], kind)
        for name in (first["id"], second["id"]):
            assert cold.client.delete(f"/conversations/{name}").status_code == 204
            assert conversation_keys(raw, {"conversation_id": name}) == {"conversation:C"}


def test_what_was_rolled_back_can_be_destroyed_and_is_gone_for_good(service: Service, raw: Raw) -> None:
    turn = service.play(ECHO, {"say": "one"})
    name = turn["conversation_id"]
    service.follow_up(turn, ECHO, {"say": "two"}, images=[png("green")])
    (image,) = (step["images"][0] for step in service.steps(turn) if step["type"] == "task" and step.get("images"))
    before = fork(service, name)
    roll_back(service, name, 1)
    assert service.client.get(image["url"]).status_code == 200
    nothing = {"policy": [{"name": "no_pruning"}]}
    assert service.post(f"/conversations/{name}/prune", destroy=True, **nothing).json()["destroyed"] == 3
    assert service.client.get(image["url"]).status_code == 404
    assert [len(blob) for blob in raw.lrange(f"{PARTITION}:steps:local/{name}:0", 3, -1)] == [16] * 3
    found = roll_back(service, name, 2)
    assert (step_counts(found), found["archived_steps"]) == ({"task": 1, "action": 2}, 0)
    again = fork(service, name, turn=1)["id"]
    assert service.follow_up(turn, PROMPT)["reply"] == service.play(PROMPT, conversation_id=again)["reply"]
    assert step_counts(service.get(f"/conversations/{before['id']}")) == {"task": 2, "action": 4}
    assert service.client.get(image["url"].replace(name, before["id"])).status_code == 200


def test_a_fork_of_forks_ends_before_its_record_of_origins_grows(service: Service) -> None:
    name = new_conversation(service, KINDS[0])
    for _ in range(50):
        name = fork(service, name)["id"]
    assert "export it and import it" in problem(service.post(f"/conversations/{name}/fork"), 409, "busy")["detail"]


ASKS: list[tuple[str, str, dict[str, Any]]] = table("going back asks")


@pytest.mark.parametrize("waits", [False, True])
def test_while_a_turn_runs_or_waits_all_of_it_is_refused(narrow: Service, tmp_path: Path, *, waits: bool) -> None:
    name = narrow.play(ECHO, {"say": "one"}, agent="other")["conversation_id"]
    ahead: dict[str, Any] = {} if waits else {"agent": "other", "conversation_id": name}
    with held_turn(narrow, tmp_path / "gate", **ahead):
        waiting = submit_turn(narrow, DONE, agent="other", conversation_id=name) if waits else None
        with nothing_stored(narrow):
            for method, what, body in ASKS:
                given = body if method == "POST" else None
                response = narrow.client.request(method, f"/conversations/{name}/{what}", json=given)
                assert problem(response, 409, "busy")["running_turn"] == 2
        if waiting:
            cancel(narrow, waiting)
    for method, what, body in ASKS:
        if what != "prune":
            wait_for_end(narrow, {"conversation_id": name, "turn": 2})
            response = narrow.client.request(
                method, f"/conversations/{name}/{what}", json=body if method == "POST" else None
            )
            assert response.status_code in {200, 201}, response.text


def test_what_is_asked_at_once_leaves_a_whole_conversation(service: Service) -> None:
    first = service.play(ECHO, {"say": "one"})
    name = first["conversation_id"]
    service.follow_up(first, ECHO, {"say": "two"})

    def ask_for(number: int) -> tuple[int, Any]:
        match number % 4:
            case 0:
                response = service.post(f"/conversations/{name}/rollback", turn=number // 4 % 3)
            case 1:
                response = service.post("/turn", conversation_id=name, message=json.dumps([ECHO, {"say": str(number)}]))
            case 2:
                policy = [{"name": "keep_last_n_steps", "n": 2}]
                response = service.post(f"/conversations/{name}/prune", policy=policy)
                service.get(f"/conversations/{name}/steps", archived="true")
            case _:
                for _ in range(500):  # until it meets a gap between turns
                    response = service.post(f"/conversations/{name}/fork")
                    if response.status_code == 201:
                        break
        return response.status_code, response.json()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask_for, range(40)))
    assert {status for status, _ in answers} <= {200, 201, 409, 503}
    assert {body["code"] for status, body in answers if status == 409} <= {"busy"}
    assert_consistent(service, name)
    forks = [body["id"] for status, body in answers if status == 201]
    for made in forks:
        assert_consistent(service, made)
    assert [status for status, _ in answers].count(200) > 2
    assert len(forks) > 5


def test_what_an_older_release_played_cannot_be_gone_back_to_and_is_not_guessed(service: Service, raw: Raw) -> None:
    turn = service.play(ECHO, {"say": "one"})
    name = turn["conversation_id"]
    for text in ("two", "three"):
        service.follow_up(turn, ECHO, {"say": text})
    for gone in (1, 2):
        raw.hdel(f"{PARTITION}:heads:local/{name}", gone)
        for what in ("rollback", "fork"):
            problem(service.post(f"/conversations/{name}/{what}", turn=gone), 409, "history_gone")
    raw.delete(f"{PARTITION}:heads:local/{name}")
    for what in ("rollback", "fork"):
        problem(service.post(f"/conversations/{name}/{what}", turn=3), 409, "history_gone")
    made = fork(service, name)
    assert step_counts(made) == {"task": 3, "action": 6}
    assert step_counts(roll_back(service, made["id"], 3)) == {"task": 3, "action": 6}
    service.follow_up(turn, DONE)
    assert service.post(f"/conversations/{name}/prune", destroy=True, policy="no_pruning").status_code == 200
    for what in ("rollback", "fork"):
        problem(service.post(f"/conversations/{name}/{what}", turn=3), 409, "history_gone")
    assert step_counts(roll_back(service, name, 4)) == {"task": 4, "action": 7}
    assert step_counts(roll_back(service, name, 0)) == {}
    assert step_counts(roll_back(service, name, 4)) == {"task": 4, "action": 7}


def test_the_head_of_another_turn_is_not_taken_for_that_of_this_one(service: Service, raw: Raw) -> None:
    turn = service.play(ECHO, {"say": "one"})
    name = turn["conversation_id"]
    service.follow_up(turn, ECHO, {"say": "two"})
    heads = f"{PARTITION}:heads:local/{name}"
    raw.hset(heads, 1, raw.hget(heads, 2))
    problem(service.post(f"/conversations/{name}/rollback", turn=1), 409, "history_gone")


def test_of_replaced_variables_the_newest_are_kept_up_to_a_bound(service: Service, raw: Raw) -> None:
    body = {"agent": "code"}
    body["conversation_id"] = name = service.play({"code": "x = 1"}, DONE, **body)["conversation_id"]
    service.play({"code": "x = 2"}, DONE, **body)
    conversation, old, order = (f"{PARTITION}:{kind}:local/{name}" for kind in ("conversation", "old", "oldest"))
    held_bytes = sum(len(blob) for blob in raw.hvals(old))
    assert int(raw.hget(conversation, "old_bytes")) == held_bytes > 0
    most = 64 * 1024 * 1024
    raw.hset(conversation, "old_bytes", most - 40)  # as if the store held that many bytes
    service.play({"code": "x = 3"}, DONE, **body)
    assert sorted(raw.hkeys(old)) == sorted(raw.lrange(order, 0, -1))
    kept = sum(len(blob) for blob in raw.hvals(old))
    assert int(raw.hget(conversation, "old_bytes")) - (most - 40 - held_bytes) == kept
    problem(service.post(f"/conversations/{name}/rollback", turn=1), 409, "history_gone")
    roll_back(service, name, 2)
    assert variable_x(service, name) == 2


def test_a_turn_that_is_not_there_is_not_found(service: Service) -> None:
    where = f"/conversations/{service.play(DONE)['conversation_id']}"
    for what in ("fork", "rollback"):
        problem(service.post(f"{where}/{what}", turn=2), 404, "turn_not_found")
        for turn in (-1, 1.5, "1", True, 2**40):
            problem(service.post(f"{where}/{what}", turn=turn), 422, "invalid_request")
    for body in ({"turn": None}, {}):
        problem(service.post(f"{where}/rollback", **body), 422, "invalid_request")
