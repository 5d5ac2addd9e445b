"""Journal of one turn: effects are written before the agent sees them, and returned in a replay."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from typing import TYPE_CHECKING, Any

from smolsessions.agents.run.effects import Effect
from smolsessions.agents.run.failures import ReplayDivergedError
from smolsessions.agents.values import CodecError, canonical
from smolsessions.agents.values.json_forms import json_form

if TYPE_CHECKING:
    from collections.abc import Callable

    from smolsessions.core.agent_ports import EventBridge
    from smolsessions.core.replay_state import ReplayState

BEGUN = "begun:"
_TOOLS = ("tool:", "code:")
_ADDRESS = re.compile(rb" at 0x[0-9a-f]+")
MAX_KEY_BYTES = 1024 * 1024  # of the arguments that a key stands for


class Journal:
    """Effects by key. A key holds the place of a call, which a replay repeats, and a digest of its arguments."""

    def __init__(self, bridge: EventBridge, replay: ReplayState | None) -> None:
        self._bridge = bridge
        self._effects = dict(replay.effects) if replay else {}
        begun = [name.removeprefix(BEGUN) for name in replay.begun if name.startswith(BEGUN)] if replay else []
        self._begun = {call_of(key): _place_of(key) for key in begun}
        self._done = {call_of(key) for key in self._effects if key.startswith(_TOOLS)}
        self._lock = threading.Lock()
        self.diverged = False

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
            return None if written is None else Effect.from_bytes(written)

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
        return self._begun.get(call_of(key)) == _place_of(key)

    def begin(self, key: str, *, is_harmless: bool = False) -> None:
        """Journal the start of a call. Unless it is harmless, wait until this and all earlier writes are stored."""
        begun = (BEGUN + key, b"")
        if is_harmless:
            self._bridge.emit(None, None, begun)
        else:
            self._bridge.flush(begun)

    def write(self, key: str, effect: Effect) -> None:
        self._bridge.emit(None, None, (key, effect.to_bytes()))

    def once(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return the choice under this name. The first attempt makes it."""
        key = f"once:{name}"
        with self._lock:
            chosen = self._effects.get(key)
            if chosen is None:
                chosen = self._effects[key] = make()
                self._bridge.emit(None, None, (key, chosen))
            return chosen

    def chosen(self, name: str) -> bytes | None:
        """Return the choice of an earlier attempt, if any."""
        return self._effects.get(f"once:{name}")


def digest_of(name: str, arguments: Any) -> str:
    """Hash a call. The order of named arguments does not matter."""
    try:
        asked = json.dumps([name, arguments], sort_keys=True).encode()
    except (TypeError, ValueError):
        asked = _canonical([name, arguments])
    return hashlib.sha256(asked).hexdigest()[:16]


def _canonical(asked: Any) -> bytes:
    try:
        return canonical(asked, max_bytes=MAX_KEY_BYTES)
    except CodecError:
        return _ADDRESS.sub(b"", canonical(json_form(asked)))


def _place_of(name: str) -> str:
    """Return a key without its digest: place and name of the call."""
    return name.rpartition(":")[0]


def call_of(key: str) -> str:
    """Return the id of the call in a key."""
    return key.split(":", 2)[1]
