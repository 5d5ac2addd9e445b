"""Bridge between a running session's threads and the event loop: events and steps go out, stop requests come in."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from smolsessions.core.events import MessageDelta, MessageSteered, StepEvent, TurnStarted
from smolsessions.core.journal_keys import journal_key
from smolsessions.core.memories import PackedStep
from smolsessions.core.records import Turn, TurnInput
from smolsessions.core.store_ports import Lease, StopReason

Item = tuple[StepEvent | TurnStarted | None, PackedStep | None, tuple[str, bytes] | None]

JOIN_S = 0.03  # deltas of one message within this time become one event
HOLD_S = 0.25  # events without a reader wait so long for the commit, which seals them as one record
POLL_S = 0.1
MAX_QUEUED = 64  # events; then the agent's thread waits, and the loop has the interpreter for itself
MAX_QUEUED_DELTAS = 4096
MAX_BATCH = 64  # events that one round of the loop writes
_STORED = (TurnStarted, MessageSteered)  # even if the run is over: their effects change more than the journal


class LoopEventBridge:
    """Writer of a lease's events and steps, in their order, from any thread.

    Deltas wait up to `JOIN_S` for more of their message. Any other event goes out at once with them. Without a reader
    all events wait up to `HOLD_S`, and `JOIN_S` during a tool call. The last ones go out with the commit, and a reader
    that comes gets them at once. Finished steps and effects never wait, except for the commit of a run that is over.
    The agent's thread wakes the loop once for many deltas, and waits if the queue is full.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._loop = asyncio.get_running_loop()
        # A timer keeps the context in which it was set. That of a tool call leads back to this bridge: a cycle.
        self._context = contextvars.copy_context()
        self._queue: list[Item] = []  # an empty deque takes 0.7 KB
        self._events: list[StepEvent | TurnStarted] = []  # taken from the queue, not yet written
        self._waiting = False  # a timer is set, or about to be set
        self._hold_timer: asyncio.TimerHandle | None = None
        self._call_timer: asyncio.TimerHandle | None = None  # since a call that reaches outside has begun
        self._waking = False  # the loop is about to run `_on_wake`
        self._open = True
        self.run_has_ended = False
        """Set by the agent's thread. The bridge is closed next, so the queue is left for the commit."""
        self._room: threading.Event | None = None  # of a thread that met a full queue
        self._next_at = 0.0
        self.suspends = False
        """Set before `close` if the turn waits for a person."""
        self.pause_requested = False
        """Set to hand the turn to another worker after the current step."""
        self.reason: StopReason | None = None
        self.ends_at = math.inf
        """Deadline of the turn, by the monotonic clock."""
        self.stopping: asyncio.Future[None] = self._loop.create_future()
        lease.on_reader = self._take_and_send

    @property
    def stop_requested(self) -> bool:
        # A lost lease wakes those that wait for its writes, before it reports its reason.
        return self.reason is not None or self._lease.is_over

    @property
    def hands_over(self) -> bool:
        return self.reason == "drained" or (self.pause_requested and self.reason is None)

    @property
    def steers(self) -> bool:
        return self._lease.steers

    def steering(self) -> Sequence[tuple[Turn, TurnInput]]:
        loading = asyncio.run_coroutine_threadsafe(self._lease.load_steering(), self._loop)
        while not (self.stop_requested or loading.done()):
            concurrent.futures.wait((loading,), POLL_S)
        return loading.result() if loading.done() else ()

    def begin(self, attempt: int, *, can_wait: bool) -> None:
        """Write the start of an attempt: at once, or with the next write if it can wait for that."""
        self._queue.append((TurnStarted(attempt, time.time()), None, (journal_key("started", attempt), b"")))
        if can_wait and not self._lease.watched:
            self._set_timer()
        else:
            self._take_and_send()

    def emit(
        self, event: StepEvent | None, step: PackedStep | None = None, effect: tuple[str, bytes] | None = None
    ) -> None:
        if not self._open:
            return
        if step or effect:
            self._lease.compress(step, effect[1] if effect else b"")
        self._queue.append((event, step, effect))
        if step and step.type == "task" and not effect:  # written with the next event or the commit, to save a write
            return
        is_delta = type(event) is MessageDelta
        most = MAX_QUEUED_DELTAS if is_delta else MAX_QUEUED
        if not self._waking:
            if step or effect or len(self._queue) > most or (self._lease.watched and not is_delta):
                self._waking = True
                self._loop.call_soon_threadsafe(self._on_wake, context=self._context)
            elif not self._waiting:
                self._waiting = True
                self._loop.call_soon_threadsafe(self._set_timer, context=self._context)
        while len(self._queue) > most and self._open:
            self._room = room = self._room or threading.Event()
            room.clear()
            if len(self._queue) > MAX_QUEUED:
                room.wait(POLL_S)

    @property
    def is_late(self) -> bool:
        return self._lease.is_late

    def flush(self, effect: tuple[str, bytes] | None = None) -> None:
        if effect and not self.stop_requested:  # otherwise the call is not made
            self._queue.append((None, None, effect))
        written = threading.Lock()
        written.acquire()
        while not self.stop_requested:
            self._loop.call_soon_threadsafe(self._flush_on_loop, written, context=self._context)
            while not written.acquire(timeout=POLL_S):
                if self.stop_requested or not self._open:
                    return
            if self._lease.is_sure or not self._open:  # otherwise this process stood still, and the reply is old
                return

    def request_stop(self, reason: StopReason) -> None:
        """Stop the turn. The first reason counts."""
        if self.reason is None:
            self.reason = reason
            self.stopping.set_result(None)

    def hear_stop(self, reason: asyncio.Future[StopReason]) -> None:
        self.request_stop(reason.result())

    def close(self) -> None:
        """Write the queue, and ignore later events."""
        if not self._open:
            return
        self._open = False
        self._lease.stop_reason.remove_done_callback(self.hear_stop)  # else only the garbage collector frees both
        self._lease.on_reader = None
        for timer in (self._hold_timer, self._call_timer):
            if timer:
                timer.cancel()
        goes_on = self.suspends or self.hands_over
        self._take(len(self._queue), keeps_effects=goes_on)  # a commit deletes the journal
        # Without a commit, held events would be lost: a replay produces them again, but not the start of the attempt.
        if goes_on or not self._lease.buffer_events(self._events):
            self._to_lease()
        self._make_room()

    def _flush_on_loop(self, written: threading.Lock) -> None:
        if self._open:
            self._take(len(self._queue))
            if self._lease.watched:
                self._to_lease()
            elif self._events:  # a crash of the call leaves the events before it
                self._call_timer = self._loop.call_later(JOIN_S, self._take_and_send)
            if self._lease.is_late:
                self._lease.emit("")  # an empty write, which succeeds only with a valid lease
            self._lease.send()
        self._lease.when_written(written.release)

    def _set_timer(self) -> None:
        self._waiting = True
        delay_s = max(self._next_at - self._loop.time(), 0 if self._lease.watched else HOLD_S)
        self._hold_timer = self._loop.call_later(delay_s, self._take_and_send)

    def _on_wake(self) -> None:
        self._waking = False
        if self.run_has_ended:
            return
        if self._call_timer:
            self._call_timer.cancel()
            self._call_timer = None
        if self._lease.watched or len(self._queue) + len(self._events) > MAX_QUEUED:
            self._take_and_send()
        elif self._open:
            self._take(MAX_BATCH)
            self._lease.send()
            if self._events and not self._waiting:
                self._set_timer()

    def _take_and_send(self) -> None:
        self._waiting = False
        if not self._open:
            self._queue.clear()
            return
        if self._lease.backlog > MAX_QUEUED:
            self._waiting = True
            self._loop.call_later(JOIN_S, self._take_and_send)
            return
        self._take(MAX_BATCH)
        self._to_lease()
        self._lease.send()
        self._make_room()
        if self._queue and not self._waking:
            self._waking = True
            self._loop.call_soon(self._on_wake)

    def _make_room(self) -> None:
        if self._room:
            self._room.set()

    def _take(self, most: int, *, keeps_effects: bool = True) -> None:
        """Move up to `most` items out of the queue. Steps are written at once, with the events if a reader waits."""
        while self._queue and most > 0:
            most -= 1
            event, step, effect = self._queue.pop(0)
            if type(event) is MessageDelta:
                event = self._joined(event)
            if event:
                self._events.append(event)
            if not keeps_effects and type(event) not in _STORED:
                effect = None
            if step or effect:
                self._to_lease(step, effect)

    def _joined(self, delta: MessageDelta) -> MessageDelta:
        """Take the deltas of the same message that follow, and return them as one."""
        texts = [delta.text]
        while self._queue and type(more := self._queue[0][0]) is MessageDelta and more.message == delta.message:
            texts.append(more.text)
            self._queue.pop(0)
        return replace(delta, text="".join(texts)) if len(texts) > 1 else delta

    def _to_lease(self, step: PackedStep | None = None, effect: tuple[str, bytes] | None = None) -> None:
        """Write a step or an effect, and the events that were taken, unless they can wait.

        The start of an attempt is one write with its key: a crash between two would leave an attempt without its event.
        """
        events: list[StepEvent | TurnStarted] = []
        if self._events and (not (step or effect) or self._lease.watched or type(self._events[0]) is TurnStarted):
            events, self._events = self._events, events
            if any(type(event) is MessageDelta for event in events):
                self._next_at = self._loop.time() + JOIN_S
        if events or step or effect:
            key, result = effect or ("", b"")
            self._lease.emit(key, result=result, step=step, events=events)
