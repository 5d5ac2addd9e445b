"""Requests of several owners, each with an API key."""

import hashlib
from typing import Any

import httpx2

from tests.support.service import Service, json_of

ADA, BOB, SECOND = "ada-0123456789", "bob-0123456789", "ada-9876543210"


def owner_line(owner: str, key: str) -> str:
    return f"{owner} {hashlib.sha256(key.encode()).hexdigest()}\n"


def request_as(
    service: Service, key: str | None, method: str, path: str, body: Any = None, **headers: str
) -> httpx2.Response:
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return service.client.request(method, path, json=body, headers=headers)


def create_as(service: Service, key: str, **body: Any) -> dict[str, Any]:
    return json_of(request_as(service, key, "POST", "/conversations", body), 201)


def say_as(service: Service, key: str, text: str, conversation_id: str) -> dict[str, Any]:
    body = {"message": f'[{{"say": "{text}"}}]'}
    return json_of(request_as(service, key, "POST", f"/conversations/{conversation_id}/turns", body))
