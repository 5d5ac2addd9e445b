"""Where a playing session and the event loop meet: events and finished steps go out, a stop comes in."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from smolsessions.core.events import MessageDelta

if TYPE_CHECKING:
    from smolsessions.core.events import StepEvent
    from smolsessions.core.records import PackedStep
    from smolsessions.core.store_ports import Lease, StopReason

    Told = tuple[StepEvent | None, PackedStep | None, tuple[str, bytes] | None]

JOIN_S = 0.03  # pieces of a message that come faster are joined into one event
LOOK_S = 0.1
MOST_WAITING = 64  # events that an agent's thread may be ahead: while it waits, the loop has the interpreter for itself
MOST_PIECES = 4096  # pieces of messages that wait to be joined
MOST_AT_ONCE = 64  # events that are written in one round of the loop


class LoopEventBridge:
    """Writes to the lease, on the loop, what any thread tells; the order of events stays, and that of steps.

    Pieces of messages wait up to `JOIN_S` for more of their kind, other events go out at once and take them along.
    Where nobody watches all events wait so long, and those that are left at the turn's end go out with its commit. A
    finished step never waits. An agent's thread wakes the loop now and then, not for each piece; it waits where it is
    far ahead.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._loop = asyncio.get_running_loop()
        self._told: deque[Told] = deque()
        self._events: list[StepEvent] = []  # taken from what was told, not yet written
        self._waiting = False  # a timer is set, or about to be
        self._waking = False  # the loop is about to look
        self._open = True
        self._room = threading.Event()
        self._next_at = 0.0
        self.pause_requested = False
        self.reason: StopReason | None = None
        self.stopping: asyncio.Future[None] = self._loop.create_future()

    @property
    def stop_requested(self) -> bool:
        # The lease knows first: who waited for a write is let go in the same moment.
        return self.reason is not None or self._lease.is_over

    @property
    def hands_over(self) -> bool:
        """What is broken off here goes on elsewhere."""
        return self.reason == "drained" or (self.pause_requested and self.reason is None)

    def emit(
        self, event: StepEvent | None, step: PackedStep | None = None, effect: tuple[str, bytes] | None = None
    ) -> None:
        if not self._open:
            return
        self._told.append((event, step, effect))
        if step and step.type == "task":  # written with the next event, or with the commit: a turn's first write
            return
        is_piece = isinstance(event, MessageDelta)
        most = MOST_PIECES if is_piece else MOST_WAITING
        if step or effect or len(self._told) > most or not (is_piece or not self._lease.watched):
            if not self._waking:
                self._waking = True
                self._loop.call_soon_threadsafe(self._look)
        elif not self._waiting and not self._waking:
            self._waiting = True
            self._loop.call_soon_threadsafe(self._wait)
        while self._open and len(self._told) > most:
            self._room.clear()
            if len(self._told) > MOST_WAITING:
                self._room.wait(LOOK_S)

    @property
    def is_late(self) -> bool:
        return self._lease.is_late

    def flush(self, effect: tuple[str, bytes] | None = None) -> None:
        if effect:
            self._told.append((None, None, effect))
        written = threading.Lock()
        written.acquire()
        while not self.stop_requested:
            self._loop.call_soon_threadsafe(self._settle, written)
            while not written.acquire(timeout=LOOK_S):
                if self.stop_requested or not self._open:
                    return
            if self._lease.is_sure or not self._open:  # else this process stood still, and the answer is an old one
                return

    def request_pause(self) -> None:
        """Let the step that runs be the last one here; another worker goes on."""
        self.pause_requested = True

    def request_stop(self, reason: StopReason) -> None:
        """Stop what plays; the first reason counts."""
        if self.reason is None:
            self.reason = reason
            self.stopping.set_result(None)

    def close(self) -> None:
        """Take what was told so far; from now on nothing is heard."""
        if not self._open:
            return
        self._open = False
        self._take(len(self._told))
        if not self._lease.buffer_events(self._events):
            self._emit()
        self._room.set()

    def _settle(self, written: threading.Lock) -> None:
        if self._open:
            self._take(len(self._told))
            if self._lease.watched:
                self._emit()
            if self._lease.is_late:
                self._lease.emit("")  # nothing, but only who holds the lease can write it
        self._lease.when_written(written.release)

    def _wait(self) -> None:
        self._loop.call_later(max(self._next_at - self._loop.time(), 0 if self._lease.watched else JOIN_S), self._write)

    def _look(self) -> None:
        """Somebody is in a hurry."""
        self._waking = False
        if self._lease.watched or len(self._told) > MOST_WAITING:
            self._write()
        elif self._open:
            self._take(MOST_AT_ONCE)
            if self._events and not self._waiting:
                self._waiting = True
                self._wait()

    def _write(self) -> None:
        """Write what was told, or some of it where it is much."""
        self._waiting = False
        if not self._open:
            self._told.clear()
            return
        if self._lease.backlog > MOST_WAITING:
            self._waiting = True
            self._loop.call_later(JOIN_S, self._write)
            return
        self._take(MOST_AT_ONCE)
        self._emit()
        self._room.set()
        if self._told and not self._waking:
            self._waking = True
            self._loop.call_soon(self._look)

    def _take(self, most: int) -> None:
        """Take some of what was told; steps are written, with their events if those are to be written at all."""
        while self._told and most > 0:
            most -= 1
            event, step, effect = self._next()
            if event:
                self._events.append(event)
            if step or effect:
                self._emit(step, effect, bare=not self._lease.watched)

    def _next(self) -> Told:
        """Take one thing that was told; pieces of one message that follow each other are one."""
        event, step, effect = self._told.popleft()
        message = _message_of(event)
        if message is None or not self._told or _message_of(self._told[0][0]) != message:
            return event, step, effect
        assert isinstance(event, MessageDelta)
        texts = [event.text]
        while self._told and _message_of(self._told[0][0]) == message:
            more, _, _ = self._told.popleft()
            assert isinstance(more, MessageDelta)
            texts.append(more.text)
        return replace(event, text="".join(texts)), None, None

    def _emit(
        self, step: PackedStep | None = None, effect: tuple[str, bytes] | None = None, *, bare: bool = False
    ) -> None:
        events = [] if bare else self._events
        if events or step or effect:
            if any(isinstance(event, MessageDelta) for event in events):
                self._next_at = self._loop.time() + JOIN_S
            key, result = effect or ("", b"")
            self._lease.emit(key, result=result, step=step, events=events)
        if not bare:
            self._events = []


def _message_of(event: StepEvent | None) -> tuple[object, ...] | None:
    return (event.call_id, event.channel, event.index) if isinstance(event, MessageDelta) else None
