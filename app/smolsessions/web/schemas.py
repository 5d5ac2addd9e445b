"""Requests and answers on the wire."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from smolsessions.core.metadata import MAX_OBJECT_BYTES, storable
from smolsessions.core.policies import Rules, policy_data
from smolsessions.core.records import OnBusy, StepType

if TYPE_CHECKING:
    from collections.abc import Callable

    from smolsessions.core.records import (
        AgentInfo,
        Conversation,
        LeftOut,
        Page,
        PromptSize,
        PrunePreview,
        StepImage,
        ToolCall,
        Turn,
    )

ConversationId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


MOST_FIELDS = 50


# Names are left to `storable`: an error that holds half a character as a name could not be told.
JsonObject = Annotated[dict[Any, Any], AfterValidator(partial(storable, most_bytes=MAX_OBJECT_BYTES))]
AgentName = Annotated[str, Field(min_length=1, max_length=64)]


class Body(BaseModel):
    """A request's body. Very many fields are refused before each one of them becomes an error of its own."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > MOST_FIELDS:
            raise ValueError("has far too many fields")
        return data


class TurnRequest(Body):
    """One user message."""

    model_config = ConfigDict(str_min_length=1, json_schema_extra={"examples": [{"message": "What is 12 * 7?"}]})

    message: str = Field(description="What the user says; not only white space.")
    conversation_id: ConversationId | None = Field(None, description="Goes on with this conversation; else a new one.")
    agent: AgentName | None = Field(None, description="Agent of a new conversation; an existing one has its own.")
    images: list[str] = Field(
        [], max_length=16, fail_fast=True, description="PNG, JPEG, GIF or WebP: base64, or a data: URL of it."
    )
    additional_args: JsonObject = Field(
        {},
        description="Variables for the agent. They become part of the prompt. At most 1 MiB of JSON; a body over "
        "64 KiB has at most 10000 values.",
    )
    max_steps: int | None = Field(None, ge=1, description="Most steps of this turn, instead of the agent's own.")
    deadline_s: float | None = Field(
        None, gt=0, description="Longest time for this turn from its start, in seconds, instead of the service's own."
    )
    reset: bool = Field(False, description="Hide all earlier steps from the model, from here on.")
    on_busy: OnBusy = Field(
        "reject",
        description="Where a turn of the conversation runs: `reject` (409), `enqueue` (wait), or stop it and wait: "
        "`interrupt` keeps its finished steps, `rollback` drops them.",
    )
    include_internal_tools: bool = Field(False, description="Name python_interpreter and final_answer too.")
    metadata: JsonObject = Field({}, description="Of the conversation, if this turn starts it. At most 64 KiB of JSON.")


_POLICY = "What bounds the memory that the model is shown; null: the agent's own policy."
_TTL = "Seconds after its last use when the conversation is deleted; null: it is kept."
Ttl = Annotated[float, Field(ge=1, le=10 * 366 * 86400)]


class NewConversation(Body):
    """A conversation to be made."""

    id: ConversationId | None = None
    agent: AgentName | None = None
    metadata: JsonObject = {}
    policy: Rules | None = Field(None, description=_POLICY)
    ttl_s: Ttl | None = Field(None, description=_TTL)


class ConversationPatch(Body):
    """A JSON merge patch (RFC 7396): what is not named stays as it is."""

    metadata: JsonObject = Field({}, description="null takes a member away, objects merge, all else replaces.")
    policy: Rules | None = Field(None, description=_POLICY)
    ttl_s: Ttl | None = Field(None, description=_TTL)

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("names nothing to change: metadata, policy or ttl_s")
        return self


class PruneRequest(Body):
    """What is to be taken out of the memory."""

    policy: Rules | None = Field(None, description="What it drops is archived; null: the conversation's own policy.")
    dry_run: bool = Field(False, description="Only say what would change.")
    destroy: bool = Field(
        False, description="Delete what the policy drops, and all that is archived or rolled back, for good."
    )


