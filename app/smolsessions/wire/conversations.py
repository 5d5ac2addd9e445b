"""Conversations, their steps and prompts, and agents, as answers hold them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from smolsessions.core.policies import Rules
from smolsessions.wire.requests import POLICY, TITLE, TTL
from smolsessions.wire.turns import AgentVersion, LeftOut
from smolsessions.wire.words import ConversationStatus, StepType


class ForkedFrom(BaseModel):
    """Conversation and turn that a fork began from."""

    conversation_id: str
    turn: int


class Conversation(BaseModel):
    """A conversation."""

    id: str
    agent: str
    title: str | None = Field(description=TITLE)
    status: ConversationStatus
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
    forked_from: ForkedFrom | None


class ConversationPage(BaseModel):
    """Page of conversations."""

    items: list[Conversation]
    next_cursor: str | None


class PromptSize(BaseModel):
    """Size of a prompt."""

    steps: int
    characters: int
    tokens: int
    tokens_are: Literal["reported", "estimated"] = Field(description="`reported`: counted by the model.")


class PruneResult(BaseModel):
    """Changes of a prune to the prompt. `conversation` is null if nothing was changed."""

    dry_run: bool
    before: PromptSize
    after: PromptSize
    left_out: int = Field(description="Number of steps that the policy drops.")
    shortened: int = Field(description="Number of steps that the policy would shorten. A prune does not change them.")
    archived: int
    destroyed: int
    conversation: Conversation | None


class Message(BaseModel):
    """Message of a prompt."""

    role: str
    content: str | list[dict[str, Any]] | None = Field(description="Texts, and images as links.")


class Messages(BaseModel):
    """The model's next prompt, without the next task."""

    messages: list[Message]
    left_out: LeftOut | None


class Step(BaseModel):
    """A step. Its type adds members: task, plan, text, model_output, code, observations, output or error."""

    model_config = ConfigDict(extra="allow")

    index: int
    turn: int
    type: StepType
    hidden: bool = Field(description="True if a later turn's reset hides it from the model.")
    archived: bool = Field(description="True if a prune removed it from the memory.")
    rolled_back: bool = Field(description="True if a rollback removed it from the memory.")
    unanswered: bool = Field(False, description="True for a task whose turn ended before its first step was finished.")


class StepPage(BaseModel):
    """Page of steps."""

    items: list[Step]
    next_cursor: str | None


class Agent(AgentVersion):
    """An agent that conversations can use."""

    description: str
    tools: list[str]
    max_steps: int
    code_runs_in: Literal["child", "thread", "remote"] | None = Field(
        description="Place where a CodeAgent's code runs (docs/security.md). Tool calls of a remote executor are not "
        "recorded."
    )
    code_confinement: Literal["namespaces", "landlock", "uid", "none"] | None = Field(
        description="Strongest confinement in this process of the code of the agent and of the agents that it manages "
        "(docs/security.md). Null without such code, and in a process that runs no turns."
    )
    policy: Rules = Field(description="Rules that bound the memory in its model's prompt.")
    default: bool


class AgentList(BaseModel):
    """All agents."""

    items: list[Agent]
