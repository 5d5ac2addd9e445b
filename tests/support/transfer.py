"""Exporting and importing conversations through HTTP."""

import json
from contextlib import suppress
from typing import Any

import httpx2
import psutil

from smolsessions.agents.transfer import document_reader
from smolsessions.core.documents import SMALL_BYTES
from tests.support.service import Service, json_of, wait_until


def export(service: Service, name: str) -> dict[str, Any]:
    response = service.client.get(f"/conversations/{name}/export")
    assert response.headers["content-type"] == "application/json"
    return json_of(response)


def post_import(service: Service, document: Any, **query: str) -> httpx2.Response:
    body = json.dumps(document)  # half a character as an escape
    return service.client.post("/imports", content=body, params=query, headers={"Content-Type": "application/json"})


def post_large_import(service: Service, document: Any) -> httpx2.Response:
    """Import a document with so many blanks behind it that a process of its own reads it."""
    body = json.dumps(document) + " " * SMALL_BYTES
    return service.client.post("/imports", content=body, headers={"Content-Type": "application/json"})


def reader_of(service: Service) -> psutil.Process:
    """Wait for the process that reads a large document."""
    found: list[psutil.Process] = []

    def is_there() -> bool:
        for process in psutil.Process(service.process.pid).children():
            with suppress(psutil.Error):
                found.extend([process] if document_reader.__name__ in process.cmdline() else [])
        return bool(found)

    wait_until(is_there)
    return found[0]


def import_document(service: Service, document: Any, **query: str) -> dict[str, Any]:
    response = post_import(service, document, **query)
    made = json_of(response, 201)
    assert response.headers["location"] == f"/conversations/{made['id']}"
    return made
