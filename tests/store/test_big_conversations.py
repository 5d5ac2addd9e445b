"""Big conversations: an import is bounded, and no single command to the store does all of the work."""

import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.histories import memory_of
from tests.support.problems import problem
from tests.support.service import PLAIN, Service, wait_until
from tests.support.store_server import PARTITION, Raw, StoreServer
from tests.support.turns import DONE

MOST_TURNS = 10_000
STAGED_S = 600
MOST_ARGUMENTS = 1_020  # 1,000 values of a piece
CUT = re.compile(rb"\.\.\. \((\d+) more arguments\)")


@pytest.fixture
def watched(server: StoreServer, tmp_path: Path) -> Iterator[tuple[Service, Raw]]:
    """Yield a service, and a client of its store, which notes the last commands."""
    with Service(tmp_path / "service", PLAIN | server.settings) as service, server.client() as raw:
        raw.config_set("slowlog-max-len", 100_000)
        raw.config_set("slowlog-log-slower-than", 0)
        yield service, raw


def longest_call(raw: Raw) -> int:
    """Return the largest number of arguments of a command since the last call."""
    commands = raw.execute_command("SLOWLOG", "GET", "-1")
    raw.slowlog_reset()
    cuts = [CUT.fullmatch(command[3][-1]) for command in commands]
    return max(len(command[3]) + (int(cut[1]) if cut else 0) for command, cut in zip(commands, cuts, strict=True))


