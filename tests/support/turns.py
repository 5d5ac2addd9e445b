"""Submitting, holding, cancelling and awaiting turns through HTTP, with the usual scripts."""

import base64
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import PIL.Image

from tests.support.service import Gate, Service, wait_until
from tests.support.streaming import Event, place

ECHO: Event = {"call": [["echo", {"text": "ü"}]]}
DONE: Event = {"say": "done"}
PROMPT: Event = {"prompt": True}  # answers with a digest of the prompt
SHOWN: Event = {"shown": True}  # answers with the prompt except the system message
ENDLESS: Event = {"endless": "on and on ", "pace_s": 0.002}


def submit_turn(service: Service, *script: dict[str, Any], agent: str = "scripted", **body: Any) -> dict[str, Any]:
    """Submit a turn without waiting. A short one may have ended with the answer."""
    response = service.client.post(
        "/turn", json={"agent": agent, "message": json.dumps(script)} | body, headers={"Prefer": "respond-async"}
    )
    assert response.status_code in {200, 202}, response.text
    turn: dict[str, Any] = response.json()
    return turn


def wait_for_end(service: Service, turn: dict[str, Any]) -> dict[str, Any]:
    where = f"/conversations/{turn['conversation_id']}/turns/{turn['turn']}"
    found: dict[str, Any] = {}

    def ended() -> bool:
        nonlocal found
        with suppress(httpx2.TransportError):
            response = service.client.get(where)
            found = response.json() if response.status_code == 200 else {}
        return found.get("status") in {"finished", "failed", "cancelled"}

    wait_until(ended)
    return found


def wait_until_back(service: Service) -> None:
    wait_until(lambda: service.client.get("/conversations").status_code == 200)


def error_code(response: httpx2.Response) -> str | None:
    body = response.json()
    found: str | None = body["error"]["code"] if body.get("error") else body.get("code")
    return found


@contextmanager
def held_turn(service: Service, gate: Path, *, agent: str = "scripted", **body: Any) -> Iterator[Event]:
    turn = submit_turn(service, Gate(gate).script, DONE, agent=agent, **body)
    Gate(gate).reached()
    try:
        yield turn
    finally:
        gate.touch()


def submit_next(service: Service, turn: Event, *script: Event, on_busy: str = "enqueue", **body: Any) -> Event:
    named = {"agent": turn["agent"]["name"], "conversation_id": turn["conversation_id"]}
    return submit_turn(service, *script, on_busy=on_busy, **named, **body)


def turn_counts(service: Service, turn: Event) -> tuple[int, int | None, int]:
    conversation = service.get(f"/conversations/{turn['conversation_id']}")
    return conversation["turn_count"], conversation["running_turn"], conversation["queued_turns"]


def delegate(agent: str, *script: Event) -> list[Any]:
    return [agent, {"task": json.dumps(script)}]


def cancel(service: Service, turn: Event, prefer: str | None = None) -> httpx2.Response:
    return service.client.post(place(turn, "/cancel"), headers={"Prefer": prefer} if prefer else {})


def pixel() -> str:
    return png("red", (1, 1))


def png(colour: str, size: tuple[int, int] = (6, 5)) -> str:
    return encoded(PIL.Image.new("RGB", size, colour))


def encoded(image: PIL.Image.Image, form: str = "PNG", **options: Any) -> str:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return base64.b64encode(buffer.getvalue()).decode()


def pages(service: Service, path: str, **query: Any) -> list[list[dict[str, Any]]]:
    found = []
    while True:
        page = service.get(path, **query)
        assert page.keys() >= {"items", "next_cursor"}
        found.append(page["items"])
        if page["next_cursor"] is None:
            return found
        query["cursor"] = page["next_cursor"]
