"""Pruning: steps that a policy drops are archived (on record, but not in the prompt) or destroyed."""

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from tests.support.policies import LAST_TWO, Json, message_texts, path_of, play_turns, predicted, prune
from tests.support.problems import problem
from tests.support.service import Gate, Service
from tests.support.store_server import PARTITION, Raw
from tests.support.tiers import mostly_deep
from tests.support.turns import DONE, PROMPT, png, submit_turn, wait_for_end


@pytest.fixture
def raw(service: Service) -> Iterator[Raw]:
    with Redis.from_url(f"unix://{service.folder / 'data' / 'store.sock'}") as client:
        yield client


def record(service: Service, turn: Json, **query: Any) -> list[Json]:
    return list(service.get(path_of(turn, "/steps"), limit=100, **query)["items"])


def stored(raw: Raw, turn: Json) -> dict[bytes, Any]:
    return {name: raw.dump(name) for name in raw.keys(f"*{turn['conversation_id']}*")}


def blobs(raw: Raw, turn: Json) -> list[bytes]:
    return list(raw.lrange(f"{PARTITION}:steps:local/{turn['conversation_id']}:0", 0, -1))


# Dry runs


@pytest.mark.parametrize("destroy", [False, True])
def test_a_dry_run_reports_the_changes_and_makes_none(service: Service, raw: Raw, destroy: bool) -> None:
    turn = play_turns(service, 4)
    before, conversation = stored(raw, turn), service.get(path_of(turn))
    said = prune(service, turn, dry_run=True, destroy=destroy)
    in_query = service.client.post(path_of(turn, "/prune"), params={"dry_run": True}, json={"policy": LAST_TWO})
    problem(in_query, 422, "invalid_request")
    assert (said["dry_run"], said["conversation"]) == (True, None)
    assert (said["archived"], said["destroyed"]) == ((0, said["left_out"]) if destroy else (said["left_out"], 0))
    assert (said["left_out"], said["shortened"]) == (6, 0)
    assert (said["before"]["steps"], said["after"]["steps"]) == (12, 6)
    assert said["before"]["tokens"] > said["after"]["tokens"] > 0
    assert said["before"]["characters"] == sum(map(len, message_texts(service, turn)))
    assert said["before"]["tokens_are"] == "estimated"
    assert said["before"].keys() == {"steps", "characters", "tokens", "tokens_are"}
    assert stored(raw, turn) == before
    assert service.get(path_of(turn)) == conversation
    done = prune(service, turn)
    assert (done["before"], done["after"]) == (said["before"], said["after"])
    assert done["after"]["characters"] == sum(map(len, message_texts(service, turn)))


# Archive


def test_archived_steps_leave_the_prompt_and_stay_on_record(service: Service) -> None:
    turn = play_turns(service, 4)
    whole = record(service, turn)
    texts = message_texts(service, turn)
    done = prune(service, turn)
    assert (done["dry_run"], done["archived"], done["destroyed"]) == (False, 6, 0)
    assert done["conversation"] == service.get(path_of(turn))
    counts = done["conversation"]["step_counts"]
    assert (counts["task"], counts["action"], done["conversation"]["archived_steps"]) == (4, 2, 6)
    assert [step["index"] for step in record(service, turn)] == [0, 3, 6, 9, 10, 11]
    everything = record(service, turn, archived=True)
    assert [{**step, "archived": False} for step in everything] == whole
    assert {step["index"] for step in everything if step["archived"]} == {1, 2, 4, 5, 7, 8}
    assert [text for text in message_texts(service, turn) if text not in texts] == []
    for _ in range(2):
        expected = predicted(service, turn, PROMPT)
        turn = service.follow_up(turn, PROMPT)
        assert turn["reply"] == expected
    assert turn["left_out"] is None, "the conversation has no policy"


def test_a_prune_ignores_replaced_notes(service: Service) -> None:
    turn = service.play({"call": [["note_write", {"text": "pears"}]]}, DONE, agent="plain")
    turn = service.follow_up(turn, {"call": [["note_write", {"text": "plums", "replaces": 1}]]}, DONE)
    assert prune(service, turn, "no_pruning")["archived"] == 0
    prune(service, turn, {"name": "keep_last_n_steps", "n": 1})
    assert service.follow_up(turn, {"notes": True})["reply"] == "Note 2:\nplums"