class RollbackRequest(Body):
    """Where to go back to."""

    turn: int = Field(ge=0, le=2**31, description="The last turn that is to count; 0: none.")


class ForkRequest(Body):
    """Where a new conversation branches off."""

    turn: int | None = Field(None, ge=0, le=2**31, description="The last turn that it is to have; null: the last one.")
    metadata: JsonObject | None = Field(None, description="Of the new conversation; null: as this one's.")


class AgentVersionView(BaseModel):
    name: str
    kind: str
    smolagents: str


class ToolCallView(BaseModel):
    call_id: str
    name: str
    arguments: Any
    agent: str
    step_id: str
    internal: bool
    ok: bool
    duration_ms: float
    repeated: bool = Field(description="Its process ended while it ran, so it was made again.")


class UsageView(BaseModel):
    input_tokens: int
    output_tokens: int


class TimingView(BaseModel):
    submitted_at: datetime
    started_at: datetime | None = Field(description="Null for a turn that waits, or that ended before it started.")
    finished_at: datetime | None
    queued_ms: float | None = Field(description="Until its start, or its end if it never started.")
    duration_ms: float | None = Field(description="From its start to its end; 0 if it never started.")


class LeftOutView(BaseModel):
    steps: int
    shortened: int
    characters: int
    tokens: int


class FailureView(BaseModel):
    code: str
    message: str
    retryable: bool


class StepImageView(BaseModel):
    width: int
    height: int
    url: str


class TurnView(BaseModel):
    """A turn. What is not known yet (reply, output, state, error) is null."""

    conversation_id: str
    turn: int
    status: Literal["queued", "running", "finished", "failed", "cancelled"]
    agent: AgentVersionView
    message: str
    images: list[StepImageView] = Field(
        description="Those that came with the message; empty until the turn has started, and where they were destroyed."
    )
    reply: str | None
    output: Any
    output_images: list[StepImageView] = Field(
        description="Those that the answer is, or that its lists and objects hold; 16 at most."
    )
    tool_call_names: list[str]
    tool_calls: list[ToolCallView]
    state: Literal["success", "max_steps_error"] | None
    steps: int
    usage: UsageView
    timing: TimingView
    attempts: int
    dropped_variables: list[str] = Field(
        description="Variables of the agent's code, and keys of its state, that could not be kept."
    )
    left_out: LeftOutView | None = Field(description="What the memory policy left out of the turn's last prompt.")
    rolled_back: bool = Field(
        description="Its steps were dropped: by a turn with `on_busy: rollback`, or a rollback to a turn before it."
    )
    error: FailureView | None


class ForkedFromView(BaseModel):
    conversation_id: str
    turn: int


class ConversationView(BaseModel):
    id: str
    agent: str
    metadata: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    turns: int
    step_counts: dict[str, int]
    running_turn: int | None
    queued_turns: int
    archived_steps: int = Field(description="On record, and not in the memory: archived by a prune, or rolled back.")
    policy: Rules | None = Field(description=_POLICY)
    ttl_s: float | None = Field(description=_TTL)
    expires_at: datetime | None
    forked_from: ForkedFromView | None


class WeightView(BaseModel):
    steps: int
    characters: int
    tokens: int
    tokens_are: Literal["reported", "estimated"] = Field(description="Whether the model reports them.")


class PruneView(BaseModel):
    """What a prune changes in the prompt; `conversation` is null where nothing was changed yet."""

    dry_run: bool
    before: WeightView
    after: WeightView
    left_out: int = Field(description="Steps that the policy drops.")
    shortened: int = Field(description="Steps that the policy would show cut; a prune leaves them as they are.")
    archived: int
    destroyed: int
    conversation: ConversationView | None


class MessageView(BaseModel):
    role: str
    content: str | list[dict[str, Any]] | None = Field(description="Texts, and images as links.")


