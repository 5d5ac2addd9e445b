"""Replay state: effects, events and steps of the earlier attempts at a turn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from smolsessions.core.events import ToolCalled, ToolReturned
from smolsessions.core.records import ToolCall

if TYPE_CHECKING:
    from smolsessions.core.events import Event


@dataclass(frozen=True, slots=True)
class ReplayState:
    """The journal's `effects` by key, the keys of begun calls, the log's `events` and the finished `steps`."""

    effects: dict[str, bytes]
    begun: frozenset[str]
    events: tuple[Event, ...]
    steps: tuple[bytes, ...]
    attachments: dict[str, bytes]

    @property
    def calls(self) -> dict[str, ToolCall]:
        """Tool calls in the log, by id, for a turn that is not replayed."""
        calls: dict[str, ToolCall] = {}
        for event in self.events:
            if isinstance(event, ToolCalled):
                where, made = event.where, (event.name, event.arguments)
                calls[event.call_id] = ToolCall(
                    event.call_id, *made, where.agent, where.step_id, event.internal, ok=False, duration_ms=0.0
                )
            elif isinstance(event, ToolReturned) and event.call_id in calls:
                calls[event.call_id] = replace(
                    calls[event.call_id], ok=event.ok, duration_ms=event.duration_ms, repeated=event.repeated
                )
        return calls
