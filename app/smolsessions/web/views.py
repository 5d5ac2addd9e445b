"""Answers as JSON data: their schemas, and functions that make them from records."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field

from smolsessions.core.json_data import derived_from
from smolsessions.core.policies import Rules
from smolsessions.core.records import (
    AgentVersion,
    Failure,
    LeftOut,
    Outcome,
    RunState,
    StepType,
    ToolCall,
    TurnStatus,
    Usage,
)
from smolsessions.web.requests import POLICY, TTL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from smolsessions.core.records import AgentInfo, Conversation, Page, PromptSize, PrunePreview, StepImage, Turn

M = TypeVar("M", bound=BaseModel)
NO_OUTCOME = Outcome("finished")
"""Values of a turn that is not over."""


@derived_from(AgentVersion)
class AgentVersionView(BaseModel): ...


@derived_from(ToolCall)
class ToolCallView(BaseModel):
    repeated: bool = Field(description="True if the call was made again, because a process ended during the first.")


@derived_from(Usage)
class UsageView(BaseModel): ...


@derived_from(LeftOut)
class LeftOutView(BaseModel): ...


@derived_from(Failure)
class FailureView(BaseModel): ...


class TimingView(BaseModel):
    submitted_at: datetime
    started_at: datetime | None = Field(description="Null for a turn that waits, or that ended before it started.")
    finished_at: datetime | None
    queued_ms: float | None = Field(description="Until its start, or until its end if it never started.")
    duration_ms: float | None = Field(description="From its start to its end. 0 if it never started.")


class StepImageView(BaseModel):
    width: int
    height: int
    url: str


class TurnView(BaseModel):
    """A turn. Fields that are not known yet (reply, output, state, error) are null."""

    conversation_id: str
    turn: int
    status: TurnStatus
    agent: AgentVersionView
    message: str
    images: list[StepImageView] = Field(
        description="Images of the message. Empty until the turn has started, and after they were destroyed."
    )
    reply: str | None
    output: Any
    output_images: list[StepImageView] = Field(
        description="Images in the answer, also inside its lists and objects. At most 16."
    )
    tool_call_names: list[str]
    tool_calls: list[ToolCallView]
    state: RunState | None
    steps: int
    usage: UsageView
    timing: TimingView
    attempts: int
    dropped_variables: list[str] = Field(
        description="Variables of the agent's code, and keys of its state, that could not be saved."
    )
    left_out: LeftOutView | None = Field(
        description="Steps and text that the memory policy left out of the turn's last prompt."
    )
    rolled_back: bool = Field(
        description="True if its steps were dropped: by a turn with `on_busy: rollback`, or by a rollback to a turn "
        "before it."
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
    archived_steps: int = Field(description="Steps on record that a prune or a rollback removed from the memory.")
    policy: Rules | None = Field(description=POLICY)
    ttl_s: float | None = Field(description=TTL)
    expires_at: datetime | None
    forked_from: ForkedFromView | None


class WeightView(BaseModel):
    steps: int
    characters: int
    tokens: int
    tokens_are: Literal["reported", "estimated"] = Field(description="`reported`: counted by the model.")


class PruneView(BaseModel):
    """Changes of a prune to the prompt. `conversation` is null if nothing was changed."""

    dry_run: bool
    before: WeightView
    after: WeightView
    left_out: int = Field(description="Number of steps that the policy drops.")
    shortened: int = Field(description="Number of steps that the policy would shorten. A prune does not change them.")
    archived: int
    destroyed: int
    conversation: ConversationView | None


class MessageView(BaseModel):
    role: str
    content: str | list[dict[str, Any]] | None = Field(description="Texts, and images as links.")


class MessagesView(BaseModel):
    """The model's next prompt, without the next task."""

    messages: list[MessageView]
    left_out: LeftOutView | None


class AgentView(AgentVersionView):
    description: str
    tools: list[str]
    max_steps: int
    code_runs_in: Literal["process", "thread", "remote"] | None = Field(
        description="Place where a CodeAgent's code runs (docs/security.md). Tool calls of a remote executor are not "
        "recorded."
    )
    code_confinement: Literal["namespaces", "landlock", "uid", "none"] | None = Field(
        description="Strongest confinement in this process of the code of the agent and of the agents that it manages "
        "(docs/security.md). Null without such code, and in a process that runs no turns."
    )
    policy: Rules = Field(description="Rules that bound the memory in its model's prompt.")
    default: bool


class StepView(BaseModel):
    """A step. Its type adds members: task, plan, text, model_output, code, observations, output or error."""

    model_config = ConfigDict(extra="allow")

    index: int
    turn: int
    type: StepType
    hidden: bool = Field(description="True if a later turn's reset hides it from the model.")
    archived: bool = Field(description="True if a prune removed it from the memory.")
    rolled_back: bool = Field(description="True if a rollback removed it from the memory.")
    unanswered: bool = Field(False, description="True for a task whose turn ended before its first step was finished.")


