"""Conversation → warm session, so that a turn that follows another one need not rebuild its agent."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smolsessions.core.agent_ports import Session
    from smolsessions.core.records import Ref


MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Resting:
    session: Session
    version: bytes
    since: float
    held_bytes: int


class SessionPool:
    """Keeps at most `most` sessions with `most_mb`, none longer than `idle_s` seconds, and none that plays."""

    def __init__(self, most: int, idle_s: float, most_mb: float) -> None:
        self._most = most
        self._most_bytes = most_mb * MB
        self._held_bytes = 0
        self._idle_s = idle_s
        self._resting: OrderedDict[Ref, _Resting] = OrderedDict()

    def __len__(self) -> int:
        return len(self._resting)

    def check_out(self, ref: Ref, version: bytes) -> Session | None:
        """Give the warm session of exactly these steps; one of other steps (another process wrote) is let go."""
        resting = self._take(ref) if ref in self._resting else None
        if resting and resting.version == version:
            return resting.session
        if resting:
            resting.session.close()
        return None

    def check_in(self, ref: Ref, version: bytes, session: Session) -> None:
        """Take a session back whose own turn was committed as finished; `version` is what that commit made."""
        if ref in self._resting:
            self._let_go(ref)
        self._resting[ref] = _Resting(session, version, time.monotonic(), session.held_bytes)
        self._held_bytes += session.held_bytes
        while len(self._resting) > self._most or self._held_bytes > self._most_bytes:
            self._let_go(next(iter(self._resting)))

    def evict_idle(self) -> None:
        """Let go of what nobody has used for long."""
        before = time.monotonic() - self._idle_s
        while self._resting and next(iter(self._resting.values())).since < before:
            self._let_go(next(iter(self._resting)))

    def clear(self) -> None:
        """Let go of all."""
        for ref in list(self._resting):
            self._let_go(ref)

    def _let_go(self, ref: Ref) -> None:
        self._take(ref).session.close()

    def _take(self, ref: Ref) -> _Resting:
        resting = self._resting.pop(ref)
        self._held_bytes -= resting.held_bytes
        return resting