class MessagesView(BaseModel):
    """What the model is shown next, but for the next task."""

    messages: list[MessageView]
    left_out: LeftOutView | None


class AgentView(BaseModel):
    name: str
    kind: str
    smolagents: str
    description: str
    tools: list[str]
    max_steps: int
    code_runs_in: Literal["process", "thread", "remote"] | None = Field(
        description="Where a CodeAgent's code runs (docs/security.md); a remote executor's calls of tools are not seen."
    )
    code_confinement: Literal["namespaces", "landlock", "uid", "none"] | None = Field(
        description="The strongest means that confines the code of the agent, and of those that it manages, in this "
        "process (docs/security.md). Null without such code, and in a process that plays no turns."
    )
    policy: Rules = Field(description="What bounds the memory that its model is shown.")
    default: bool


class StepView(BaseModel):
    """A step of the memory. More members by type: task; plan; model_output, code, observations, output, error; text."""

    model_config = ConfigDict(extra="allow")

    index: int
    turn: int
    type: StepType
    hidden: bool = Field(description="A later turn's reset hides it from the model.")
    archived: bool = Field(description="A prune took it out of the memory.")
    rolled_back: bool = Field(description="A rollback took it out of the memory.")
    unanswered: bool = Field(False, description="Of a task: its turn ended before its first step was finished.")


class TurnPage(BaseModel):
    items: list[TurnView]
    next_cursor: str | None


class ConversationPage(BaseModel):
    items: list[ConversationView]
    next_cursor: str | None


class StepPage(BaseModel):
    items: list[StepView]
    next_cursor: str | None


class AgentList(BaseModel):
    items: list[AgentView]


def turn_view(turn: Turn, *, internal: bool = False) -> dict[str, Any]:
    """Give a turn as JSON data, without the internal tools unless asked."""
    outcome = turn.outcome
    calls = [call for call in outcome.tool_calls if internal or not call.internal] if outcome else []
    return {
        "conversation_id": turn.ref.id,
        "turn": turn.number,
        "status": turn.status,
        "agent": {"name": turn.agent.name, "kind": turn.agent.kind, "smolagents": turn.agent.smolagents},
        "message": turn.message,
        "images": [_image_view(turn, image) for image in turn.images],
        "reply": outcome.reply if outcome else None,
        "output": outcome.output if outcome else None,
        "output_images": [_image_view(turn, image) for image in outcome.images] if outcome else [],
        "tool_call_names": [call.name for call in calls],
        "tool_calls": [_call_view(call) for call in calls],
        "state": outcome.state if outcome else None,
        "steps": outcome.steps if outcome else 0,
        "usage": {
            "input_tokens": outcome.usage.input_tokens if outcome else 0,
            "output_tokens": outcome.usage.output_tokens if outcome else 0,
        },
        "timing": _timing_view(turn),
        "attempts": turn.attempts,
        "dropped_variables": list(outcome.dropped_variables) if outcome else [],
        "left_out": left_out_view(outcome.left_out) if outcome else None,
        "rolled_back": turn.rolled_back or bool(outcome and outcome.error and outcome.error.code == "rolled_back"),
        "error": {
            "code": outcome.error.code,
            "message": outcome.error.message,
            "retryable": outcome.error.retryable,
        }
        if outcome and outcome.error
        else None,
    }


def conversation_view(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": conversation.ref.id,
        "agent": conversation.agent,
        "metadata": conversation.metadata,
        "created_at": time_view(conversation.created_at),
        "updated_at": time_view(conversation.updated_at),
        "turns": conversation.turns,
        "step_counts": {kind: conversation.step_counts.get(kind, 0) for kind in get_args(StepType)},
        "running_turn": conversation.running_turn,
        "queued_turns": conversation.queued_turns,
        "archived_steps": conversation.archived_steps,
        "policy": None if conversation.policy is None else policy_data(conversation.policy),
        "ttl_s": conversation.ttl_s,
        "expires_at": time_view(conversation.expires_at),
        "forked_from": {"conversation_id": origin[0], "turn": origin[1]}
        if (origin := conversation.forked_from)
        else None,
    }


