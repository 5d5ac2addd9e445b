"""A replay tells all again; what earlier attempts have shown already is not shown twice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smolsessions.core.events import (
    MessageDelta,
    MessageRestarted,
    StepFinished,
    StepStarted,
    ToolCalled,
    ToolReturned,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smolsessions.core.events import Event, StepEvent

    Message = tuple[str, str, int | None]


class ReplayFilter:
    """What a turn's log holds, and how much of each message is still to be told."""

    def __init__(self, shown: Iterable[Event]) -> None:
        self._shown: set[tuple[type, str]] = set()
        self._texts: dict[Message, int] = {}
        for event in shown:
            if isinstance(event, MessageDelta):
                message = _message_of(event)
                self._texts[message] = self._texts.get(message, 0) + len(event.text)
            elif isinstance(event, MessageRestarted):
                self.forget(event.call_id)
            elif name := _name_of(event):
                self._shown.add(name)

    def unseen(self, event: StepEvent) -> StepEvent | None:
        """Give of an event what nobody has seen."""
        if isinstance(event, MessageDelta):
            return self._rest_of(event)
        name = _name_of(event)
        if name in self._shown:
            self._shown.discard(name)
            return None
        return event

    def _rest_of(self, event: MessageDelta) -> MessageDelta | None:
        message = _message_of(event)
        seen = self._texts.get(message, 0)
        if not seen:
            return event
        self._texts[message] = max(0, seen - len(event.text))
        return replace(event, text=event.text[seen:]) if len(event.text) > seen else None

    def forget(self, call_id: str) -> bool:
        """Void the text of a model call that is made again; return whether any was shown."""
        void = [message for message in self._texts if message[0] == call_id]
        for message in void:
            del self._texts[message]
        return bool(void)


def _message_of(event: MessageDelta) -> Message:
    return (event.call_id, event.channel, event.index)


def _name_of(event: Event) -> tuple[type, str] | None:
    if isinstance(event, StepStarted | StepFinished):
        return (type(event), event.where.step_id)
    return (type(event), event.call_id) if isinstance(event, ToolCalled | ToolReturned) else None
