"""Events as JSON data, and their schemas."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from smolsessions.core.events import (
    EVENT_TYPES,
    InputAnswered,
    Logged,
    MessageDelta,
    StepFinished,
    TurnEnded,
    TurnQueued,
    TurnStarted,
    TurnWaiting,
)
from smolsessions.core.records import Ref
from smolsessions.web.views import answer_view, data_of, file_views, image_views, requests_view, time_view, turn_view
from smolsessions.wire.events import KnownEvent, TurnEvent

_REF = "#/components/schemas/{model}"


def event_schemas() -> dict[str, Any]:
    """Return the schemas of events for the OpenAPI document. `Event` is the `data` of an SSE frame."""
    known = TypeAdapter[Any](KnownEvent).json_schema(ref_template=_REF)
    schemas: dict[str, Any] = known.pop("$defs")
    other = TurnEvent.model_json_schema(ref_template=_REF)
    other["properties"]["type"] |= {"not": {"enum": list(EVENT_TYPES)}, "examples": ["tool.progress"]}
    return {
        "Event": {
            "description": "One event of a turn (docs/events.md). A later release may add types: pass them over.",
            "anyOf": [{"$ref": _REF.format(model=name)} for name in ("KnownEvent", "OtherEvent")],
        },
        "KnownEvent": {"description": "An event of a type that this release has.", **known},
        "OtherEvent": {**other, "description": "An event of a type that a later release adds."},
        **schemas,
    }


def event_view(ref: Ref, turn: int, logged: Logged, *, internal: bool) -> dict[str, Any]:
    """Return an event as JSON data. `internal` includes internal tools in the final event's turn."""
    event = logged.event
    view: dict[str, Any] = {
        "type": event.type,
        "seq": logged.seq,
        "conversation_id": ref.id,
        "turn": turn,
        "attempt": 0,
    }
    if isinstance(event, TurnStarted):
        view |= {"attempt": event.attempt, "at": time_view(event.at)}
    elif isinstance(event, TurnEnded):
        view |= {"attempt": event.result.attempts, "result": turn_view(event.result, internal=internal)}
    elif isinstance(event, TurnWaiting):
        view |= {"attempt": event.attempt, "requests": requests_view(ref.id, event.requests)}
    elif isinstance(event, InputAnswered):
        view |= {"attempt": event.attempt, "answers": list(map(answer_view, event.answers))}
    elif not isinstance(event, TurnQueued):
        records: tuple[Any, Any] = event.where, event
        for record in records:
            for name in record.__slots__:
                view[name] = getattr(record, name)
        del view["where"]
        if isinstance(event, MessageDelta) and event.index is None:
            del view["index"], view["name"]
        elif isinstance(event, StepFinished):
            view["error"] = event.error and data_of(event.error)
            view["images"] = image_views(ref.id, event.images)
            view["files"] = file_views(ref.id, event.files) if event.files else []
            view["usage"] = event.usage and data_of(event.usage)
    return view
