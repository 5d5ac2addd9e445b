"""Journal of a turn: results of calls and choices by key, which a replay finds again."""

from __future__ import annotations

import bisect
import hashlib
import json
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from typing import Any

from smolsessions.agents.run.effects import Effect
from smolsessions.agents.run.failures import ReplayDivergedError
from smolsessions.agents.values import CodecError, dumps
from smolsessions.agents.values.json_forms import json_form
from smolsessions.agents.values.parts import MAX_BYTES
from smolsessions.core.agent_ports import EventBridge
from smolsessions.core.events import ReplayState
from smolsessions.core.journal_keys import CallKey, journal_key, split_key

_ADDRESS = re.compile(rb" at 0x[0-9a-f]+")
_sorted_json = json.JSONEncoder(sort_keys=True).encode


class Journal:
    """Entries of earlier attempts at a turn, and writer of those of this attempt. For any thread."""

    def __init__(self, bridge: EventBridge, replay: ReplayState | None, attempt: int) -> None:
        self._bridge = bridge
        self._attempt = attempt
        self._results: dict[CallKey, bytes] = {}
        self._begun: dict[str, CallKey] = {}
        """Calls that an earlier attempt started, by their ids."""
        self._choices: dict[str, bytes] = {}
        self.requests: dict[str, dict[int, bytes]] = {}
        """Requests for decisions by call and number."""
        self.answers: dict[str, bytes] = {}
        self.joined: defaultdict[int, list[int]] = defaultdict(list)
        """Numbers of the turns whose messages joined this one, by their places: the steps before them."""
        self.expired_us = 0
        """Time of the last wait that ended without an answer, in Unix microseconds."""
        self.has_effects = bool(replay and replay.effects)
        self.diverged = False
        self._lock = threading.Lock()
        waited = False
        for name, data in {**replay.effects, **dict.fromkeys(replay.begun, b"")}.items() if replay else ():
            word, rest = split_key(name)
            match word:
                case "model" | "tool" | "code" | "check":
                    self._results[CallKey.parse(name)] = data
                case "begun":
                    key = CallKey.parse(rest)
                    self._begun[key.call_id] = key
                case "once":
                    self._choices[rest] = data
                case "asked":
                    call_id, _, number = rest.rpartition(":")
                    self.requests.setdefault(call_id, {})[int(number)] = data
                case "answer":
                    self.answers[rest] = data
                case "joined":
                    place, _, number = rest.partition(":")
                    bisect.insort(self.joined[int(place)], int(number))
                case "expired" if rest.isdigit():
                    self.expired_us = max(self.expired_us, int(rest))
                case "parked":
                    waited |= rest == str(attempt - 1)
        if waited:  # the calls of its blocks are all known, so a block that runs again repeats none
            self._begun = {call_id: key for call_id, key in self._begun.items() if key.kind != "code"}
        self._unclaimed = {key.call_id for key in self._results if key.kind in {"tool", "code"}}
        """Calls with a result that the replay has not requested."""
        self._within: defaultdict[str, list[str]] = defaultdict(list)
        """Those that were made within another call, by its place, and by the places around that."""
        for call_id in self._unclaimed:
            for slash in re.finditer("/", call_id):
                self._within[call_id[: slash.start()]].append(call_id)

    def results_of(self, name: str) -> Iterator[Effect]:
        """Yield the results of earlier attempts' calls of a tool."""
        return (Effect.from_bytes(data) for key, data in self._results.items() if key.name == name)

    def take(self, key: CallKey, may_follow: Callable[[str], bool]) -> Effect | None:
        """Return the effect that an earlier attempt wrote under a key. None: the call is to be made.

        Raises `ReplayDivergedError` if this call was made with another tool or other arguments, or if a result is left
        of a call that cannot have come before this one: `may_follow` is asked for the id of each. A call that was
        begun may follow all.
        """
        with self._lock:
            written = self._results.pop(key, None)
            if written is None:
                has_other_result, is_begun = key.call_id in self._unclaimed, key.call_id in self._begun
                fits = self.was_begun(key) if is_begun else all(map(may_follow, self._unclaimed))
                if has_other_result or not fits:
                    self.diverged = True
                    raise ReplayDivergedError
                return None
            self._unclaimed.discard(key.call_id)
            self.skip_within(key.call_id)
            return Effect.from_bytes(written)

    def skip_within(self, place: str) -> None:
        """Forget the calls that a tool, check or predicate made: a replay that knows its result does not call it."""
        if inner := self._within.pop(place, None):
            self._unclaimed = self._unclaimed.difference(inner)  # a new set: another thread may read this one

    @property
    def holds_more(self) -> bool:
        """True if results of tools are left that the replay did not request."""
        return bool(self._unclaimed)

    def has_effect_in(self, step: int) -> bool:
        """True if an effect of this step of the turn's own agent is left."""
        return any(key.call_id.startswith(f"{step}.") for key in self._results)

    def was_begun(self, key: CallKey) -> bool:
        """True if this call was in flight when an earlier attempt ended.

        Its arguments may have differed (the time, say): it may have had its effect all the same.
        """
        begun = self._begun.get(key.call_id)
        return begun is not None and begun[:3] == key[:3]

    def begin(self, key: CallKey, *, is_harmless: bool = False) -> None:
        """Journal the start of a call. Unless it is harmless, wait until this and all earlier writes are stored."""
        if self._attempt > 1:
            self._write(journal_key("again" if self.was_begun(key) else "first", self._attempt, key), b"")
        if is_harmless:
            self._write(journal_key("begun", key), b"")
        else:
            self._bridge.flush((journal_key("begun", key), b""))

    def write(self, key: CallKey, effect: Effect) -> None:
        self._bridge.emit(None, None, self.entry(key, effect))

    def entry(self, key: CallKey, effect: Effect) -> tuple[str, bytes]:
        if self._attempt > 1:
            effect.attempt = self._attempt
        return str(key), effect.to_bytes()

    def write_request(self, call_id: str, number: int, data: bytes) -> None:
        """Write a request for a person's decision on a call. A call may have several."""
        self._write(journal_key("asked", call_id, number), data)

    def once(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return the choice under this name. The first attempt makes it, without the lock: an author's code may run."""
        if name not in self._choices:
            made = make()
            with self._lock:
                if name not in self._choices:
                    self._choices[name] = made
                    self._write(journal_key("once", name), made)
        return self._choices[name]

    def chosen(self, name: str) -> bytes | None:
        """Return the choice of an earlier attempt. It writes no effect: that would hide a crash from the count."""
        return self._choices.get(name)

    def _write(self, key: str, data: bytes) -> None:
        self._bridge.emit(None, None, (key, data))


def digest_of(name: str, arguments: Any, stored_classes: Collection[type] = (), max_bytes: int = MAX_BYTES) -> str:
    """Hash a call. The order of named arguments does not matter.

    Of arguments that are larger, or have no encoding, only the JSON form counts.
    """
    call = [name, arguments]
    try:
        data = _sorted_json(call).encode()
    except (TypeError, ValueError):
        try:
            data = dumps(call, stored_classes, in_order=True, max_bytes=max_bytes)
        except CodecError:
            data = _ADDRESS.sub(b"", dumps(json_form(call), in_order=True))
    return hashlib.sha256(data).hexdigest()
