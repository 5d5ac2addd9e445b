"""Complete streams: an answer that was cut off is no answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from smolagents.models import ApiModel

from smolsessions.agents.config.schema import ModelTable
from smolsessions.agents.run.model_connections import current_call

_CONNECT_S = 10.0


class IncompleteAnswerError(ConnectionError):
    """An answer ended early: a stream before its finish reason, or a body before its end."""


def timeouts_of(table: ModelTable) -> tuple[float, float]:
    """Return the timeouts of connecting and of reading. `check_streams` replaces the latter after the first event."""
    return min(table.first_byte_s, _CONNECT_S), table.first_byte_s


def check_streams(model: ApiModel, timeout_s: float, is_complete: Callable[[Any], bool] = bool) -> None:
    """Raise if a stream ends early, and bound its pauses. Clients and smolagents would accept half an answer.

    `is_complete` is called with the client's stream after its end, if an event had a finish reason.
    """
    retryer = model.retryer

    def whole(events: Any) -> Iterator[Any]:
        finished = False
        try:
            for event in events:
                if call := current_call():
                    call.read_timeout_s = timeout_s
                finished = finished or any(choice.finish_reason for choice in event.choices)
                yield event
        finally:
            if close := getattr(events, "close", None):
                close()
        if not finished or not is_complete(events):
            raise IncompleteAnswerError("The stream ended without a finish reason.")

    def checked(create: Callable[..., Any], **arguments: Any) -> Any:
        answer = retryer(create, **arguments)
        return whole(answer) if arguments.get("stream") else answer

    model.retryer = checked  # type: ignore[assignment]  # all events of a stream pass through it
