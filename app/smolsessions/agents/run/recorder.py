"""Recorder of one turn: sends its events and effects to the event bridge, counts its calls, and checks for a stop."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json
from smolagents.monitoring import TokenUsage

from smolsessions.agents.run.effects import Effect
from smolsessions.agents.run.failures import ReplayDivergedError, TurnStopped
from smolsessions.agents.run.model_connections import ModelCall
from smolsessions.agents.values import CodecError, dumps
from smolsessions.agents.values.json_forms import json_form, truncate_json
from smolsessions.agents.values.parts import MAX_BYTES
from smolsessions.core.agent_ports import EventBridge
from smolsessions.core.callers import Caller
from smolsessions.core.events import (
    Event,
    MessageDelta,
    MessageRestarted,
    ReplayState,
    StepEvent,
    StepFinished,
    StepStarted,
    ToolCalled,
    ToolReturned,
    Where,
)
from smolsessions.core.records import ToolCall, Usage

if TYPE_CHECKING:
    from smolsessions.agents.run.approvals import Approvals

MAX_CAUGHT_STOPS = 100
MAX_WHOLE_CALLS = 200  # of a turn, recorded with long texts in their arguments
_NUMBER = re.compile(r"\d+")
BEGUN = "begun:"
PARKED = "parked:"  # an attempt that ended to wait for a person
CODE = "code:"
_TOOLS = ("tool:", CODE)
_sorted_json = json.JSONEncoder(sort_keys=True).encode
_ADDRESS = re.compile(rb" at 0x[0-9a-f]+")
MAX_KEY_BYTES = 1024 * 1024  # of the arguments that a key stands for
RECORDER: ContextVar[Recorder] = ContextVar("recorder")
"""Set for each tool call."""


class Recorder:
    """Record of one turn, shared by all its agents. For any thread."""

    def __init__(self, bridge: EventBridge, attempt: int, caller: Caller, replay: ReplayState | None = None) -> None:
        """`replay` holds the effects and events of earlier attempts, which are not repeated."""
        self.attempt = attempt
        self.caller = caller
        self.journal = Journal(bridge, replay, attempt)
        self.approvals: Approvals | None = None
        """None: no call of this turn needs a person's decision."""
        self.is_replay = replay is not None
        self._filter = ReplayFilter(replay.events) if replay else None
        self.bridge = bridge
        self.parallel_calls: set[str] = set()
        """Ids of calls that a model requested with others in one message."""
        self._calls: dict[str, ToolCall] = {}
        self._used: list[TokenUsage] = []
        self.side_calls = itertools.count(1)
        """Numbers of model calls outside the steps."""
        self._stops = 0
        self._model_calls: set[ModelCall] = set()
        self._waits: set[Callable[[], object]] = set()
        self._thread = threading.get_ident()

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """All tool calls, in the order in which the models requested them."""
        calls = self._calls.copy().values()
        return tuple(sorted(calls, key=lambda call: place_of(call.call_id)) if self.parallel_calls else calls)

    @property
    def usage(self) -> Usage:
        used = self._used.copy()
        return Usage(sum([each.input_tokens for each in used]), sum([each.output_tokens for each in used]))

    def check(self) -> None:
        """Raise `TurnStopped` if a stop was requested. A thread that keeps catching it is blocked here for good."""
        if self.bridge.stop_requested or self.journal.diverged:
            if threading.get_ident() == self._thread:  # other threads run one parallel call each
                self._stops += 1
                if self._stops > MAX_CAUGHT_STOPS:
                    threading.Event().wait()  # the worker abandons this thread
            raise TurnStopped

    def model_call(self) -> ModelCall:
        """Return a model call that `cut_model_calls` can end."""
        return ModelCall(self._model_calls)

    def cut_model_calls(self) -> None:
        for call in self._model_calls.copy():
            call.cut()
        for end in self._waits.copy():
            end()

    @contextmanager
    def stoppable(self, end: Callable[[], object]) -> Iterator[None]:
        """Call `end`, from another thread, if a stop comes meanwhile. Raises `TurnStopped` if it came before."""
        self._waits.add(end)
        try:
            self.check()
            yield
        finally:
            self._waits.discard(end)

    def emit(self, event: StepEvent | None, effect: tuple[str, bytes] | None = None) -> None:
        if self._filter:
            event = self.unseen(event)
        if event or effect:
            self.bridge.emit(event, None, effect)

    def unseen(self, event: StepEvent | None) -> StepEvent | None:
        """Return the part of an event that earlier attempts did not show."""
        return self._filter.unseen(event) if self._filter and event else event

    def restart(self, where: Where, call_id: str, *, is_retry: bool = False) -> None:
        """Emit that a model call starts again: before a retry, or if an earlier attempt showed its text."""
        was_shown = self._filter is not None and self._filter.forget(call_id)
        if is_retry or was_shown:
            self.bridge.emit(MessageRestarted(where, call_id))

    def seed(self, call_id: str) -> bytes:
        """Return the seed of a code block's random numbers, the same in a replay."""
        return hashlib.sha256(self.journal.once("seed", lambda: os.urandom(16)) + call_id.encode()).digest()

    def note_call(self, call: ToolCall) -> None:
        if len(self._calls) > MAX_WHOLE_CALLS:
            call = replace(call, arguments=truncate_json(call.arguments))
        self._calls[call.call_id] = call

    def note_usage(self, usage: TokenUsage | None) -> None:
        if usage:
            self._used.append(usage)


