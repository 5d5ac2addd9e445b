"""Turns as answers hold them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from smolsessions.wire.words import State, Status


class AgentVersion(BaseModel):
    """Agent of a turn: its configured name, its class, the release of smolagents."""

    name: str
    kind: str
    smolagents: str


class ToolCall(BaseModel):
    """Call of a tool or a managed agent, or a run of a code block."""

    call_id: str
    name: str
    arguments: Any
    agent: str
    step_id: str
    internal: bool
    ok: bool = Field(description="True if the tool returned.")
    duration_ms: float
    repeated: bool = Field(description="True if the call was made again, because a process ended during the first.")


class Usage(BaseModel):
    """Tokens that the model reported."""

    input_tokens: int
    output_tokens: int


class LeftOut(BaseModel):
    """Part of a prompt that the memory policy left out: whole steps, and cuts of others."""

    steps: int
    shortened: int
    characters: int
    tokens: int


class Failure(BaseModel):
    """Failure of a turn."""

    code: str = Field(description="Stable. Known codes are in docs/reference/errors.md. More may come.")
    message: str = Field(description="For people.")
    retryable: bool = Field(description="True if the same message may succeed later.")


class Timing(BaseModel):
    """Times of a turn."""

    submitted_at: datetime
    started_at: datetime | None = Field(description="Null for a turn that waits, or that ended before it started.")
    finished_at: datetime | None
    queued_ms: float | None = Field(description="Until its start, or until its end if it never started.")
    duration_ms: float | None = Field(description="From its start to its end. 0 if it never started.")


class Image(BaseModel):
    """Image of a step: its size in pixels and its address."""

    width: int
    height: int
    url: str


class Turn(BaseModel):
    """A turn. Fields that are not known yet (reply, output, state, error) are null."""

    conversation_id: str
    turn: int
    status: Status
    agent: AgentVersion
    message: str
    images: list[Image] = Field(
        description="Images of the message. Empty until the turn has started, and after they were destroyed."
    )
    reply: str | None
    output: Any
    output_images: list[Image] = Field(
        description="Images in the answer, also inside its lists and objects. At most 16."
    )
    tool_call_names: list[str] = Field(description="Names of the tools that this turn called, in order.")
    tool_calls: list[ToolCall]
    state: State | None
    steps: int
    usage: Usage
    timing: Timing
    attempts: int
    dropped_variables: list[str] = Field(
        description="Variables of the agent's code, and keys of its state, that could not be saved."
    )
    left_out: LeftOut | None = Field(
        description="Steps and text that the memory policy left out of the turn's last prompt."
    )
    rolled_back: bool = Field(
        description="True if its steps were dropped: by a turn with `on_busy: rollback`, or by a rollback to a turn "
        "before it."
    )
    error: Failure | None


class TurnPage(BaseModel):
    """Page of turns."""

    items: list[Turn]
    next_cursor: str | None
