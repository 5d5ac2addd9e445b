"""Exporting and importing conversations through HTTP."""

import json
from typing import Any

import httpx2

from tests.support.service import Service


def export(service: Service, name: str) -> dict[str, Any]:
    response = service.client.get(f"/conversations/{name}/export")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    found: dict[str, Any] = response.json()
    return found


def post_import(service: Service, document: Any, **query: str) -> httpx2.Response:
    body = json.dumps(document)  # half a character as an escape
    return service.client.post("/imports", content=body, params=query, headers={"Content-Type": "application/json"})


def import_document(service: Service, document: Any, **query: str) -> dict[str, Any]:
    response = post_import(service, document, **query)
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    assert response.headers["location"] == f"/conversations/{made['id']}"
    return made