def left_out_view(left_out: LeftOut | None) -> dict[str, int] | None:
    if left_out is None:
        return None
    return {
        "steps": left_out.steps,
        "shortened": left_out.shortened,
        "characters": left_out.characters,
        "tokens": left_out.tokens,
    }


def prune_view(
    weighed: PrunePreview, count: int, conversation: Conversation | None, *, destroyed: bool
) -> dict[str, Any]:
    return {
        "dry_run": conversation is None,
        "before": _weight_view(weighed.before),
        "after": _weight_view(weighed.after),
        "left_out": len(weighed.left_out),
        "shortened": weighed.shortened,
        "archived": 0 if destroyed else count,
        "destroyed": count if destroyed else 0,
        "conversation": conversation and conversation_view(conversation),
    }


def message_view(conversation_id: str, message: dict[str, Any]) -> dict[str, Any]:
    """Give a message of the prompt, with its images as links."""
    content = message["content"]
    if isinstance(content, list):
        content = [
            {"type": "image", **image_view(conversation_id, part["name"], part["width"], part["height"])}
            if part["type"] == "image"
            else part
            for part in content
        ]
    return {"role": message["role"], "content": content}


def _weight_view(weight: PromptSize) -> dict[str, Any]:
    return {
        "steps": weight.steps,
        "characters": weight.characters,
        "tokens": weight.tokens,
        "tokens_are": "estimated" if weight.is_estimate else "reported",
    }


def agent_view(info: AgentInfo, confinement: str | None, *, default: bool) -> dict[str, Any]:
    return {
        "name": info.version.name,
        "kind": info.version.kind,
        "smolagents": info.version.smolagents,
        "description": info.description,
        "tools": list(info.tools),
        "max_steps": info.max_steps,
        "code_runs_in": info.code_runs_in,
        "code_confinement": confinement,
        "policy": policy_data(info.policy),
        "default": default,
    }


def image_view(conversation_id: str, name: str, width: int, height: int) -> dict[str, Any]:
    """Return an image that a step holds: its size in pixels and its address."""
    return {"width": width, "height": height, "url": f"/conversations/{conversation_id}/images/{name}"}


def step_view(conversation_id: str, step: dict[str, Any]) -> dict[str, Any]:
    """Give a step as the agents describe it, with its images as links."""
    images = [image_view(conversation_id, **image) for image in step.get("images", ())]
    return {**step, "images": images} if "images" in step else step


def page_view(page: Page[Any], view: Callable[[Any], Any]) -> dict[str, Any]:
    return {"items": [view(item) for item in page.items], "next_cursor": page.next_cursor}


def _image_view(turn: Turn, image: StepImage) -> dict[str, Any]:
    return image_view(turn.ref.id, image.name, image.width, image.height)


def _call_view(call: ToolCall) -> dict[str, Any]:
    return {
        "call_id": call.call_id,
        "name": call.name,
        "arguments": call.arguments,
        "agent": call.agent,
        "step_id": call.step_id,
        "internal": call.internal,
        "ok": call.ok,
        "duration_ms": call.duration_ms,
        "repeated": call.repeated,
    }


def _timing_view(turn: Turn) -> dict[str, Any]:
    timing = turn.timing
    started_at = timing.started_at or timing.finished_at  # one that never started waited until its end
    return {
        "submitted_at": time_view(timing.submitted_at),
        "started_at": time_view(timing.started_at),
        "finished_at": time_view(timing.finished_at),
        "queued_ms": _between(timing.submitted_at, started_at),
        "duration_ms": _between(started_at, timing.finished_at),
    }


def time_view(seconds: float | None) -> str | None:
    """Give Unix seconds as ISO 8601 in UTC, to the millisecond."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(max(0.0, end - start) * 1000, 3)