# Destroy


def test_destroyed_steps_leave_the_store_with_their_unshared_images(service: Service, raw: Raw) -> None:
    turn = service.play(DONE, agent="plain", images=[png("red"), png("blue")])
    turn = service.follow_up(turn, DONE, images=[png("blue")])
    images = images_of(service, turn)
    assert len(images) == 2
    before = blobs(raw, turn)
    done = prune(service, turn, {"name": "token_budget", "max_tokens": 1}, destroy=True)
    assert (done["archived"], done["destroyed"]) == (0, 2)
    after = blobs(raw, turn)
    assert [len(blob) for blob in after[:2]] == [16, 16]
    assert after[2:] == before[2:]
    assert all(old.endswith(tag) for old, tag in zip(before[:2], after[:2], strict=True))
    kept = images_of(service, turn).keys()
    assert len(kept) == 1
    for name, url in images.items():
        assert service.client.get(url).status_code == (200 if name in kept else 404)
    assert set(raw.hkeys(f"{PARTITION}:images:local/{turn['conversation_id']}")) == {name.encode() for name in kept}
    assert record(service, turn, archived=True) == record(service, turn)
    found = service.get(path_of(turn))
    assert (found["step_counts"]["task"], found["step_counts"]["action"], found["archived_steps"]) == (1, 1, 0)
    expected = predicted(service, turn, PROMPT)
    assert service.follow_up(turn, PROMPT)["reply"] == expected


def images_of(service: Service, turn: Json) -> dict[str, str]:
    urls = [image["url"] for image in record(service, turn)[0]["images"]]
    return {url.rpartition("/")[2]: url for url in urls}


# While turns run


def test_a_prune_during_a_turn_is_busy_and_a_dry_run_is_not(service: Service, gate: Gate) -> None:
    turn = play_turns(service, 3)
    first = submit_turn(service, gate.script, DONE, agent="plain", conversation_id=turn["conversation_id"])
    gate.reached()
    for destroy in (False, True):
        answer = service.post(path_of(turn, "/prune"), policy=LAST_TWO, destroy=destroy)
        assert (answer.status_code, answer.json()["code"]) == (409, "busy")
        assert answer.json()["running_turn"] == first["turn"]
    assert prune(service, turn, dry_run=True)["left_out"] == 4
    assert len([text for text in message_texts(service, turn) if text.startswith("New task:")]) == 3
    gate.open()
    assert wait_for_end(service, first)["status"] == "finished"
    assert prune(service, turn)["archived"] == 6


# Seals


WRITES = ["archived swapped", "destroyed swapped", "destroyed put back"]


@pytest.mark.parametrize("what", mostly_deep(WRITES, fast={"archived swapped", "destroyed put back"}))
def test_entries_changed_in_the_store_break_the_seal(service: Service, raw: Raw, what: str) -> None:
    turn = play_turns(service, 4)
    key = f"{PARTITION}:steps:local/{turn['conversation_id']}:0"
    before = blobs(raw, turn)
    prune(service, turn, destroy=what.startswith("destroyed"))
    if what == "destroyed put back":
        raw.lset(key, 1, before[2])
    else:
        one, other = blobs(raw, turn)[1:3]
        raw.lset(key, 1, other)
        raw.lset(key, 2, one)
    answers = [service.client.get(path_of(turn, "/prompt")), service.post(path_of(turn, "/prune"), policy=LAST_TWO)]
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (500, "seal_broken"), answer.text


def test_an_older_head_cannot_restore_destroyed_steps(service: Service, raw: Raw) -> None:
    """A writer to the store can roll a conversation back as a whole, except to destroyed steps."""
    turn = play_turns(service, 3)
    key = f"{PARTITION}:conversation:local/{turn['conversation_id']}"
    head = raw.hget(key, "head")
    prune(service, turn, destroy=True)
    raw.hset(key, "head", head)
    answer = service.client.get(path_of(turn, "/prompt"))
    assert (answer.status_code, answer.json()["code"]) == (500, "seal_broken"), answer.text
