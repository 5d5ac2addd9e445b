"""Run of one turn: its events go out, its calls and tokens are counted, and a stop ends it."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from pydantic_core import to_json
from smolagents.monitoring import TokenUsage

from smolsessions.agents.models.token_usage import total_usage
from smolsessions.agents.run.failures import TurnStopped
from smolsessions.agents.run.journal import Journal
from smolsessions.agents.values.json_forms import truncate_json
from smolsessions.core.agent_ports import EventBridge
from smolsessions.core.callers import Caller
from smolsessions.core.events import (
    Event,
    MessageDelta,
    MessageRestarted,
    MessageSteered,
    ReplayState,
    StepEvent,
    StepFinished,
    StepPlace,
    StepStarted,
    ToolCalled,
    ToolReturned,
)
from smolsessions.core.records import ToolCall, Usage

MAX_CAUGHT_STOPS = 100
MAX_RECORDED_CALLS = 5000  # of a turn, and then the first one of each further tool; the log has all
MAX_WHOLE_CALLS = 200  # of a turn, recorded with long texts in their arguments
MAX_WHOLE_BYTES = 4 * 1024 * 1024  # of the arguments of these calls: each reader of the turn gets all of them
_NUMBER = re.compile(r"\d+")


class TurnRun:
    """Run of one turn, shared by all its agents. For any thread."""

    def __init__(self, bridge: EventBridge, attempt: int, caller: Caller, replay: ReplayState | None = None) -> None:
        """`replay` holds the effects and events of earlier attempts, which are not repeated."""
        self.attempt = attempt
        self.caller = caller
        self.bridge = bridge
        self.journal = Journal(bridge, replay, attempt)
        self.parallel_calls: set[str] = set()
        """Ids of calls that a model requested with others in one message."""
        self.side_calls = itertools.count(1)
        """Numbers of model calls outside the steps."""
        self.waits: set[Callable[[], object]] = set()
        """Functions that end the waits of this run: for a model's provider, or for a tool."""
        self._calls: dict[str, ToolCall] = {}
        self._called: set[str] = set()
        self._argument_bytes = 0
        self._used: list[TokenUsage] = []
        self._stops = 0
        self._thread = threading.get_ident()
        self._seen: set[tuple[type, str]] = set()
        """Events of earlier attempts, which a replay produces again."""
        self._seen_texts: Counter[tuple[str, str, int | None]] = Counter()
        """Lengths of the texts of earlier attempts."""
        for event in replay.events if replay else ():
            if isinstance(event, MessageDelta):
                self._seen_texts[event.message] += len(event.text)
            elif isinstance(event, MessageRestarted):
                self._forget_texts(event.call_id)
            elif name := _name_of(event):
                self._seen.add(name)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """All tool calls, in the order in which the models requested them."""
        calls = self._calls.copy().values()
        return tuple(sorted(calls, key=lambda call: call_order(call.call_id)) if self.parallel_calls else calls)

    @property
    def usage(self) -> Usage:
        return total_usage(self._used.copy())

    def check(self) -> None:
        """Raise `TurnStopped` if a stop was requested. A thread that keeps catching it is blocked here for good."""
        if self.bridge.stop_requested or self.journal.diverged:
            if threading.get_ident() == self._thread:  # other threads run one parallel call each
                self._stops += 1
                if self._stops > MAX_CAUGHT_STOPS:
                    threading.Event().wait()  # the worker abandons this thread
            raise TurnStopped

    def end_waits(self) -> None:
        """End the waits of this run, from any thread, after a stop was requested."""
        for end in self.waits.copy():
            end()

    @contextmanager
    def stoppable(self, end: Callable[[], object]) -> Iterator[None]:
        """Call `end`, from another thread, if a stop comes meanwhile. Raises `TurnStopped` if it came before."""
        self.waits.add(end)
        try:
            self.check()
            yield
        finally:
            self.waits.discard(end)

    def emit(self, event: StepEvent | None, effect: tuple[str, bytes] | None = None) -> None:
        """Emit the part of an event that earlier attempts did not show, with an effect to journal."""
        event = self.unseen(event)
        if event or effect:
            self.bridge.emit(event, None, effect)

    def unseen(self, event: StepEvent | None) -> StepEvent | None:
        """Return the part of an event that earlier attempts did not show."""
        if not self._seen and not self._seen_texts:
            return event
        if isinstance(event, MessageDelta):
            if not (seen := self._seen_texts[event.message]):
                return event
            self._seen_texts[event.message] = max(0, seen - len(event.text))
            return replace(event, text=event.text[seen:]) if len(event.text) > seen else None
        name = _name_of(event)
        if name in self._seen:
            self._seen.discard(name)
            return None
        return event

    def restart(self, where: StepPlace, call_id: str, *, is_retry: bool = False) -> None:
        """Emit that a model call starts again: before a retry, or if an earlier attempt showed its text."""
        was_shown = self._forget_texts(call_id)
        if is_retry or was_shown:
            self.bridge.emit(MessageRestarted(where, call_id))

    def _forget_texts(self, call_id: str) -> bool:
        """Forget the text of a model call that starts again. True if any was shown."""
        void = [message for message in self._seen_texts if message[0] == call_id]
        for message in void:
            del self._seen_texts[message]
        return bool(void)

    def seed(self, call_id: str) -> bytes:
        """Return the seed of a code block's random numbers, the same in a replay."""
        return hashlib.sha256(self.journal.once("seed", lambda: os.urandom(16)) + call_id.encode()).digest()

    def note_call(self, call: ToolCall) -> None:
        if call.call_id not in self._calls:
            if len(self._calls) >= MAX_RECORDED_CALLS and call.name in self._called:
                return
            self._called.add(call.name)
            if len(self._calls) <= MAX_WHOLE_CALLS:
                self._argument_bytes += len(to_json(call.arguments))
        if len(self._calls) > MAX_WHOLE_CALLS or self._argument_bytes > MAX_WHOLE_BYTES:
            call = replace(call, arguments=truncate_json(call.arguments))
        self._calls[call.call_id] = call

    def note_usage(self, usage: TokenUsage | None) -> None:
        if usage:
            self._used.append(usage)


def call_order(call_id: str) -> list[int]:
    """Return the numbers of a call's id, by which calls are sorted."""
    return [*map(int, _NUMBER.findall(call_id))]


def _name_of(event: Event | None) -> tuple[type, str] | None:
    if isinstance(event, StepStarted | StepFinished):
        return (type(event), event.where.step_id)
    if isinstance(event, MessageSteered):
        return (type(event), str(event.from_turn))
    return (type(event), event.call_id) if isinstance(event, ToolCalled | ToolReturned) else None
