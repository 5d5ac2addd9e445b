"""GET …/turns/{n}/effects: the journal of a running or waiting turn, without results."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.support.killed_turns import WITHOUT_CODE
from tests.support.paging import pages
from tests.support.service import Service
from tests.support.store_server import PARTITION
from tests.support.streaming import Event, place
from tests.support.turns import DONE, error_code, submit_turn, wait_for_end
from tests.support.waiting import Gate

SECRET = "not-for-any-inspector"
FIRST = {"call": [["echo", {"text": SECRET}], ["fail", {"reason": SECRET}]]}


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.open()


def effects(service: Service, turn: Event, **query: Any) -> list[Event]:
    found: list[Event] = service.get(place(turn, "/effects"), **query)["items"]
    return found


def brief(found: list[Event]) -> list[tuple[Any, ...]]:
    return [(each["kind"], each["call_id"], each["name"], each["state"], each["ok"]) for each in found]


def begun(service: Service, gate: Gate, *script: Event) -> Event:
    turn = submit_turn(service, *script, gate.script, DONE)
    gate.reached()
    return turn


def test_a_running_turn_lists_its_effects_without_their_results(service: Service, gate: Gate) -> None:
    turn = begun(service, gate, FIRST)
    response = service.client.get(place(turn, "/effects"))
    assert SECRET not in response.text
    found = response.json()
    assert found["next_cursor"] is None
    assert found["complete"] is True
    assert brief(found["items"]) == [
        ("model", "1.m1", None, "done", True),
        ("tool", "1.1", "echo", "done", True),
        ("tool", "1.2", "fail", "done", False),
        ("model", "2.m1", None, "done", True),
        ("tool", "2.1", "wait_for", "begun", None),
    ]
    echo, failed, waits = found["items"][1], found["items"][2], found["items"][4]
    assert (echo["step_id"], echo["attempt"], echo["repeated"], echo["error"]) == ("1", 1, False, None)
    assert echo["size_bytes"] > len(SECRET)
    assert echo["duration_ms"] >= 0
    assert failed["error"] == "ValueError"
    missing = service.client.get(place(turn | {"turn": 2}, "/effects"))
    assert (missing.status_code, error_code(missing)) == (404, "turn_not_found")
    assert (waits["attempt"], waits["size_bytes"], waits["duration_ms"], waits["step_id"]) == (1, None, None, "2")
    gate.open()
    wait_for_end(service, turn)
    assert service.get(place(turn, "/effects")) == {"items": [], "next_cursor": None, "complete": True}


def test_pages_continue_in_both_orders_while_the_turn_goes_on(service: Service, gate: Gate) -> None:
    turn = begun(service, gate, FIRST)
    whole = effects(service, turn)
    for order, wanted in (("asc", whole), ("desc", whole[::-1])):
        found = pages(service, place(turn, "/effects"), limit=2, order=order)
        assert [item for page in found for item in page] == wanted
        assert max(map(len, found)) <= 2
    wrong = service.client.get(place(turn, "/effects"), params={"cursor": "no-cursor"})
    assert (wrong.status_code, error_code(wrong)) == (422, "invalid_request")


def test_large_results_make_pages_shorter(service: Service, gate: Gate) -> None:
    noise = {"call": [["make", {"what": "noise"}]]}
    turn = begun(service, gate, noise, noise)
    first = service.get(place(turn, "/effects"))
    assert first["next_cursor"]
    assert max(each["size_bytes"] or 0 for each in first["items"]) > 6_000_000
    rest = service.get(place(turn, "/effects"), cursor=first["next_cursor"])
    assert brief(first["items"] + rest["items"])[-1] == ("tool", "3.1", "wait_for", "begun", None)


def test_a_long_journal_is_read_in_part(service: Service, gate: Gate) -> None:
    turn = begun(service, gate)
    with Redis(unix_socket_path=str(service.folder / "data" / "store.sock")) as raw:
        journal = f"{PARTITION}:journal:local/{turn['conversation_id']}:1"
        raw.hset(journal, mapping={f"begun:tool:3.{number}:echo:d": b"" for number in range(9_990)})
        page = service.get(place(turn, "/effects"), order="desc", limit=100)
        assert (len(page["items"]), page["complete"]) == (100, True)
        raw.hset(journal, mapping={f"begun:tool:4.{number}:echo:d": b"" for number in range(30_000)})
        page = service.get(place(turn, "/effects"), order="desc", limit=100)
        assert (len(page["items"]), page["complete"]) == (100, False)


def test_a_call_that_is_made_again_after_a_kill_is_marked(tmp_path: Path, gate: Gate) -> None:
    settings = WITHOUT_CODE | {"AGENTS": "scripted=tests.support.agents:make_scripted", "LEASE_S": "0.5"}
    with Service(tmp_path, settings) as service:
        turn = begun(service, gate, FIRST)
        service.kill()
        gate.path.with_name(f"{gate.path.name}.started").unlink()
        service.start()
        gate.reached()
        found = effects(service, turn)
        assert [each["attempt"] for each in found] == [1, 1, 1, 1, 2]
        assert [each["repeated"] for each in found] == [False, False, False, False, True]
        assert service.get(place(turn))["attempts"] == 2
        gate.open()
        wait_for_end(service, turn)


def test_a_damaged_journal_is_reported_and_harms_no_other_turn(service: Service, gate: Gate) -> None:
    turn = begun(service, gate, FIRST)
    other = Gate(gate.path.with_name("other"))
    sound = begun(service, other)
    try:
        with Redis(unix_socket_path=str(service.folder / "data" / "store.sock")) as raw:
            journal = f"{PARTITION}:journal:local/{turn['conversation_id']}:1"
            kept = raw.hget(journal, "model:1.m1")
            assert isinstance(kept, bytes)
            for spoilt in (kept[:-1] + bytes([kept[-1] ^ 1]), b"\x01", None):
                if spoilt is None:
                    raw.hdel(journal, "model:1.m1")
                else:
                    raw.hset(journal, "model:1.m1", spoilt)
                response = service.client.get(place(turn, "/effects"))
                assert (response.status_code, error_code(response)) == (500, "seal_broken")
            raw.hset(journal, "model:1.m1", kept)
        assert len(effects(service, turn)) == 5
        assert len(effects(service, sound)) == 2
    finally:
        other.open()


def test_a_queued_turn_has_no_effects(service: Service, gate: Gate) -> None:
    turn = begun(service, gate)
    queued = submit_turn(service, DONE, conversation_id=turn["conversation_id"], on_busy="enqueue")
    assert effects(service, queued) == []
    gate.open()
    wait_for_end(service, queued)
