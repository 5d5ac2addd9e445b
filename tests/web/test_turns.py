"""POST /turn: its options, and the turn in its response."""

import base64
import io
import json
import threading
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from redis import Redis

from tests.support.problems import nothing_stored, problem
from tests.support.service import PLAIN, Gate, Service
from tests.support.stopwatch import Stopwatch
from tests.support.tiers import mostly_deep
from tests.support.turns import encoded, wait_for_end

END: dict[str, Any] = {"say": "end"}


def test_the_answer_is_the_turn_as_designed(service: Service) -> None:
    response = service.post("/turn", message="What is 12 * 7?", agent="demo")
    turn = response.json()
    assert response.status_code == 200
    assert "84" in turn["reply"]
    assert turn["tool_call_names"] == ["calculator"]
    call = turn["tool_calls"][0]
    assert (call["name"], call["arguments"], call["ok"]) == ("calculator", {"expression": "12 * 7"}, True)
    assert (turn["turn"], turn["status"], turn["outcome"], turn["attempts"]) == (1, "finished", "success", 1)
    fingerprint = turn["agent"].pop("fingerprint")
    model = {"provider": "RuleModel", "id": "rules"}
    named = {"name": "demo", "kind": "ToolCallingAgent", "smolagents": "1.26.0", "model": model, "version": "0.1.0"}
    assert turn["agent"] == named
    turn["agent"]["fingerprint"] = fingerprint
    assert turn["error"] is None
    assert response.headers["location"] == f"/conversations/{turn['conversation_id']}/turns/1"
    assert service.get(response.headers["location"]) == turn


def test_users_write_in_any_language(service: Service) -> None:
    for text in ("你好,世界", "مرحبا بالعالم", "здравствуйте", "नमस्ते", "👩‍👩‍👧‍👦 emoji \u202e rtl \x00 nul"):
        turn = service.play({"say": text})
        assert turn["reply"] == text
        assert service.get(f"/conversations/{turn['conversation_id']}/turns/1")["reply"] == text


@pytest.mark.parametrize("form", mostly_deep(["JPEG", "WEBP", "GIF"], fast={"WEBP"}))
def test_a_photo_is_stored_unchanged_and_reaches_the_model_pixel_by_pixel(tmp_path: Path, form: str) -> None:
    from tests.support import agents  # noqa: PLC0415 - smolagents, only here

    size = (3000, 2000) if form == "JPEG" else (300, 200)
    text = encoded(PIL.Image.merge("RGB", [PIL.Image.effect_noise(size, 60) for _ in "RGB"]), form)
    photo = base64.b64decode(text)
    scripts: list[list[Any]] = [[{"call": [["echo", {"text": "look"}]]}, {"say": "seen"}], [{"prompt": True}]]
    bare = agents.make_scripted()
    bare.run(json.dumps(scripts[0]), images=[PIL.Image.open(io.BytesIO(photo))])
    shown = bare.run(json.dumps(scripts[1]), reset=False)
    service = Service(tmp_path, PLAIN)
    with service:
        turn = service.play(*scripts[0], images=[text])
        assert turn["status"] == "finished"
        with Redis(unix_socket_path=str(service.folder / "data" / "store.sock")) as raw:
            stored = raw.hvals(f"{{p000}}:images:local/{turn['conversation_id']}")
        assert len(photo) * 0.9 < sum(map(len, stored)) < len(photo) * 1.1 + 1000
        step = service.steps(turn)[0]
        assert [(image["width"], image["height"]) for image in step["images"]] == [size]
        fetched = service.client.get(step["images"][0]["url"])
        assert (fetched.content, fetched.headers["content-type"]) == (photo, f"image/{form.lower()}")
        assert fetched.headers["content-security-policy"] == "default-src 'none'"
        assert fetched.headers["x-content-type-options"] == "nosniff"
        assert fetched.headers["cache-control"] == "private, max-age=31536000, immutable"
    with service:
        assert service.follow_up(turn, *scripts[1])["reply"] == shown


def test_a_client_need_not_wait(service: Service, gate: Gate) -> None:
    body = {"agent": "scripted", "message": json.dumps([gate.script, END])}
    response = service.client.post("/turn", json=body, headers={"Prefer": "respond-async"})
    turn = response.json()
    assert (response.status_code, turn["status"] in {"queued", "running"}) == (202, True)
    assert response.headers["preference-applied"] == "respond-async"
    gate.reached()
    with nothing_stored(service):
        for asked in ({}, {"on_busy": "reject"}):
            busy = service.post("/turn", message="x", conversation_id=turn["conversation_id"], **asked)
            found = problem(busy, 409, "busy")
            assert (found["running_turn"], found["waiting"], "on_busy" in found["detail"]) == (1, False, True)
    gate.open()
    assert wait_for_end(service, turn)["reply"] == "end"
    body = {"agent": "scripted", "message": json.dumps([{"call": [["compute", {"seconds": 0.1}]]}, END])}
    assert service.client.post("/turn", json=body, headers={"Prefer": "respond-async"}).status_code in {200, 202}


def test_a_wait_has_a_limit_and_the_answer_names_it_and_a_cause_is_in_the_log(tmp_path: Path, gate: Gate) -> None:
    body = {"agent": "scripted", "message": json.dumps([gate.script, END])}
    with Service(tmp_path / "service", PLAIN | {"WAIT_S": "1", "LOG_LEVEL": "debug"}) as service:
        response = service.client.post("/turn", json=body, headers={"Prefer": "wait=30"})
        assert (response.status_code, response.headers["preference-applied"]) == (202, "wait=1")
        gate.open()
        assert wait_for_end(service, response.json())["reply"] == "end"
        assert "kaputt" not in json.dumps(service.play({"raise": "the model is kaputt"})["error"])
        assert "RuntimeError: the model is kaputt" in service.log()


@pytest.mark.alone
def test_the_process_stays_alive_while_an_agent_computes(service: Service) -> None:
    turns: list[dict[str, Any]] = []
    player = threading.Thread(
        target=lambda: turns.append(service.play({"call": [["compute", {"seconds": 2}]]}, {"say": "x"}))
    )
    player.start()
    delays = []
    with Stopwatch() as watch:
        while player.is_alive():
            watch.restart()
            assert service.client.get("/livez").status_code == 200
            delays.append(watch.s)
    player.join()
    assert turns[0]["status"] == "finished"
    assert sorted(delays)[int(len(delays) * 0.99)] < 0.05
