"""Exporting and importing conversations through HTTP."""

import json
from typing import Any

import httpx2

from tests.support.service import Service, json_of


def export(service: Service, name: str) -> dict[str, Any]:
    response = service.client.get(f"/conversations/{name}/export")
    assert response.headers["content-type"] == "application/json"
    return json_of(response)


def post_import(service: Service, document: Any, **query: str) -> httpx2.Response:
    body = json.dumps(document)  # half a character as an escape
    return service.client.post("/imports", content=body, params=query, headers={"Content-Type": "application/json"})


def import_document(service: Service, document: Any, **query: str) -> dict[str, Any]:
    response = post_import(service, document, **query)
    made = json_of(response, 201)
    assert response.headers["location"] == f"/conversations/{made['id']}"
    return made
