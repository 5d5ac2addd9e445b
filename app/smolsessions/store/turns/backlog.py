"""Writes of one claim on their way to the store: numbered, in order, each written once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from redis.exceptions import ResponseError

from smolsessions.core.errors import SealBrokenError
from smolsessions.store.scripts.loader import as_service_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass

    from smolsessions.core.events import Event
    from smolsessions.store.connection.pipeline import Reply
    from smolsessions.store.scripts.loader import Argument
else:
    from smolsessions.core.frozen import dataclass

log = logging.getLogger(__name__)

RETRY_S = 0.25
LATE_S = 0.05


@dataclass(frozen=True, slots=True)
class Entry:
    """One write, numbered from 1 on; `at` is when it was made, of the monotonic clock."""

    serial: int
    at: float
    arguments: list[Argument]
    events: list[Event]
    is_effect: bool


class Owner(Protocol):
    """Whose writes they are."""

    def send(self, serial: int, arguments: list[Argument]) -> Reply:
        """Send entries, of which the first is number `serial`."""
        ...

    def written(self, entries: list[Entry], seqs: list[int], sent_at: float) -> None:
        """The store has these; `seqs` are the numbers of their events, 0 for one that was there before."""
        ...

    def lose(self) -> None:
        """Another one holds the conversation."""
        ...

    def found_gap(self) -> None:
        """What is stored is less than was written."""
        ...


class Backlog:
    """What the store has not answered for. After a lost connection all is sent again; what had arrived is a no-op."""

    def __init__(self, owner: Owner, name: str) -> None:
        self._owner = owner
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._entries: deque[Entry] = deque()
        self._made = self._unsent = 0
        self._awaited: deque[tuple[int, Callable[[], object]]] = deque()
        self._is_said = False  # that they wait

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def made(self) -> int:
        """How many writes there were."""
        return self._made

    @property
    def is_late(self) -> bool:
        """The oldest write has been waiting for long. For any thread."""
        try:
            return time.monotonic() - self._entries[0].at > LATE_S
        except IndexError:
            return False

    def put(self, arguments: list[Argument], events: list[Event], *, is_effect: bool) -> None:
        """Queue one write; it is sent with whatever else is queued in the same round of the loop."""
        self._made += 1
        self._entries.append(Entry(self._made, time.monotonic(), arguments, events, is_effect))
        self._unsent += 1
        if self._unsent == 1:
            self._loop.call_soon(self.send)

    def when_written(self, call: Callable[[], object]) -> None:
        """Call when what was put so far is written, or given up."""
        if self._entries:
            self._awaited.append((self._made, call))
        else:
            call()

    def send_again(self) -> None:
        """Count all as unsent: the connection was lost."""
        self._unsent = len(self._entries)

    def give_up(self) -> None:
        """Write nothing of what waits."""
        self._entries.clear()
        self._unsent = 0
        self._tell_awaiting()

    def send(self) -> None:
        """Send what was not sent yet."""
        if not self._unsent:
            return
        batch = list(self._entries)[-self._unsent :]
        self._unsent = 0
        sent_at = time.monotonic()
        answer = self._owner.send(batch[0].serial, [argument for entry in batch for argument in entry.arguments])
        answer.add_done_callback(lambda answer: self._answered(answer, batch, sent_at))

    def _answered(self, answer: Reply, batch: list[Entry], sent_at: float) -> None:
        error = answer.exception()
        if isinstance(error, ResponseError):
            error = as_service_error("emit", error)
        if isinstance(error, SealBrokenError):
            self._owner.found_gap()
            return
        state, *rest = (b"failed",) if error else answer.result()
        if state == b"lost" or (state == b"behind" and self._is_oldest(batch)):
            self._owner.lose()  # behind: what was acknowledged is gone, so it is played on from what is there
        elif state == b"gap":
            self._owner.found_gap()
        elif state != b"ok":
            if not self._is_said:  # each is tried some times a second, for as long as an outage lasts
                log.warning("a write of turn %s waits: %s", self._name, error or state)
            self._is_said = True
            self.send_again()
            # Also where all were counted as unsent meanwhile: nobody else may be about to send them.
            self._loop.call_later(RETRY_S, self.send)
        else:
            self._note_written(batch, rest[0], sent_at)

    def _is_oldest(self, batch: list[Entry]) -> bool:
        return bool(self._entries) and self._entries[0].serial == batch[0].serial

    def _note_written(self, batch: list[Entry], seqs: list[int], sent_at: float) -> None:
        while self._entries and self._entries[0].serial <= batch[-1].serial:
            self._entries.popleft()
        self._unsent = min(self._unsent, len(self._entries))
        self._is_said = False
        self._owner.written(batch, seqs, sent_at)
        self._tell_awaiting()

    def _tell_awaiting(self) -> None:
        first = self._entries[0].serial if self._entries else self._made + 1
        while self._awaited and self._awaited[0][0] < first:
            self._awaited.popleft()[1]()
