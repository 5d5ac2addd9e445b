"""Checks that an error has the right form on the wire, also over a plain socket, and that it changed nothing."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPResponse
from typing import Any

import httpx2

from tests.support.data import table
from tests.support.service import PATIENCE_S, Service

OF_A_CONVERSATION: list[tuple[str, str, Any]] = table("problems of a conversation")
"""Operations on one conversation: method, path and body."""


def problem(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """Check that the response is a valid problem (RFC 9457), and return it."""
    assert response.status_code == status, response.text[:1000]
    assert response.headers["content-type"] == "application/problem+json"
    found = strict_json(response.text)
    assert isinstance(found, dict)
    assert (found["status"], found["code"]) == (status, code)
    assert (found["type"], found["title"]) == (f"/docs/errors/{code}", HTTPStatus(status).phrase)
    assert found["detail"].strip()
    assert not [word for word in ("Traceback", 'File "', ".py", "pydantic", "redis") if word in response.text]
    return found


def strict_json(text: str) -> Any:
    """Read JSON as a browser does. NaN and Infinity are refused."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON: {text[:1000]}")

    return json.loads(text, parse_constant=refuse)


@contextmanager
def nothing_stored(service: Service, **headers: str) -> Iterator[None]:
    """Compare all conversations (turn counts, metadata and times among them) before and after."""
    before = stored(service, **headers)
    yield
    assert stored(service, **headers) == before


def stored(service: Service, **headers: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    query = {"limit": "100"}
    while True:
        response = service.client.get("/conversations", params=query, headers=headers)
        assert response.status_code == 200, response.text
        items += response.json()["items"]
        if not response.json()["next_cursor"]:
            return items
        query["cursor"] = response.json()["next_cursor"]


def send(
    service: Service, method: str, path: str, body: bytes | str, kind: str | None = "application/json", **headers: str
) -> httpx2.Response:
    """Send a body as it is, on a connection of its own: after a refusal the service may close it."""
    content = body.encode() if isinstance(body, str) else body
    told = {"Connection": "close", **({"Content-Type": kind} if kind else {}), **headers}
    return service.client.request(method, path, content=content, headers=told)


@contextmanager
def connected(service: Service, *sent: bytes) -> Iterator[socket.socket]:
    url = service.client.base_url
    with socket.create_connection((url.host, url.port or 80), timeout=PATIENCE_S) as connection:
        for piece in sent:
            connection.sendall(piece)
        yield connection


def answer_on(connection: socket.socket) -> tuple[HTTPResponse, bytes]:
    with closing(HTTPResponse(connection)) as response:
        response.begin()
        return response, response.read()


def problem_on(connection: socket.socket, status: int, code: str) -> HTTPResponse:
    response, body = answer_on(connection)
    assert (response.status, response.headers["content-type"]) == (status, "application/problem+json"), body
    found = json.loads(body)
    assert found["code"] == code
    assert found["instance"] == response.headers["x-request-id"]
    assert response.headers["connection"] == "close"
    assert response.headers["date"]
    with suppress(ConnectionResetError):  # more was sent than was read
        assert connection.recv(1) == b""
    return response
