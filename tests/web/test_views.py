"""Reads of a conversation: prompts of past turns, rebuilt from the steps on record, variables, and its status."""

import json
import os
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

from smolsessions import Client
from tests.support.code_turns import code_script
from tests.support.histories import memory_of
from tests.support.openapi import assert_described
from tests.support.service import PLAIN, Gate, Service
from tests.support.streaming import Event
from tests.support.turns import (
    DONE,
    SHOWN,
    encoded,
    error_code,
    held_turn,
    pages,
    submit_next,
    submit_turn,
    wait_for_end,
)

ECHO: Event = {"call": [["echo", {"text": "first"}]]}


def prompt(service: Service, of: Event, **query: Any) -> list[list[str]]:
    found = service.get(f"/conversations/{of['conversation_id']}/prompt", **query)
    assert found["rebuilt"] is ("turn" in query)
    assert all(message["tokens"] > 0 for message in found["messages"])
    return [[each["role"], _text(each["content"])] for each in found["messages"] if each["role"] != "system"]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def shown(turn: Event) -> list[list[str]]:
    found: list[list[str]] = json.loads(turn["reply"])
    return found


def test_a_rebuilt_prompt_is_the_one_that_the_model_saw(service: Service) -> None:
    first = service.play(ECHO, SHOWN, agent="scripted")
    second = service.follow_up(first, SHOWN)
    third = service.follow_up(first, SHOWN, reset=True)
    service.follow_up(first, DONE)
    assert prompt(service, first, turn=1, step=2) == shown(first)
    assert prompt(service, first, turn=2) == shown(second)
    assert prompt(service, first, turn=3) == shown(third)
    fork = service.post(f"/conversations/{first['conversation_id']}/fork", turn=3).json()
    assert prompt(service, {"conversation_id": fork["id"]}, turn=2) == shown(second)
    assert len(prompt(service, first, turn=1)) == 1
    assert len(prompt(service, first)) > len(shown(third))


def test_what_was_pruned_or_rolled_back_later_is_in_a_past_prompt(service: Service) -> None:
    first = service.play(ECHO, DONE, agent="scripted")
    second = service.follow_up(first, SHOWN)
    here = f"/conversations/{first['conversation_id']}"
    assert service.post(f"{here}/prune", policy={"name": "keep_last_n_steps", "n": 1}).json()["archived"]
    assert prompt(service, first, turn=2) == shown(second)
    third = service.follow_up(first, SHOWN)
    assert service.post(f"{here}/rollback", turn=1).status_code == 200
    assert prompt(service, first, turn=2) == shown(second)
    assert prompt(service, first, turn=3) == shown(third)


def test_only_a_step_of_a_turn_that_is_over_has_a_past_prompt(service: Service, gate: Gate) -> None:
    turn = service.play(ECHO, DONE, agent="scripted")
    here = f"/conversations/{turn['conversation_id']}/prompt"
    for query, status, code in (
        ({"turn": 2}, 404, "turn_not_found"),
        ({"turn": 1, "step": 4}, 422, "invalid_request"),
        ({"turn": 0}, 422, "invalid_request"),
    ):
        response = service.client.get(here, params=query)
        assert (response.status_code, error_code(response)) == (status, code)
    with held_turn(service, gate.path, conversation_id=turn["conversation_id"]):
        running = service.client.get(here, params={"turn": 2})
        assert (running.status_code, error_code(running)) == (409, "busy")
        assert len(prompt(service, turn, turn=1)) == 1


def test_variables_are_listed_with_previews_sizes_and_reasons(service: Service) -> None:
    code = "x = [1, 2]\nlong = 'a' * 2000\nf = lambda: 1\nfinal_answer('kept')"
    said = service.play(*code_script(code), agent="coder", additional_args={"city": "Bonn"})
    assert said["reply"] == "kept"
    items = service.get(f"/conversations/{said['conversation_id']}/variables")["items"]
    found = {(item["kind"], item["name"]): item for item in items}
    own = {"agent": "", "kind": "variable", "name": "x", "preview": "[1,2]", "size_bytes": 5, "reason": None}
    assert found["variable", "x"] == own
    assert len(found["variable", "long"]["preview"]) == 500
    assert found["variable", "long"]["size_bytes"] == 2002
    assert found["variable", "f"]["preview"] == f"Kept, but not as JSON: it {found['variable', 'f']['reason']}."
    assert "function" in found["variable", "f"]["reason"]
    assert any(item["name"] == "city" and item["preview"] == '"Bonn"' for item in items)


def test_a_conversation_is_queued_while_its_turn_waits_for_a_thread(tmp_path: Path) -> None:
    with Service(tmp_path, PLAIN | {"THREADS": "1"}) as service, Client(service.url) as client:
        idle = service.post("/conversations").json()
        with held_turn(service, tmp_path / "gate") as running:
            behind = submit_next(service, running, DONE)
            waiting = submit_turn(service, DONE)
            listed = {s: [e.id for e in client.list_conversations(status=s)] for s in ("idle", "queued", "running")}
            assert listed == {
                "idle": [idle["id"]],
                "queued": [waiting["conversation_id"]],
                "running": [running["conversation_id"]],
            }
            queued = service.get(f"/conversations/{waiting['conversation_id']}")
            assert (queued["status"], queued["running_turn"], queued["queued_turns"]) == ("queued", None, 1)
            assert_described("Conversation", queued)
        for turn in (behind, waiting):
            assert wait_for_end(service, turn)["status"] == "finished"
        assert {each.status for each in client.list_conversations()} == {"idle"}
        assert list(client.list_conversations(status="queued")) == []


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_of_large_steps_or_images_are_bounded_and_complete(service: Service, order: str) -> None:
    steps = [{"type": "task", "turn": 1, "task": os.urandom(500_000).hex()} for _ in range(10)]
    texts = service.post("/imports", **memory_of(1) | {"steps": steps}).json()["id"]
    large = [encoded(PIL.Image.frombytes("RGB", (1100, 1100), os.urandom(1100 * 1100 * 3))) for _ in range(10)]
    images = service.play(DONE, images=large[:1])["conversation_id"]
    for image in large[1:]:
        service.play(DONE, images=[image], conversation_id=images)
    for conversation, count, most in ((texts, 10, 6), (images, 20, 18)):
        found = pages(service, f"/conversations/{conversation}/steps", order=order, limit=100)
        indexes = [step["index"] for page in found for step in page]
        assert indexes == sorted(range(count), reverse=order == "desc")
        assert all(0 < len(page) <= most for page in found)
