"""Events as JSON data, and their schemas."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

from pydantic import BaseModel, Field, TypeAdapter, create_model

from smolsessions.core import events
from smolsessions.core.events import MessageDelta, StepFinished, TurnEnded, TurnQueued, TurnStarted, Where
from smolsessions.core.json_data import derived_from, fields_of
from smolsessions.web.views import StepImageView, TurnView, UsageView, data_of, image_views, time_view, turn_view

if TYPE_CHECKING:
    from smolsessions.core.events import Logged
    from smolsessions.core.records import Ref

_STEP = {name: field for name, field in fields_of(Where).items() if name != "attempt"}


class EventView(BaseModel):
    seq: int = Field(description="1, 2, 3 … in the turn; the SSE id.")
    conversation_id: str
    turn: int
    attempt: int


@derived_from(events.StepError)
class StepErrorView(BaseModel): ...


class TurnEndedView(EventView):
    type: Literal["turn.finished", "turn.failed", "turn.cancelled"]
    result: TurnView


def _model(event: type, doc: str | None = None, title: str | None = None, **replaced: Any) -> type[BaseModel]:
    """Derive the schema of an event. The fields of its step are on the wire beside its own."""
    own = fields_of(event, StepImage=StepImageView, Usage=UsageView, StepError=StepErrorView, Where=Where)
    step = _STEP if own.pop("where", None) else {}
    members = {**step, "type": (get_args(get_type_hints(event)["type"])[0], ...), **own, **replaced}
    return create_model(title or f"{event.__name__}View", __base__=EventView, __doc__=doc, **members)


_OF_ARGUMENTS = "`index` and `name` belong to the channel `arguments`."
_OPTIONAL: dict[str, Any] = {"index": (int | None, None), "name": (str | None, None)}
_MODELS: list[Any] = [
    _model(TurnQueued),
    _model(TurnStarted, at=(str, ...)),
    _model(events.StepStarted),
    _model(MessageDelta, _OF_ARGUMENTS, **_OPTIONAL),
    _model(events.MessageRestarted, "The model call starts again: discard the text of its `call_id`."),
    _model(events.ToolCalled, title="ToolCallEventView"),
    _model(events.ToolReturned, title="ToolResultView"),
    _model(StepFinished),
    TurnEndedView,
]
_EVENT: Any = Annotated[reduce(or_, _MODELS), Field(discriminator="type")]


def event_schemas() -> dict[str, Any]:
    """Return the schemas of events for the OpenAPI document. `Event` is the `data` of an SSE frame."""
    schema = TypeAdapter(_EVENT).json_schema(ref_template="#/components/schemas/{model}")
    schemas: dict[str, Any] = schema.pop("$defs")
    return {"Event": {"title": "Event", "description": "One event of a turn: docs/events.md.", **schema}, **schemas}


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
            view["usage"] = event.usage and data_of(event.usage)
    return view
