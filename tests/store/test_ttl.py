"""A time to live: an unused conversation that has one is removed completely. By default none has one."""

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.histories import SETTINGS, fork, new_conversation, roll_back, variable_x
from tests.support.problems import problem
from tests.support.service import Service, json_of, shared_service, wait_until
from tests.support.store_server import Raw, raw_store
from tests.support.transfer import export, import_document
from tests.support.turns import DONE, ECHO, held_turn, png, submit_next, wait_for_end

BRIEF_S, LONG_S = 1.0, 3600.0
FAST = SETTINGS | {"LEASE_S": "1", "LOG_TTL_S": "1", "ID_REUSE_S": "1"}
# A service that sweeps four times a second, on four partitions.
service = shared_service(FAST | {"PARTITIONS": "4"}, on_outside=True)
raw = raw_store(decode_responses=True)


def made(service: Service, ttl_s: float | None = BRIEF_S, **body: Any) -> str:
    found = json_of(service.post("/conversations", **({"agent": "scripted", "ttl_s": ttl_s} | body)), 201)
    assert found["ttl_s"] == ttl_s
    return str(found["id"])


def patched(service: Service, name: str, ttl_s: float | None) -> dict[str, Any]:
    return json_of(service.client.patch(f"/conversations/{name}", json={"ttl_s": ttl_s}))


def left_s(service: Service, name: str) -> float | None:
    at = service.get(f"/conversations/{name}")["expires_at"]
    return at and (datetime.fromisoformat(at) - datetime.now(UTC)).total_seconds()


def gone(service: Service, name: str) -> bool:
    return service.client.get(f"/conversations/{name}").status_code == 404


def kept(raw: Raw, name: str) -> set[str]:
    """Return everything of a conversation in the store, under any name, except its tombstone."""
    keys = {key for key in raw.keys("*") if name in key}
    with suppress(ValueError):
        (tombstone,) = (key for key in keys if ":conversation:" in key and not raw.hexists(key, "agent"))
        assert raw.ttl(tombstone) != -1
        keys.remove(tombstone)
    for key in set(raw.keys("*")) - keys:
        kind = raw.type(key)
        if kind == "zset" and any(name in member for member in raw.zrange(key, 0, -1)):
            keys.add(key)
    return keys


def test_by_default_there_is_none(service: Service, raw: Raw) -> None:
    turn = service.play(DONE)
    empty = new_conversation(service, "scripted")
    for name in (turn["conversation_id"], empty, fork(service, empty)["id"]):
        found = service.get(f"/conversations/{name}")
        assert (found["ttl_s"], found["expires_at"]) == (None, None)
        assert not [key for key in kept(raw, name) if key.endswith(":expiring")]


def test_one_that_is_not_used_goes_with_all_that_it_had(service: Service, raw: Raw) -> None:
    name = made(service, LONG_S, agent="code-rememberer")
    body = {"agent": "code-rememberer", "conversation_id": name}
    service.play({"code": "x = 1\nprint(note_write('a'))"}, DONE, images=[png("red")], **body)
    service.play({"code": "x = 2"}, DONE, **body)
    roll_back(service, name, 1)
    other = fork(service, name)
    assert other["ttl_s"] == LONG_S
    records = "conversation turns steps images variables heads old oldest expiring owner log".split()
    assert {key.split(":")[1] for key in kept(raw, name)} >= {*records}
    patched(service, name, BRIEF_S)
    wait_until(lambda: gone(service, name))
    problem(service.post("/turn", message=json.dumps([DONE]), conversation_id=name), 404, "conversation_not_found")
    for path in ("steps", "turns", "turns/1", "export", "prompt"):
        assert service.client.get(f"/conversations/{name}/{path}").status_code == 404
    assert name not in [each["id"] for each in service.get("/conversations", limit=100)["items"]]
    wait_until(lambda: not kept(raw, name))  # the logs of its turns last for a second
    assert not service.client.post("/conversations", json={"id": name}).json().get("turn_count")
    assert variable_x(service, import_document(service, export(service, other["id"]))["id"], "code-rememberer") == 1


def test_use_renews_it(service: Service) -> None:
    name = made(service, LONG_S)
    uses: dict[str, Callable[[], object]] = {
        "a turn": lambda: service.play(DONE, conversation_id=name),
        "a rollback": lambda: roll_back(service, name, 0),
        "a prune": lambda: service.post(f"/conversations/{name}/prune", policy="no_pruning", destroy=True),
        "a change": lambda: service.client.patch(f"/conversations/{name}", json={"metadata": {"a": 1}}),
    }
    for what, use in uses.items():
        before = service.get(f"/conversations/{name}")["expires_at"]
        use()
        assert service.get(f"/conversations/{name}")["expires_at"] > before, what
        assert LONG_S - 60 < (left_s(service, name) or 0) <= LONG_S
    before = service.get(f"/conversations/{name}")["expires_at"]
    for path in ("", "/steps", "/turns", "/prompt", "/export"):
        service.get(f"/conversations/{name}{path}")
    assert service.get(f"/conversations/{name}")["expires_at"] == before


def test_the_end_of_a_turn_renews_it_too(service: Service, tmp_path: Path) -> None:
    name = made(service, LONG_S)
    with held_turn(service, tmp_path / "gate", conversation_id=name) as turn:
        before = service.get(f"/conversations/{name}")["expires_at"]
    wait_for_end(service, turn)
    assert service.get(f"/conversations/{name}")["expires_at"] > before


def test_it_can_be_given_changed_and_taken_away(service: Service, raw: Raw) -> None:
    name = made(service, None)
    assert patched(service, name, LONG_S)["ttl_s"] == LONG_S
    assert LONG_S - 60 < (left_s(service, name) or 0) <= LONG_S
    assert patched(service, name, 2 * LONG_S)["ttl_s"] == 2 * LONG_S
    assert service.client.patch(f"/conversations/{name}", json={"metadata": {"a": 1}}).json()["ttl_s"] == 2 * LONG_S
    found = patched(service, name, None)
    assert (found["ttl_s"], found["expires_at"]) == (None, None)
    assert not [key for key in kept(raw, name) if key.endswith(":expiring")]
    for wrong in (0, -1, "1", True, 1e300, float(2**53)):
        problem(service.client.patch(f"/conversations/{name}", json={"ttl_s": wrong}), 422, "invalid_request")
        problem(service.post("/conversations", agent="scripted", ttl_s=wrong), 422, "invalid_request")


def test_a_turn_that_runs_or_waits_keeps_it(service: Service, tmp_path: Path) -> None:
    name = made(service)
    with held_turn(service, tmp_path / "gate", conversation_id=name) as turn:
        waiting = submit_next(service, turn, ECHO, DONE)
        for _ in range(2):
            wait_until(partial(gone, service, made(service)))
        assert not gone(service, name)
    wait_for_end(service, turn)
    assert wait_for_end(service, waiting)["status"] == "finished"
    wait_until(lambda: gone(service, name))
