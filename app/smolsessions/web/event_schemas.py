"""Events on the wire: their JSON and its description."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

from smolsessions.core.events import (
    MessageChannel,
    MessageDelta,
    MessageRestarted,
    StepFinished,
    StepKind,
    StepStarted,
    ToolCalled,
    ToolReturned,
    TurnEnded,
    TurnStarted,
    attempt_of,
)
from smolsessions.web.schemas import StepImageView, TurnView, UsageView, image_view, time_view, turn_view

if TYPE_CHECKING:
    from smolsessions.core.events import Event, Logged, StepEvent
    from smolsessions.core.records import Ref


class EventView(BaseModel):
    """What every event holds."""

    seq: int = Field(description="1, 2, 3 … in the turn; the SSE id.")
    conversation_id: str
    turn: int
    attempt: int


class StepEventView(EventView):
    """What every event inside a step holds."""

    step_id: str
    step: int
    agent: str
    parent_call_id: str | None


class TurnQueuedView(EventView):
    type: Literal["turn.queued"]


class TurnStartedView(EventView):
    type: Literal["turn.started"]
    at: str


class StepStartedView(StepEventView):
    type: Literal["step.started"]
    kind: StepKind


class MessageDeltaView(StepEventView):
    """`index` and `name` are there in the channel `arguments` alone."""

    type: Literal["message.delta"]
    call_id: str
    channel: MessageChannel
    text: str
    index: int | None = None
    name: str | None = None


class MessageRestartedView(StepEventView):
    """The model call is made again: throw away what was shown of its `call_id`."""

    type: Literal["message.restarted"]
    call_id: str


class ToolCallEventView(StepEventView):
    type: Literal["tool.call"]
    call_id: str
    name: str
    arguments: Any
    internal: bool
    repeated: bool


class ToolResultView(StepEventView):
    type: Literal["tool.result"]
    call_id: str
    name: str
    internal: bool
    ok: bool
    result: str | None
    error: str | None
    duration_ms: float
    repeated: bool


class StepErrorView(BaseModel):
    type: str
    message: str


class StepFinishedView(StepEventView):
    type: Literal["step.finished"]
    kind: StepKind
    error: StepErrorView | None
    observations: str | None
    images: list[StepImageView]
    is_final_answer: bool
    usage: UsageView | None
    duration_ms: float | None


class TurnEndedView(EventView):
    type: Literal["turn.finished", "turn.failed", "turn.cancelled"]
    result: TurnView


_EVENT: TypeAdapter[Any] = TypeAdapter(
    Annotated[
        TurnQueuedView
        | TurnStartedView
        | StepStartedView
        | MessageDeltaView
        | MessageRestartedView
        | ToolCallEventView
        | ToolResultView
        | StepFinishedView
        | TurnEndedView,
        Field(discriminator="type"),
    ]
)


def event_schemas() -> dict[str, Any]:
    """Describe the events: `Event` is what a frame's `data` holds."""
    schema = _EVENT.json_schema(ref_template="#/components/schemas/{model}")
    schemas: dict[str, Any] = schema.pop("$defs")
    return {"Event": {"title": "Event", "description": "One event of a turn: docs/events.md.", **schema}, **schemas}


def event_view(ref: Ref, turn: int, logged: Logged, *, internal: bool) -> dict[str, Any]:
    """Give an event as JSON data; `internal` keeps internal tools in the final event's turn."""
    event = logged.event
    common = {
        "type": event.type,
        "seq": logged.seq,
        "conversation_id": ref.id,
        "turn": turn,
        "attempt": attempt_of(event),
    }
    return {**common, **_own(ref, event, internal=internal)}


def _own(ref: Ref, event: Event, *, internal: bool) -> dict[str, Any]:  # noqa: PLR0911 - one for each kind
    match event:
        case TurnStarted():
            return {"at": time_view(event.at)}
        case TurnEnded():
            return {"result": turn_view(event.result, internal=internal)}
        case StepStarted():
            return {**_place(event), "kind": event.kind}
        case MessageDelta():
            call = {} if event.index is None else {"index": event.index, "name": event.name}
            return {**_place(event), "call_id": event.call_id, "channel": event.channel, "text": event.text, **call}
        case MessageRestarted():
            return {**_place(event), "call_id": event.call_id}
        case ToolCalled():
            told = {"internal": event.internal, "repeated": event.repeated}
            return {**_call(event), "arguments": event.arguments, **told}
        case ToolReturned():
            outcome = {"ok": event.ok, "result": event.result, "error": event.error}
            return {
                **_call(event),
                "internal": event.internal,
                **outcome,
                "duration_ms": event.duration_ms,
                "repeated": event.repeated,
            }
        case StepFinished():
            return {**_place(event), **_finished(ref, event)}
    return {}


def _place(event: StepEvent) -> dict[str, Any]:
    where = event.where
    return {
        "step_id": where.step_id,
        "step": where.step,
        "agent": where.agent,
        "parent_call_id": where.parent_call_id,
    }


def _call(event: ToolCalled | ToolReturned) -> dict[str, Any]:
    return {**_place(event), "call_id": event.call_id, "name": event.name}


def _finished(ref: Ref, event: StepFinished) -> dict[str, Any]:
    usage = event.usage
    return {
        "kind": event.kind,
        "error": {"type": event.error.type, "message": event.error.message} if event.error else None,
        "observations": event.observations,
        "images": [image_view(ref.id, image.name, image.width, image.height) for image in event.images],
        "is_final_answer": event.is_final_answer,
        "usage": {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens} if usage else None,
        "duration_ms": event.duration_ms,
    }
