"""HTTP over a plain socket."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPResponse

from tests.support.service import PATIENCE_S, Service


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