class Journal:
    """Effects by key. A key holds the place of a call, which a replay repeats, and a digest of its arguments."""

    def __init__(self, bridge: EventBridge, replay: ReplayState | None, attempt: int) -> None:
        self._bridge = bridge
        self._attempt = attempt
        self._effects: dict[str, bytes] = {}
        self._begun: dict[str, str] = {}  # keys without the digest, by call
        self._done: set[str] = set()
        self._lock = threading.Lock()
        self.diverged = False
        if replay:
            self._effects = dict(replay.effects)
            begun = [name.removeprefix(BEGUN) for name in replay.begun if name.startswith(BEGUN)]
            if f"{PARKED}{attempt - 1}" in replay.begun:  # of a block that waited, all calls are known
                begun = [key for key in begun if not key.startswith(CODE)]
            self._begun = {call_of(key): key.rpartition(":")[0] for key in begun}
            self._done = {call_of(key) for key in self._effects if key.startswith(_TOOLS)}

    def take(self, key: str, explains: Callable[[str], bool]) -> Effect | None:
        """Return the effect that an earlier attempt wrote under a key. None: the call is to be made.

        Raises `ReplayDivergedError` if this call was made with other arguments. Also if effects are left that this call
        does not explain (`explains` is asked for the id of each): they came after it. A call in flight explains all.
        """
        if not self._effects:
            return None
        with self._lock:
            written = self._effects.pop(key, None)
            if written is None and not self._may_be_made(key, explains):
                self.diverged = True
                raise ReplayDivergedError
            self._done.discard(call_of(key))
            if written is None:
                return None
            self.skip_within(call_of(key))
            return Effect.from_bytes(written)

    def skip_within(self, place: str) -> None:
        """Forget the calls that a tool, check or predicate made: a replay that knows its result does not call it."""
        self._done = {call_id for call_id in self._done if not call_id.startswith(f"{place}/")}

    @property
    def holds_more(self) -> bool:
        """True if results of tools are left that the replay did not request."""
        return bool(self._done)

    def _may_be_made(self, key: str, explains: Callable[[str], bool]) -> bool:
        """False if this call was made with another tool or other arguments, or if the journal holds later ones."""
        call_id = call_of(key)
        if call_id in self._done:
            return False
        return self.was_begun(key) if call_id in self._begun else all(map(explains, self._done))

    def was_begun(self, key: str) -> bool:
        """True if this call was in flight when an earlier attempt ended.

        Its arguments may have differed (the time, say): it may have had its effect all the same.
        """
        return self._begun.get(call_of(key)) == key.rpartition(":")[0]

    def begin(self, key: str, *, is_harmless: bool = False) -> None:
        """Journal the start of a call. Unless it is harmless, wait until this and all earlier writes are stored."""
        begun = (BEGUN + key, b"")
        if self._attempt > 1:
            self._bridge.emit(None, None, (f"{'again' if self.was_begun(key) else 'first'}:{self._attempt}:{key}", b""))
        if is_harmless:
            self._bridge.emit(None, None, begun)
        else:
            self._bridge.flush(begun)

    def write(self, key: str, effect: Effect) -> None:
        self._bridge.emit(None, None, (key, self.bytes_of(effect)))

    def bytes_of(self, effect: Effect) -> bytes:
        """Return the stored form of an effect of this attempt."""
        if self._attempt > 1:
            effect.attempt = self._attempt
        return effect.to_bytes()

    def put(self, key: str, data: bytes) -> None:
        """Write an effect that is no result of a call."""
        self._bridge.emit(None, None, (key, data))

    def once(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return the choice under this name. The first attempt makes it, without the lock: an author's code may run."""
        key = f"once:{name}"
        if key not in self._effects:
            made = make()
            with self._lock:
                if key not in self._effects:
                    self._effects[key] = made
                    self._bridge.emit(None, None, (key, made))
        return self._effects[key]

    def chosen(self, name: str) -> bytes | None:
        """Return the choice of an earlier attempt. It writes no effect: that would hide a crash from the count."""
        return self._effects.get(f"once:{name}")


def digest_of(name: str, arguments: Any, flat: dict[str, str] | None) -> str:
    """Hash a call. The order of named arguments does not matter. `flat` is their `flat_form`."""
    return whole_digest_of(name, arguments, flat, max_bytes=MAX_KEY_BYTES)[:16]


def whole_digest_of(
    name: str,
    arguments: Any,
    flat: dict[str, str] | None,
    stored_classes: Collection[type] = (),
    *,
    max_bytes: int = MAX_BYTES,
) -> str:
    """Hash a call in full. Of arguments that are larger, or have no encoding, only the JSON form counts."""
    call = [name, arguments]
    try:
        asked = _sorted_json(call).encode() if flat is None else to_json([name, dict(sorted(flat.items()))])
    except (TypeError, ValueError):
        try:
            asked = dumps(call, stored_classes, in_order=True, max_bytes=max_bytes)
        except CodecError:
            asked = _ADDRESS.sub(b"", dumps(json_form(call), in_order=True))
    return hashlib.sha256(asked).hexdigest()


@contextmanager
def stoppable(end: Callable[[], object]) -> Iterator[None]:
    """Wait within a tool call: a stop of its turn calls `end`. Outside a turn nothing does."""
    recorder = RECORDER.get(None)
    if recorder is None:
        yield
    else:
        with recorder.stoppable(end):
            yield


def place_of(call_id: str) -> list[int]:
    """Return the numbers of a call's id, by which calls are in the order of their turn."""
    return [*map(int, _NUMBER.findall(call_id))]


def call_of(key: str) -> str:
    return key.split(":", 2)[1]


class ReplayFilter:
    """Filter of the events that a replay produces again: readers have seen them in an earlier attempt."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._seen: set[tuple[type, str]] = set()
        self._texts: Counter[tuple[str, str, int | None]] = Counter()
        for event in events:
            if isinstance(event, MessageDelta):
                self._texts[event.message] += len(event.text)
            elif isinstance(event, MessageRestarted):
                self.forget(event.call_id)
            elif name := _name_of(event):
                self._seen.add(name)

    def unseen(self, event: StepEvent) -> StepEvent | None:
        if isinstance(event, MessageDelta) and (seen := self._texts[event.message]):
            self._texts[event.message] = max(0, seen - len(event.text))
            return replace(event, text=event.text[seen:]) if len(event.text) > seen else None
        name = _name_of(event)
        if name in self._seen:
            self._seen.discard(name)
            return None
        return event

    def forget(self, call_id: str) -> bool:
        """Drop the text of a model call that starts again. True if any was shown."""
        void = [message for message in self._texts if message[0] == call_id]
        for message in void:
            del self._texts[message]
        return bool(void)


def _name_of(event: Event) -> tuple[type, str] | None:
    if isinstance(event, StepStarted | StepFinished):
        return (type(event), event.where.step_id)
    return (type(event), event.call_id) if isinstance(event, ToolCalled | ToolReturned) else None
