"""Where a playing session and the event loop meet: events and finished steps go out, a stop comes in."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from app.events import MessageDelta

if TYPE_CHECKING:
    from collections.abc import Iterable

    from app.events import StepEvent
    from app.ports import Lease, StopReason
    from app.records import PackedStep

JOIN_S = 0.03  # pieces of a message that come faster are joined into one event
LOOK_S = 0.1
MOST_WAITING = 64  # events that an agent's thread may be ahead: while it waits, the loop has the interpreter for itself
MOST_AT_ONCE = 64  # events that are written in one round of the loop


class LoopStage:
    """Writes to the lease, on the loop, what any thread tells; the order stays.

    Pieces of messages wait up to `JOIN_S` for more of their kind; all else goes out at once, and takes them along. An
    agent's thread wakes the loop once in a while, never for each piece; it waits where it is far ahead of the store.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._loop = asyncio.get_running_loop()
        self._told: deque[tuple[StepEvent | None, PackedStep | None]] = deque()
        self._joining = False  # a timer is set, or about to be: pieces need not wake the loop
        self._waking = False  # the loop is about to look
        self._open = True
        self._room = threading.Event()
        self._written = itertools.count(1)
        self._next_at = 0.0
        self.reason: StopReason | None = None
        self.stopping: asyncio.Future[None] = self._loop.create_future()

    @property
    def halted(self) -> bool:
        return self.reason is not None

    def tell(self, event: StepEvent | None, step: PackedStep | None = None) -> None:
        while self._open and len(self._told) >= MOST_WAITING:
            self._room.clear()
            self._room.wait(LOOK_S)
        if not self._open:
            return
        self._told.append((event, step))
        if isinstance(event, MessageDelta):
            if not self._joining and not self._waking:
                self._joining = True
                self._loop.call_soon_threadsafe(self._join)
        elif not self._waking:
            self._waking = True
            self._loop.call_soon_threadsafe(self.flush)

    def halt(self, reason: StopReason) -> None:
        """Stop what plays; the first reason counts."""
        if self.reason is None:
            self.reason = reason
            self.stopping.set_result(None)

    def close(self) -> None:
        """Take what was told so far; from now on nothing is heard."""
        self._open = False
        self._write(len(self._told))
        self._room.set()

    def flush(self) -> None:
        """Write what was told, or some of it where it is much."""
        self._joining = self._waking = False
        if self._lease.backlog > MOST_WAITING:
            self._waking = True
            self._loop.call_later(JOIN_S, self.flush)
            return
        self._write(MOST_AT_ONCE)
        self._room.set()
        if self._told:
            self._waking = True
            self._loop.call_soon(self.flush)

    def _write(self, most: int) -> None:
        entry: list[StepEvent] = []
        for event, step in _joined(self._drained(most)):
            if event:
                entry.append(event)
            if step:
                self._emit(entry, step)
                entry = []
        self._emit(entry, None)

    def _join(self) -> None:
        wait_s = self._next_at - self._loop.time()
        if wait_s > 0:
            self._loop.call_later(wait_s, self.flush)
        else:
            self.flush()

    def _drained(self, most: int) -> Iterable[tuple[StepEvent | None, PackedStep | None]]:
        while self._told and most > 0:
            most -= 1
            yield self._told.popleft()

    def _emit(self, events: list[StepEvent], step: PackedStep | None) -> None:
        if events or step:
            self._next_at = self._loop.time() + JOIN_S
            self._lease.emit(f"{self._lease.attempt}.{next(self._written)}", step=step, events=events)


def _joined(
    told: Iterable[tuple[StepEvent | None, PackedStep | None]],
) -> Iterable[tuple[StepEvent | None, PackedStep | None]]:
    """Make one event of neighbouring pieces of one message."""
    for same, group in itertools.groupby(told, key=lambda pair: _message_of(pair[0])):
        if same is None:
            yield from group
            continue
        pieces = [event for event, _ in group if isinstance(event, MessageDelta)]
        yield replace(pieces[0], text="".join(piece.text for piece in pieces)), None


def _message_of(event: StepEvent | None) -> tuple[object, ...] | None:
    return (event.call_id, event.channel, event.index) if isinstance(event, MessageDelta) else None
