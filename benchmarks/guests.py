"""Clients of many processes: each talks on and on, and where one process does not serve it, asks another the same."""

from __future__ import annotations

import http.client
import json
import random
import secrets
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.players import done
from benchmarks.throughput import TURNS
from benchmarks.watching import ENDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.players import Order

PATIENCE_S = 40.0
PAUSE_S = 0.05  # before the same is asked again
ANSWER_S = 30.0


@dataclass
class Door:
    """What a load balancer does: each request goes to one of the processes that it knows."""

    ports: list[int] = field(default_factory=list)

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", random.choice(self.ports), timeout=ANSWER_S)


class Guest(threading.Thread):
    """A turn each period, each with a key that makes it safe to send again, and a new conversation now and then."""

    def __init__(self, door: Door, order: Order, period_s: float, first_s: float) -> None:
        super().__init__(daemon=True)
        self._door = door
        self._order = order
        self._period_s = period_s
        self._due = time.monotonic() + first_s
        self._leaving = threading.Event()
        self._connection: http.client.HTTPConnection | None = None
        self.answered: Counter[str] = Counter()
        """Turns, by conversation."""
        self._conversation: str | None = None
        self.took: list[tuple[float, float]] = []
        """When each turn was sent (monotonic), and its milliseconds until the answer was there."""
        self.sent_again: Counter[str] = Counter()
        """Why."""
        self.lost: list[str] = []

    def run(self) -> None:
        while not self._leaving.wait(max(0.0, self._due - time.monotonic())):
            self._due = max(time.monotonic(), self._due + self._period_s)
            self._turn()

    def leave(self) -> None:
        """Say nothing more; what was said is answered before the thread ends."""
        self._leaving.set()

    def _turn(self) -> None:
        key, begun = secrets.token_hex(8), time.monotonic()
        message = {"message": str(self._order), "agent": self._order.kind}
        if self._conversation and self.answered[self._conversation] < TURNS:
            message["conversation_id"] = self._conversation
        why = ""
        while time.monotonic() < begun + PATIENCE_S:
            turn, why = self._ask(json.dumps(message), key)
            if turn:
                self.took.append((begun, (time.monotonic() - begun) * 1000))
                self._conversation = turn["conversation_id"]
                self.answered[turn["conversation_id"]] += 1
                if not _is_right(turn, self._order):
                    self.lost.append(f"{turn['status']}: {turn['error']}")
                return
            self.sent_again[why] += 1
            time.sleep(PAUSE_S)
        self.lost.append(f"no answer in {PATIENCE_S:g} s; the last: {why}")

    def _ask(self, message: str, key: str) -> tuple[dict[str, Any] | None, str]:
        """Give the turn, over; or nothing, and why."""
        kept, self._connection = self._connection, None
        connection = kept or self._door.connection()
        try:
            connection.request("POST", "/turn", message, {"Content-Type": "application/json", "Idempotency-Key": key})
            answer = connection.getresponse()
            said = json.loads(answer.read())
        except ConnectionRefusedError:
            return None, "connection refused"
        except (OSError, http.client.HTTPException) as error:
            return None, f"connection broken ({type(error).__name__}{', a kept one' if kept else ''})"
        if answer.status == 200:
            if random.random() < 0.5:  # the others stay where they are, as browsers do
                self._connection = connection
            return said, ""
        connection.close()
        return None, f"{answer.status} {said.get('code', said.get('status'))}"


def look_back(door: Door, guest: Guest, order: Order) -> tuple[list[str], list[int]]:
    """Read all turns of a guest's conversations: what is wrong with them, and how many processes each took.

    Right is: as many as were answered, each with the end that it should have, and with that one alone.
    """
    wrong, attempts = [], []
    for turn in (turn for conversation in guest.answered for turn in _all_turns(door, conversation)):
        attempts.append(turn["attempts"])
        if not _is_right(turn, order):
            wrong.append(f"turn {turn['turn']} is {turn['status']}: {turn['error']}")
        events = _get(door, f"/conversations/{turn['conversation_id']}/turns/{turn['turn']}/events").decode()
        kinds = [line.removeprefix("event: ") for line in events.splitlines() if line.startswith("event: ")]
        if [kind for kind in kinds if kind in ENDS] != ["turn.finished"]:
            wrong.append(f"turn {turn['turn']} has the events {kinds}")
    if len(attempts) != len(guest.took):
        wrong.append(f"{len(guest.took)} turns were answered, {len(attempts)} are on record")
    return wrong, attempts


def _all_turns(door: Door, conversation: str) -> Iterator[dict[str, Any]]:
    cursor = "1"
    while cursor:
        page = json.loads(_get(door, f"/conversations/{conversation}/turns?limit=100&cursor={cursor}"))
        yield from page["items"]
        cursor = page["next_cursor"]


def _get(door: Door, path: str) -> bytes:
    connection = door.connection()
    with closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        said = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"GET {path} was answered with {answer.status} {said!r}")
    return said


def _is_right(turn: dict[str, Any], order: Order) -> bool:
    last = done(turn["reply"] or "")
    return turn["status"] == "finished" and last is not None and last.number == order.calls
