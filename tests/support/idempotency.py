"""Turns submitted with an idempotency key."""

import json
from typing import Any

import httpx2

from tests.support.service import Service
from tests.support.streaming import Event, place


def post_with_key(
    service: Service, key: str, *script: Event, path: str = "/turn", prefer: str = "", **body: Any
) -> Any:
    headers = {"Idempotency-Key": key} | ({"Prefer": prefer} if prefer else {})
    asked = {"agent": "scripted", "message": json.dumps(script)} | body
    return service.client.post(path, json=asked, headers=headers)


def turn_of(response: httpx2.Response, status: int = 200) -> Event:
    assert response.status_code == status, response.text
    turn: Event = response.json()
    assert response.headers["location"] == place(turn)
    return turn