class _Page(BaseModel, Generic[M]):
    items: list[M]
    next_cursor: str | None


class TurnPage(_Page[TurnView]): ...


class ConversationPage(_Page[ConversationView]): ...


class StepPage(_Page[StepView]): ...


class AgentList(BaseModel):
    items: list[AgentView]


def data_of(record: Any) -> dict[str, Any]:
    """Return the fields of a record."""
    data = {}
    for name in record.__slots__:  # faster than a comprehension
        data[name] = getattr(record, name)
    return data


def turn_view(turn: Turn, *, internal: bool = False) -> dict[str, Any]:
    """Return a turn as JSON data. `internal` includes internal tools."""
    outcome = turn.outcome or NO_OUTCOME
    calls = [call for call in outcome.tool_calls if internal or not call.internal]
    return {
        "conversation_id": turn.ref.id,
        "turn": turn.number,
        "status": turn.status,
        "agent": data_of(turn.agent),
        "message": turn.message,
        "images": image_views(turn.ref.id, turn.images),
        "reply": outcome.reply,
        "output": outcome.output,
        "output_images": image_views(turn.ref.id, outcome.images),
        "tool_call_names": [call.name for call in calls],
        "tool_calls": [data_of(call) for call in calls],
        "state": outcome.state,
        "steps": outcome.steps,
        "usage": data_of(outcome.usage),
        "timing": _timing_view(turn),
        "attempts": turn.attempts,
        "dropped_variables": outcome.dropped_variables,
        "left_out": outcome.left_out and data_of(outcome.left_out),
        "rolled_back": turn.rolled_back or (outcome.error is not None and outcome.error.code == "rolled_back"),
        "error": outcome.error and data_of(outcome.error),
    }


def _timing_view(turn: Turn) -> dict[str, Any]:
    timing = turn.timing
    started_at = timing.started_at or timing.finished_at  # a turn that never started was queued until its end
    return {
        "submitted_at": time_view(timing.submitted_at),
        "started_at": time_view(timing.started_at),
        "finished_at": time_view(timing.finished_at),
        "queued_ms": _ms_between(timing.submitted_at, started_at),
        "duration_ms": _ms_between(started_at, timing.finished_at),
    }


def time_view(seconds: float | None) -> str | None:
    """Return Unix seconds as ISO 8601 in UTC, to the millisecond."""
    if seconds is None:
        return None
    second, microseconds = divmod(round(seconds * 1_000_000), 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(second))}.{microseconds // 1000:03d}Z"


def _ms_between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(max(0.0, end - start) * 1_000_000) / 1000


def image_view(conversation_id: str, name: str, width: int, height: int) -> dict[str, Any]:
    """Return a step's image: its size in pixels and its address."""
    return {"width": width, "height": height, "url": f"/conversations/{conversation_id}/images/{name}"}


def image_views(conversation_id: str, images: Iterable[StepImage]) -> list[dict[str, Any]]:
    return [image_view(conversation_id, image.name, image.width, image.height) for image in images]


def conversation_view(conversation: Conversation) -> dict[str, Any]:
    origin = conversation.forked_from
    same = {name: getattr(conversation, name) for name in ConversationView.model_fields if name != "id"}
    return {
        "id": conversation.ref.id,
        **same,
        "created_at": time_view(conversation.created_at),
        "updated_at": time_view(conversation.updated_at),
        "step_counts": {kind: conversation.step_counts.get(kind, 0) for kind in get_args(StepType)},
        "expires_at": time_view(conversation.expires_at),
        "forked_from": origin and {"conversation_id": origin[0], "turn": origin[1]},
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


def _weight_view(weight: PromptSize) -> dict[str, Any]:
    data = data_of(weight)
    is_estimate = data.pop("is_estimate")
    return {**data, "tokens_are": "estimated" if is_estimate else "reported"}


def message_view(conversation_id: str, message: dict[str, Any]) -> dict[str, Any]:
    """Return a message of the prompt, with its images as links."""
    content = message["content"]
    if isinstance(content, list):
        content = [
            {"type": "image", **image_view(conversation_id, part["name"], part["width"], part["height"])}
            if part["type"] == "image"
            else part
            for part in content
        ]
    return {"role": message["role"], "content": content}


def agent_view(info: AgentInfo, confinement: str | None, *, default: bool) -> dict[str, Any]:
    same = {name: getattr(info, name) for name in ("description", "tools", "max_steps", "code_runs_in", "policy")}
    return {**data_of(info.version), **same, "code_confinement": confinement, "default": default}


def step_view(conversation_id: str, step: dict[str, Any]) -> dict[str, Any]:
    """Return a step with its images as links."""
    images = [image_view(conversation_id, **image) for image in step.get("images", ())]
    return {**step, "images": images} if "images" in step else step


def page_view(page: Page[Any], view: Callable[[Any], Any]) -> dict[str, Any]:
    return {"items": [view(item) for item in page.items], "next_cursor": page.next_cursor}