def test_the_store_works_on_big_conversations_in_pieces(watched: tuple[Service, Raw]) -> None:
    service, raw = watched
    raw.config_resetstat()
    raw.slowlog_reset()
    made = service.post("/imports", **memory_of(MOST_TURNS))
    assert made.status_code == 201, made.text
    at = f"/conversations/{made.json()['id']}"
    for turn in (0, 7_777, None):
        fork = service.post(f"{at}/fork", **({} if turn is None else {"turn": turn})).json()
        last = MOST_TURNS if turn is None else turn
        assert fork["turn_count"] == last
        assert service.play(DONE, conversation_id=fork["id"])["turn"] == last + 1
        for number in {1, 1_001, last} if last else ():
            assert service.get(f"/conversations/{fork['id']}/turns/{number}")["message"] == f"task {number}"
        steps = service.get(f"/conversations/{fork['id']}/steps", order="desc", limit=3)["items"]
        assert [step["type"] for step in steps] == ["action", "task", "task"][: len(steps)]
        assert service.post(f"/conversations/{fork['id']}/rollback", turn=last // 2).status_code == 200
        assert service.client.delete(f"/conversations/{fork['id']}").status_code == 204
    assert service.client.delete(at).status_code == 204
    assert {"cmdstat_copy", "cmdstat_del", "cmdstat_ltrim"} & raw.info("commandstats").keys() == set()
    assert longest_call(raw) <= MOST_ARGUMENTS
    assert list(raw.scan_iter("*:staged:*")) == []


PRUNE = {"policy": [{"name": "token_budget", "max_tokens": 1}], "destroy": True}


def with_steps(count: int) -> dict[str, Any]:
    """Return a document with one turn of many steps, and as many variables."""
    steps = [{"type": "task", "turn": 1, "task": f"task {number}"} for number in range(count)]
    return memory_of(1) | {"steps": steps, "variables": {"": {"reset": [f"tool{number}" for number in range(count)]}}}


def test_many_steps_and_variables_are_forked_rolled_back_and_destroyed_in_pieces(watched: tuple[Service, Raw]) -> None:
    service, raw = watched
    document = with_steps(5_000)
    made = service.post("/imports", **document).json()["id"]
    raw.slowlog_reset()
    fork = service.post(f"/conversations/{made}/fork").json()["id"]
    for turn in (1, 0, 1):
        assert service.post(f"/conversations/{fork}/rollback", turn=turn).status_code == 200
        variables = service.get(f"/conversations/{fork}/export")["variables"]
        assert variables.get("", {}).get("reset") == (sorted(document["variables"][""]["reset"]) if turn else None)
    steps = f"{PARTITION}:steps:local/{made}:0"
    before = raw.lrange(steps, 0, -1)
    raw.config_resetstat()
    gone = service.post(f"/conversations/{made}/prune", **PRUNE).json()["destroyed"]
    assert longest_call(raw) <= MOST_ARGUMENTS
    after = raw.lrange(steps, 0, -1)
    assert 4_500 < gone < len(before)
    assert "cmdstat_lset" not in raw.info("commandstats"), "one by one takes five times as long"
    assert after == [*(blob[-16:] for blob in before[:gone]), *before[gone:]]
    assert service.client.get(f"/conversations/{made}/export").status_code == 200
    assert service.play(DONE, conversation_id=made)["status"] == "finished"
    assert list(raw.scan_iter("*:staged:*")) == []


def test_a_turn_that_changes_many_variables_replaces_them_at_once(watched: tuple[Service, Raw]) -> None:
    service, raw = watched
    document = with_steps(5_000)
    made = service.post("/imports", **document).json()["id"]
    raw.config_resetstat()
    assert service.play(DONE, conversation_id=made)["status"] == "finished"  # which forgets the variables
    calls = raw.info("commandstats")
    assert sum(calls.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("hset", "hsetnx", "hdel")) < 500
    assert service.get(f"/conversations/{made}/export")["variables"] == {}
    assert service.post(f"/conversations/{made}/rollback", turn=1).status_code == 200
    kept = service.get(f"/conversations/{made}/export")["variables"][""]["reset"]
    assert kept == sorted(document["variables"][""]["reset"])
    assert list(raw.scan_iter("*:staged:*")) == []


@pytest.mark.parametrize(("action", "body"), [("prune", PRUNE), ("rollback", {"turn": 1})])
def test_a_killed_change_is_undone(server: StoreServer, tmp_path: Path, action: str, body: dict[str, Any]) -> None:
    with Service(tmp_path / "service", PLAIN | server.settings) as service, server.client() as raw:
        made = service.post("/imports", **with_steps(20_000)).json()["id"]
        service.play(DONE, conversation_id=made)  # which forgets the variables
        at, before = f"/conversations/{made}/{action}", service.get(f"/conversations/{made}/export")
        client = threading.Thread(target=lambda: suppressed(service.client, at, body))
        client.start()
        wait_until(lambda: next(raw.scan_iter("*:staged:*"), None))
        raw.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        service.kill()
        client.join()
        raw.execute_command("CLIENT", "UNPAUSE")
        service.start()
        assert service.get(f"/conversations/{made}/export") == before
        assert service.client.post(at, json=body).status_code == 200
        assert service.get(f"/conversations/{made}/export") != before


def test_an_import_that_was_killed_leaves_nothing_visible(server: StoreServer, tmp_path: Path) -> None:
    document, path = memory_of(MOST_TURNS), "/imports?id=mine"
    with Service(tmp_path / "service", PLAIN | server.settings) as service, server.client() as raw:
        client = threading.Thread(target=lambda: suppressed(service.client, path, document))
        client.start()
        wait_until(lambda: next(raw.scan_iter("*:staged:*"), None))
        service.kill()
        client.join()
        staged = list(raw.scan_iter("*:staged:*"))
        assert staged
        assert all(0 < raw.ttl(name) <= STAGED_S for name in staged)
        assert {name for name in raw.scan_iter() if b"mine" in name} == set()
        service.start()
        problem(service.client.get("/conversations/mine"), 404, "conversation_not_found")
        made = service.client.post(path, json=document)
        assert (made.status_code, made.json()["turn_count"]) == (201, MOST_TURNS), made.text
        assert all(raw.ttl(name) == -1 for name in raw.scan_iter("*:local/mine*"))
        assert service.play(DONE, conversation_id="mine")["turn"] == MOST_TURNS + 1


@pytest.mark.parametrize("change", ["imports", "conversations/mine/fork"])
def test_a_store_that_is_full_midway_keeps_nothing_of_an_import_or_a_fork(
    server: StoreServer, tmp_path: Path, change: str
) -> None:
    document = memory_of(MOST_TURNS)
    with Service(tmp_path / "service", PLAIN | server.settings) as service, server.client() as raw:
        empty = raw.info("memory")["used_memory"]
        assert service.post("/imports?id=mine", **document).status_code == 201
        body, before = document if change == "imports" else {}, all_of_conversations(raw)
        used = raw.info("memory")["used_memory"]
        raw.config_resetstat()
        raw.config_set("maxmemory", used + (used - empty) // 3)
        problem(service.post(f"/{change}", **body), 503, "store_full")
        assert raw.info("commandstats")["cmdstat_rpush"]["calls"] > 1, "some of it was staged"
        assert all_of_conversations(raw) == before
        raw.config_set("maxmemory", 0)
        made = service.post(f"/{change}", **body)
        assert (made.status_code, made.json()["turn_count"]) == (201, MOST_TURNS), made.text


def all_of_conversations(raw: Raw) -> dict[bytes, bytes]:
    """Return the values of all keys that are staged, or of a conversation or an owner."""
    return {name: raw.dump(name) for name in raw.scan_iter() if b":staged:" in name or b"local" in name}


def suppressed(client: httpx2.Client, path: str, document: dict[str, Any]) -> None:
    with suppress(httpx2.TransportError):
        client.post(path, json=document)
