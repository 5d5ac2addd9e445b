"""Events of a turn: a closed union of frozen records. Each is written once, to the turn's log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal, get_args

from smolsessions.core.frozen import record
from smolsessions.core.media import StepFile, StepImage
from smolsessions.core.records import Failure, ToolCall, Turn, Usage
from smolsessions.core.requests import Answer, InputRequest

MessageChannel = Literal["answer", "thought", "code", "plan", "arguments"]
StepKind = Literal["action", "planning"]


@record
class StepPlace:
    """Step of an event.

    `step_id` is unique in the turn, `step` counts in its agent's run, `agent` is the agent's path, `parent_call_id` the
    tool call that called that agent.
    """

    step_id: str
    step: int
    agent: str
    parent_call_id: str | None = None
    attempt: int = 1


@record
class TurnQueued:
    """The turn was accepted."""

    type: ClassVar[Literal["turn.queued"]] = "turn.queued"


@record
class TurnStarted:
    """A worker runs the turn. `attempt` counts from 1, `at` is the worker's clock in Unix seconds."""

    type: ClassVar[Literal["turn.started"]] = "turn.started"
    attempt: int
    at: float


@record
class StepStarted:
    """An agent begins a step."""

    type: ClassVar[Literal["step.started"]] = "step.started"
    where: StepPlace
    kind: StepKind


@record
class MessageDelta:
    """Part of the model's text in its call `call_id`. `index` and `name` name the tool call of `arguments`."""

    type: ClassVar[Literal["message.delta"]] = "message.delta"
    where: StepPlace
    call_id: str
    channel: MessageChannel
    text: str
    index: int | None = None
    name: str | None = None

    @property
    def message(self) -> tuple[str, str, int | None]:
        """The text that this is a part of."""
        return self.call_id, self.channel, self.index


@record
class MessageRestarted:
    """A model call is repeated: the text of its `call_id` so far is void."""

    type: ClassVar[Literal["message.restarted"]] = "message.restarted"
    where: StepPlace
    call_id: str


@record
class ToolCalled:
    """A tool, a managed agent or a code block is about to run. `arguments` is JSON with long texts cut.

    `repeated`: an earlier attempt started this call too, and its process ended before the result.
    """

    type: ClassVar[Literal["tool.call"]] = "tool.call"
    where: StepPlace
    call_id: str
    name: str
    arguments: Any
    internal: bool
    repeated: bool = False


@record
class ToolReturned:
    """The call returned (`result`, cut) or failed (`error`, cut)."""

    type: ClassVar[Literal["tool.result"]] = "tool.result"
    where: StepPlace
    call_id: str
    name: str
    internal: bool
    ok: bool
    result: str | None
    error: str | None
    duration_ms: float
    repeated: bool = False


@record
class StepError:
    """Error of a step, as its agent's model sees it: smolagents' class of error and its message, cut."""

    type: str
    message: str

    @property
    def failure(self) -> Failure:
        """The error as callers see it."""
        return Failure(CODES_OF_STEPS.get(self.type, "agent_error"), self.message)


CODES_OF_STEPS = {
    "AgentError": "agent_error",
    "AgentExecutionError": "execution_error",
    "AgentGenerationError": "model_error",
    "AgentMaxStepsError": "max_steps_error",
    "AgentParsingError": "parsing_error",
    "AgentToolCallError": "tool_call_error",
    "AgentToolExecutionError": "tool_error",
}


@record
class StepFinished:
    """A step is over. A step of the turn's own agent is stored now. `observations` is cut."""

    type: ClassVar[Literal["step.finished"]] = "step.finished"
    where: StepPlace
    kind: StepKind
    error: StepError | None
    observations: str | None
    images: tuple[StepImage, ...]
    is_final_answer: bool
    usage: Usage | None
    duration_ms: float | None
    files: tuple[StepFile, ...] = ()


@record
class MessageSteered:
    """The agent reads the message of turn `from_turn`, which has ended. `message` is cut."""

    type: ClassVar[Literal["message.steered"]] = "message.steered"
    attempt: int
    from_turn: int
    message: str
    images: tuple[StepImage, ...] = ()


@record
class TurnWaiting:
    """The turn waits for a person: these requests are open. It holds no thread meanwhile."""

    type: ClassVar[Literal["turn.waiting"]] = "turn.waiting"
    attempt: int
    requests: tuple[InputRequest, ...]


@record
class InputAnswered:
    """A person answered. Without open requests the turn goes on, in attempt `attempt` + 1."""

    type: ClassVar[Literal["input.answered"]] = "input.answered"
    attempt: int
    answers: tuple[Answer, ...]


@record
class TurnEnded:
    """The final event, exactly one: `turn.finished`, `turn.failed` or `turn.cancelled`. It holds the whole turn."""

    result: Turn

    @property
    def type(self) -> Literal["turn.finished", "turn.failed", "turn.cancelled"]:
        assert self.result.outcome, "a turn that ended has an outcome"
        return FINAL[self.result.outcome.status]


StepEvent = StepStarted | MessageDelta | MessageRestarted | ToolCalled | ToolReturned | StepFinished | MessageSteered
PersonEvent = TurnWaiting | InputAnswered
Event = TurnQueued | TurnStarted | StepEvent | PersonEvent | TurnEnded

FINAL: dict[Literal["finished", "failed", "cancelled"], Literal["turn.finished", "turn.failed", "turn.cancelled"]] = {
    "finished": "turn.finished",
    "failed": "turn.failed",
    "cancelled": "turn.cancelled",
}
EVENT_TYPES = (*(kind.type for kind in get_args(TurnQueued | TurnStarted | StepEvent | PersonEvent)), *FINAL.values())


@record
class Logged:
    """Event with its place in the turn's log. `seq` counts from 1."""

    seq: int
    event: Event


@record
class ReplayState:
    """Earlier attempts at a turn.

    They are the journal's `effects` by key, the keys of begun calls, the log's `events` and the finished `steps`.
    """

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
