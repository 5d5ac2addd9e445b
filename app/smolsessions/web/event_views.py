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
    ToolReturned,
    TurnEnded,
    TurnQueued,
    TurnWaiting,
)
from smolsessions.core.records import Failure, Ref
from smolsessions.web.views import media_views, request_views, turn_view, view_of
from smolsessions.wire.events import MODELS_OF_TYPES, InputAnswer, KnownEvent, TurnEvent

_CODE = "python_interpreter"
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
    own: dict[str, Any] = {"type": event.type, "seq": logged.seq, "conversation_id": ref.id, "turn": turn}
    if isinstance(event, TurnQueued):
        own["attempt"] = 0
    elif isinstance(event, TurnEnded):
        own |= {"attempt": event.result.attempts, "result": turn_view(event.result, internal=internal)}
    elif isinstance(event, TurnWaiting):
        own["requests"] = request_views(ref.id, event.requests)
    elif isinstance(event, InputAnswered):
        own["answers"] = [view_of(InputAnswer, answer) for answer in event.answers]
    elif isinstance(event, ToolReturned):
        code = "execution_error" if event.name == _CODE else "tool_error"
        own["error"] = None if event.error is None else Failure(code, event.error)
    elif isinstance(event, StepFinished):
        own |= {
            "error": event.error and event.error.failure,
            "images": media_views(ref.id, event.images),
            "files": media_views(ref.id, event.files),
        }
    where = (event.where,) if hasattr(event, "where") else ()
    view = view_of(MODELS_OF_TYPES[event.type], *where, event, **own)
    if isinstance(event, MessageDelta) and event.index is None:  # only pieces of a tool call's arguments have them
        del view["index"], view["name"]
    return view
