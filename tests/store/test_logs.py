"""Logs of turns last as long as their conversation, and no longer: restarts, forks, prunes, deletes."""

import json
from itertools import groupby
from typing import Any

from tests.support.histories import fork
from tests.support.service import Service, shared_service
from tests.support.store_server import PARTITION, Raw, conversation_keys, raw_store
from tests.support.streaming import Event, log_of
from tests.support.turns import DONE, ECHO

HELPED = json.dumps([{"call": [["helper", {"task": json.dumps([ECHO, DONE])}]]}, DONE])
LED = {"call": [["lead", {"task": HELPED}]]}
LONG = {"call": [["echo", {"text": "x" * 20_000}]] * 20}
LAST = [{"name": "keep_last_n_steps", "n": 1}]
# A service with the default for logs, and long messages.
service = shared_service({"MAX_MESSAGE_CHARS": "1000000"}, on_outside=True)
raw = raw_store()


def events_of(service: Service, turn: dict[str, Any], number: int | None = None) -> list[dict[str, Any]]:
    """Return a turn's events without the ids of its conversation."""
    frames = log_of(service, turn | {"turn": number or turn["turn"]})
    return [{name: frame.data[name] for name in frame.data.keys() - {"conversation_id", "result"}} for frame in frames]


def expiring(raw: Raw, turn: dict[str, Any]) -> list[bytes]:
    return [name for name in raw.keys(f"*{turn['conversation_id']}*") if raw.ttl(name) != -1]


def kinds(events: list[Event]) -> list[str]:
    """Return the types of events, with consecutive deltas as one: time decides how many are joined."""
    return [kind for kind, _ in groupby(event["type"] for event in events)]


def test_the_inner_steps_of_managed_agents_last_over_restarts_and_in_forks(service: Service, raw: Raw) -> None:
    turn = service.play(LED, DONE, agent="family")
    turn = service.follow_up(turn, DONE)
    before = {number: events_of(service, turn, number) for number in (1, 2)}
    assert {event["step_id"].count("/") for event in before[1] if event["type"] == "step.finished"} == {0, 1, 2}
    assert expiring(raw, turn) == []
    assert raw.hlen(f"{PARTITION}:logs:local/{turn['conversation_id']}") == 2
    assert not [name for name in conversation_keys(raw, turn) if name.startswith("log:")]
    service.stop()
    service.start()
    assert {number: events_of(service, turn, number) for number in (1, 2)} == before
    forked = fork(service, turn["conversation_id"], turn=1)
    assert events_of(service, {"conversation_id": forked["id"], "turn": 1}) == before[1]
    assert raw.hkeys(f"{PARTITION}:logs:local/{forked['id']}") == [b"1"]
    again = service.play(DONE, conversation_id=forked["id"], agent="family")
    assert kinds(events_of(service, again)) == kinds(before[2])
    assert service.client.delete(f"/conversations/{turn['conversation_id']}").status_code == 204
    assert events_of(service, again, 1) == before[1]


def test_a_log_that_is_too_long_to_pack_lasts_too_and_goes_with_its_conversation(service: Service, raw: Raw) -> None:
    turn = service.follow_up(service.play(DONE), LONG, DONE)
    turn = service.follow_up(turn, LONG, DONE)
    before = events_of(service, turn, 2)
    assert conversation_keys(raw, turn) >= {"logs:C", "longlogs:C", "log:C:2", "log:C:3"}
    assert expiring(raw, turn) == []
    there = {"conversation_id": fork(service, turn["conversation_id"], turn=2)["id"], "turn": 2}
    assert conversation_keys(raw, there) >= {"logs:C", "longlogs:C", "log:C:2"}
    assert "log:C:3" not in conversation_keys(raw, there)
    for each in (turn, there):
        assert events_of(service, each, 2) == before
        assert service.client.delete(f"/conversations/{each['conversation_id']}").status_code == 204
        assert conversation_keys(raw, each) <= {"conversation:C"}


def test_a_destroying_prune_deletes_the_logs_of_turns_that_lost_a_step(service: Service, raw: Raw) -> None:
    turn = service.play(ECHO, DONE)
    turn = service.follow_up(turn, LONG, DONE)
    turn = service.follow_up(turn, DONE)
    kept = events_of(service, turn)
    forked = fork(service, turn["conversation_id"], turn=1)
    assert service.post(f"/conversations/{turn['conversation_id']}/prune", policy=LAST).json()["archived"] > 0
    assert len(events_of(service, turn, 1)) > 1  # the record keeps archived steps
    done = service.post(f"/conversations/{turn['conversation_id']}/prune", policy=LAST, destroy=True)
    assert done.json()["destroyed"] > 0
    for number, final in ((1, "turn.finished"), (2, "turn.finished")):
        assert [event["type"] for event in events_of(service, turn, number)] == [final]
    assert events_of(service, turn) == kept
    assert raw.hkeys(f"{PARTITION}:logs:local/{turn['conversation_id']}") == [b"3"]
    assert conversation_keys(raw, turn).isdisjoint({"log:C:2", "longlogs:C"})
    assert len(events_of(service, {"conversation_id": forked["id"], "turn": 1})) > 1  # the fork owns its copies


def test_a_log_of_another_turn_or_conversation_is_broken_for_that_turn_alone(service: Service, raw: Raw) -> None:
    turn, other = service.play(ECHO, DONE), service.play(ECHO, DONE)
    turn = service.follow_up(turn, DONE)
    name = f"{PARTITION}:logs:local/{turn['conversation_id']}"
    own, foreign = raw.hget(name, 2), raw.hget(f"{PARTITION}:logs:local/{other['conversation_id']}", 1)
    for wrong in (own, foreign, b"junk"):
        raw.hset(name, 1, wrong)
        response = service.client.get(f"/conversations/{turn['conversation_id']}/turns/1/events")
        assert (response.status_code, response.json()["code"]) == (500, "seal_broken")
    raw.hdel(name, "1")
    assert [event["type"] for event in events_of(service, turn, 1)] == ["turn.finished"]
    assert len(events_of(service, turn)) > 1
    assert len(events_of(service, other)) > 1
