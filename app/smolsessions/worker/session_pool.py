"""Pool of warm sessions, so that a conversation's next turn need not rebuild its agent."""

from __future__ import annotations

import time
from collections import OrderedDict

from smolsessions.core.agent_ports import Session
from smolsessions.core.callers import Caller
from smolsessions.core.records import Ref

MB = 1024 * 1024


class SessionPool:
    """Sessions between turns: at most `most` with `most_mb` together, each for at most `idle_s` seconds."""

    def __init__(self, most: int, idle_s: float, most_mb: float) -> None:
        self._most = most
        self._most_bytes = most_mb * MB
        self._held_bytes = 0
        self._idle_s = idle_s
        self._warm: OrderedDict[Ref, tuple[Session, bytes, float]] = OrderedDict()
        """Session, tag of the head and time of its release, the oldest first."""

    def __len__(self) -> int:
        return len(self._warm)

    def acquire(self, ref: Ref, head_tag: bytes, caller: Caller) -> Session | None:
        """Return the session for this head and caller, or None. One for another head or caller is closed."""
        if ref not in self._warm:
            return None
        session, known = self._take(ref)
        if known == head_tag and session.serves(caller):
            return session
        session.close()
        return None

    def release(self, ref: Ref, head_tag: bytes, session: Session) -> None:
        """Keep a session after its turn was committed as finished. `head_tag` is that of the commit."""
        if ref in self._warm:
            self._evict(ref)
        self._warm[ref] = (session, head_tag, time.monotonic())
        self._held_bytes += session.held_bytes
        while len(self._warm) > self._most or self._held_bytes > self._most_bytes:
            self._evict(next(iter(self._warm)))

    def evict_idle(self) -> None:
        before = time.monotonic() - self._idle_s
        while self._warm and next(iter(self._warm.values()))[2] < before:
            self._evict(next(iter(self._warm)))

    def clear(self) -> None:
        for ref in list(self._warm):
            self._evict(ref)

    def _evict(self, ref: Ref) -> None:
        self._take(ref)[0].close()

    def _take(self, ref: Ref) -> tuple[Session, bytes]:
        session, head_tag, _ = self._warm.pop(ref)
        self._held_bytes -= session.held_bytes
        return session, head_tag
