"""Clients of the service: one of calls, and one that reads events with the moments of their arrival."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.contenders import Server

TIMEOUT_S = 60
ENDS = ("turn.finished", "turn.failed", "turn.cancelled")
JSON = {"Content-Type": "application/json"}

Event = dict[str, Any]


class Caller:
    """One keep-alive connection."""

    def __init__(self, server: Server) -> None:
        self._connection = _connection(server)

    def close(self) -> None:
        self._connection.close()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a body as JSON, and return the decoded answer."""
        return json.loads(self.raw(method, path, None if body is None else json.dumps(body)))

    def raw(self, method: str, path: str, data: bytes | str | None = None) -> bytes:
        """Return the answer's bytes. Raises if the status is no success."""
        self._connection.request(method, path, data, JSON)
        answer = self._connection.getresponse()
        said = answer.read()
        if answer.status not in {200, 201, 202}:
            raise RuntimeError(f"{method} {path} was answered with {answer.status} {said!r}")
        return said


class Watcher:
    """Reader of a turn's events from the beginning. It raises if an event is missing or repeated."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        """Take a connection whose request has been sent."""
        self._connection = connection
        self._answer = connection.getresponse()
        if self._answer.status != 200:
            raise RuntimeError(f"a stream was answered with {self._answer.status} {self._answer.read()!r}")
        self._seq = 0
        self.path = ""
        """Of the turn. It is known from the first event on."""
        self.last: dict[str, Event] = {}
        """Last event of each type."""

    @classmethod
    def of_new(cls, server: Server, order: object) -> Watcher:
        """Begin a turn in a new conversation. The order is its message."""
        connection = _connection(server)
        connection.request(
            "POST", "/turn", json.dumps({"message": str(order)}), {**JSON, "Accept": "text/event-stream"}
        )
        return cls(connection)

    @classmethod
    def of(cls, server: Server, path: str) -> Watcher:
        connection = _connection(server)
        connection.request("GET", f"{path}/events")
        return cls(connection)

    def close(self) -> None:
        self._answer.close()
        self._connection.close()

    def wait_for(self, what: str, is_it: Callable[[Event], bool] = lambda _: True) -> tuple[int, Event]:
        """Wait for an event of this type that `is_it` accepts. Return its arrival (monotonic ns) and the event."""
        for at_ns, event in self._events():
            if event["type"] == what and is_it(event):
                return at_ns, event
            if event["type"] in ENDS:
                raise RuntimeError(f"the turn ended before {what}: {event}")
        raise RuntimeError(f"the stream ended before {what}")

    def _events(self) -> Iterator[tuple[int, Event]]:
        for line in iter(self._answer.readline, b""):
            if line.startswith(b"data: "):
                at_ns = time.monotonic_ns()
                event = json.loads(line[6:])
                self._seq += 1
                if event["seq"] != self._seq:
                    raise RuntimeError(f"event {self._seq} was expected, and {event} came")
                self.path = f"/conversations/{event['conversation_id']}/turns/{event['turn']}"
                self.last[event["type"]] = event
                yield at_ns, event


def _connection(server: Server) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
