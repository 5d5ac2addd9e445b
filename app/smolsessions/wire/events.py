"""Events of a turn, as the `data` of server-sent events (docs/events.md)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from smolsessions.wire import turns
from smolsessions.wire.words import Channel, DecisionWord, EventType, StepKind, Time

KIND = "Kind of event, also the `event:` line."
MODEL_CALL = "Id of the model call, unique in the turn."


class TurnEvent(BaseModel):
    """Members of all events. An event of an unknown type has these and others."""

    model_config = ConfigDict(extra="allow")

    type: EventType
    seq: int = Field(description="1, 2, 3 … in the turn; the SSE id.")
    conversation_id: str = Field(description="Id of the turn's conversation.")
    turn: int = Field(description="Number of the turn.")
    attempt: int = Field(description="Attempt at the turn that wrote it. 0 before the first one.")


class StepEvent(TurnEvent):
    """Members of events inside a step."""

    step_id: str = Field(description=turns.STEP_ID)
    step: int = Field(description="Number of the step in its agent's run, from 1.")
    agent: str = Field(description=turns.AGENT_PATH)
    parent_call_id: str | None = Field(description="The tool call that called this agent. Null: the turn's own agent.")


class TurnQueued(TurnEvent):
    """The turn was accepted."""

    type: Literal["turn.queued"] = Field(description=KIND)


class TurnStarted(TurnEvent):
    """A worker runs the turn. A higher `attempt` follows if its process ends."""

    type: Literal["turn.started"] = Field(description=KIND)
    at: Time = Field(description="Time of the worker's clock.")


class StepStarted(StepEvent):
    """An agent begins a step."""

    type: Literal["step.started"] = Field(description=KIND)
    kind: StepKind


class MessageDelta(StepEvent):
    """Part of the model's text in its call `call_id`."""

    type: Literal["message.delta"] = Field(description=KIND)
    call_id: str = Field(description=MODEL_CALL)
    channel: Channel
    text: str = Field(description="The next piece. Pieces of one `call_id`, `channel` and `index` are to be joined.")
    index: int | None = Field(None, description="Place of the tool call, for the channel `arguments`.")
    name: str | None = Field(None, description="Name of the tool, for the channel `arguments`.")


class MessageRestarted(StepEvent):
    """The model call starts again: discard the text of its `call_id`."""

    type: Literal["message.restarted"] = Field(description=KIND)
    call_id: str = Field(description=MODEL_CALL)


class ToolCalled(StepEvent):
    """A tool, a managed agent or a code block is about to run."""

    type: Literal["tool.call"] = Field(description=KIND)
    call_id: str = Field(description=turns.CALL_ID)
    name: str = Field(description="Name of the tool or of the managed agent.")
    arguments: Any = Field(description="JSON with long texts cut.")
    internal: bool = Field(description=turns.INTERNAL)
    repeated: bool = Field(description="True if an earlier attempt started this call, and ended before its result.")


class ToolReturned(StepEvent):
    """The call returned (`result`, cut) or failed (`error`, cut)."""

    type: Literal["tool.result"] = Field(description=KIND)
    call_id: str = Field(description=turns.CALL_ID)
    name: str = Field(description="Name of the tool or of the managed agent.")
    internal: bool = Field(description=turns.INTERNAL)
    ok: bool = Field(description="True if the call returned.")
    result: str | None = Field(description="Its result as text, cut after 2,000 characters. Null after an error.")
    error: turns.Failure | None = Field(description="Its error, cut after 2,000 characters. Null if it returned.")
    duration_ms: float = Field(description="Duration of the call in milliseconds.")
    repeated: bool = Field(description="True if the call was made again, because a process ended during the first.")


class StepFinished(StepEvent):
    """A step is over. A step of the turn's own agent is stored now."""

    type: Literal["step.finished"] = Field(description=KIND)
    kind: StepKind
    error: turns.Failure | None = Field(
        description="Its error, as its agent's model sees it, cut after 2,000 characters."
    )
    observations: str | None = Field(description="Text that the model is shown next, cut after 2,000 characters.")
    images: list[turns.Image] = Field(
        description="Images that the model is shown next, and those of the step's output."
    )
    files: list[turns.File] = Field(description="Files and audio of the step's output.")
    is_final_answer: bool = Field(description="True if its output is the answer of its agent.")
    usage: turns.Usage | None = Field(description="Tokens of its model calls, as far as the model reports them.")
    duration_ms: float | None = Field(description="Milliseconds that it took.")


class MessageSteered(TurnEvent):
    """The agent reads another message in this turn (`on_busy: steer`)."""

    type: Literal["message.steered"] = Field(description=KIND)
    from_turn: int = Field(description="Number of the turn that the message was.")
    message: str = Field(description="The message, cut after 2,000 characters.")
    images: list[turns.Image] = Field(description="Its images.")


class TurnWaiting(TurnEvent):
    """The turn waits for a person. It goes on after the answers, however late they come."""

    type: Literal["turn.waiting"] = Field(description=KIND)
    requests: list[turns.InputRequest] = Field(description="The open requests.")


class InputAnswer(BaseModel):
    """Person's answer to one request."""

    request_id: str = Field(description="Id of the request.")
    decision: DecisionWord
    arguments: dict[str, Any] | None = Field(description="Arguments in place of those that were asked. Null: the same.")
    reason: str | None = Field(description="Reason for the agent's model. Null: none.")
    text: str | None = Field(description="Answer to a question. Null for an approval.")
    error: str | None = Field(description="Reason why the client's tool has no result. Null for others.")
    by: turns.Answerer | None = Field(description="Who answered.")
    at: Time = Field(description="Time of the answer.")


class InputAnswered(TurnEvent):
    """A person answered. Without open requests the turn goes on."""

    type: Literal["input.answered"] = Field(description=KIND)
    answers: list[InputAnswer] = Field(description="The new answers.")


class TurnEnded(TurnEvent):
    """The final event. It holds the whole turn."""

    type: Literal["turn.finished", "turn.failed", "turn.cancelled"] = Field(description=KIND)
    result: turns.Turn = Field(description="The turn at its end.")


KnownEvent = Annotated[
    TurnQueued
    | TurnStarted
    | StepStarted
    | MessageDelta
    | MessageRestarted
    | ToolCalled
    | ToolReturned
    | StepFinished
    | MessageSteered
    | TurnWaiting
    | InputAnswered
    | TurnEnded,
    Field(discriminator="type"),
]
"""Events that this release knows."""
MODELS_OF_TYPES: dict[str, type[TurnEvent]] = {
    word: model
    for model in get_args(get_args(KnownEvent)[0])
    for word in get_args(model.model_fields["type"].annotation)
}


def event_of(data: str | bytes) -> TurnEvent:
    """Return an event from its JSON. An event of an unknown type is a plain `TurnEvent`."""
    event = TurnEvent.model_validate_json(data)
    return MODELS_OF_TYPES[event.type].model_validate_json(data) if event.type in MODELS_OF_TYPES else event
