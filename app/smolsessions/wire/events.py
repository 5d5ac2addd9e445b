"""Events of a turn, as the `data` of server-sent events (docs/events.md)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from smolsessions.wire.turns import Image, Turn, Usage
from smolsessions.wire.words import Channel, StepKind


class TurnEvent(BaseModel):
    """Members of all events. An event of an unknown type has these and others."""

    model_config = ConfigDict(extra="allow")

    type: str
    seq: int = Field(description="1, 2, 3 … in the turn; the SSE id.")
    conversation_id: str
    turn: int
    attempt: int = Field(description="Attempt at the turn that wrote it. 0 before the first one.")


class StepEvent(TurnEvent):
    """Members of events inside a step."""

    step_id: str = Field(description="Unique in the turn.")
    step: int = Field(description="Number of the step in its agent's run, from 1.")
    agent: str = Field(description="The agent's path: `manager/searcher`.")
    parent_call_id: str | None = Field(description="The tool call that called this agent. Null: the turn's own agent.")


class TurnQueued(TurnEvent):
    """The turn was accepted."""

    type: Literal["turn.queued"]


class TurnStarted(TurnEvent):
    """A worker runs the turn. A higher `attempt` follows if its process ends."""

    type: Literal["turn.started"]
    at: datetime


class StepStarted(StepEvent):
    """An agent begins a step."""

    type: Literal["step.started"]
    kind: StepKind


class MessageDelta(StepEvent):
    """Part of the model's text in its call `call_id`."""

    type: Literal["message.delta"]
    call_id: str
    channel: Channel
    text: str
    index: int | None = Field(None, description="Place of the tool call, for the channel `arguments`.")
    name: str | None = Field(None, description="Name of the tool, for the channel `arguments`.")


class MessageRestarted(StepEvent):
    """The model call starts again: discard the text of its `call_id`."""

    type: Literal["message.restarted"]
    call_id: str


class ToolCalled(StepEvent):
    """A tool, a managed agent or a code block is about to run."""

    type: Literal["tool.call"]
    call_id: str
    name: str
    arguments: Any = Field(description="JSON with long texts cut.")
    internal: bool
    repeated: bool = Field(description="True if an earlier attempt started this call, and ended before its result.")


class ToolReturned(StepEvent):
    """The call returned (`result`, cut) or failed (`error`, cut)."""

    type: Literal["tool.result"]
    call_id: str
    name: str
    internal: bool
    ok: bool
    result: str | None
    error: str | None
    duration_ms: float
    repeated: bool


class StepError(BaseModel):
    """Error of a step, as its agent's model sees it."""

    type: str = Field(description="smolagents' class of error.")
    message: str


class StepFinished(StepEvent):
    """A step is over. A step of the turn's own agent is stored now."""

    type: Literal["step.finished"]
    kind: StepKind
    error: StepError | None
    observations: str | None = Field(description="Cut.")
    images: list[Image]
    is_final_answer: bool
    usage: Usage | None
    duration_ms: float | None


class TurnEnded(TurnEvent):
    """The final event. It holds the whole turn."""

    type: Literal["turn.finished", "turn.failed", "turn.cancelled"]
    result: Turn


Event = Annotated[
    TurnQueued
    | TurnStarted
    | StepStarted
    | MessageDelta
    | MessageRestarted
    | ToolCalled
    | ToolReturned
    | StepFinished
    | TurnEnded,
    Field(discriminator="type"),
]
"""Events that this release knows."""
_OF_TYPE: dict[str, type[TurnEvent]] = {
    word: model for model in get_args(get_args(Event)[0]) for word in get_args(model.model_fields["type"].annotation)
}


def event_of(data: str | bytes) -> TurnEvent:
    """Return an event from its JSON. An event of an unknown type is a plain `TurnEvent`."""
    event = TurnEvent.model_validate_json(data)
    return _OF_TYPE[event.type].model_validate_json(data) if event.type in _OF_TYPE else event
