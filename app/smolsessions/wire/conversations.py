"""Conversations, their steps and prompts, and agents, as answers hold them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from smolsessions.core.policies import Policy
from smolsessions.wire.requests import APPROVE, CLIENT_TOOLS, METADATA, POLICY, TITLE, TTL, ClientTool
from smolsessions.wire.turns import CURSOR, AgentVersion, Failure, File, Image, LeftOut, Usage
from smolsessions.wire.words import CodePlace, Confinement, ConversationStatus, StepType, Time, TokenCount, VariableKind


class ForkedFrom(BaseModel):
    """Conversation and turn that a fork began from."""

    conversation_id: str = Field(description="Id of that conversation, which may be deleted by now.")
    turn: int = Field(description="Last turn that both have. 0: none.")


class Conversation(BaseModel):
    """A conversation."""

    id: str = Field(description="Letters, digits, `-` and `_`, at most 64. Unique among those of its owner.")
    agent: str = Field(description="Name of its agent.")
    title: str | None = Field(description=TITLE)
    approve: list[str] = Field(description=APPROVE)
    client_tools: list[ClientTool] = Field(description=CLIENT_TOOLS)
    status: ConversationStatus
    metadata: dict[str, Any] = Field(description=METADATA)
    created_at: Time = Field(description="Time of its creation.")
    updated_at: Time = Field(description="Time of its last change: of a field, of the memory, or by a turn.")
    turn_count: int = Field(description="Number of its last turn. 0: none was sent yet.")
    step_counts: dict[str, int] = Field(
        description="Steps in its memory by type, without archived and rolled back ones."
    )
    running_turn: int | None = Field(description="Number of the turn that runs. Null: none.")
    queued_turns: int = Field(description="Number of turns that wait.")
    archived_steps: int = Field(description="Steps on record that a prune or a rollback removed from the memory.")
    policy: Policy | None = Field(description=POLICY)
    ttl_s: float | None = Field(description=TTL)
    expires_at: Time | None = Field(description="Time of its deletion if it is not used until then. Null: it is kept.")
    forked_from: ForkedFrom | None = Field(description="Its origin, if it is a fork. Null for others.")


class Match(BaseModel):
    """Turn that has the text of a search."""

    turn: int = Field(description="Its number. Of several it is the last.")
    excerpt: str = Field(description="Beginning of the message or the answer around the text, in one line.")


class ListedConversation(Conversation):
    """Conversation of a list."""

    match: Match | None = Field(
        description="Place of `q` in a search of messages. Null: it is in the title, or messages were not searched."
    )


class ConversationPage(BaseModel):
    """Page of conversations."""

    items: list[ListedConversation] = Field(description="Conversations, in the order of `sort` and `order`.")
    next_cursor: str | None = Field(description=CURSOR)


class PromptSize(BaseModel):
    """Size of a prompt."""

    steps: int = Field(description="Number of steps in it.")
    characters: int = Field(description="Number of characters of its texts.")
    tokens: int = Field(description="Number of tokens.")
    tokens_are: TokenCount


class PruneResult(BaseModel):
    """Changes of a prune to the prompt. `conversation` is null if nothing was changed."""

    dry_run: bool = Field(description="True if nothing was changed.")
    before: PromptSize = Field(description="Size of the prompt before it, without a policy.")
    after: PromptSize = Field(description="Size of the prompt after it.")
    left_out: int = Field(description="Number of steps that the policy drops.")
    shortened: int = Field(description="Number of steps that the policy would shorten. A prune does not change them.")
    archived: int = Field(description="Number of steps that are or would be archived.")
    destroyed: int = Field(description="Number of steps that are or would be permanently deleted.")
    conversation: Conversation | None = Field(description="The changed conversation. Null after a dry run.")


class PromptMessage(BaseModel):
    """Message of a prompt."""

    role: str = Field(description="`system`, `user`, `assistant`, `tool-call` or `tool-response`.")
    content: str | list[dict[str, Any]] | None = Field(
        description="A text or a list of parts: `{type: text, text}`, and `{type: image, width, height, url}` with its "
        "size in pixels and its address."
    )
    tokens: int = Field(description="Estimate of its tokens.")


class Prompt(BaseModel):
    """The model's next prompt, without the next task, or the prompt of a past turn."""

    messages: list[PromptMessage] = Field(description="Messages in the order in which the model reads them.")
    left_out: LeftOut | None = Field(description="Part that the memory policy leaves out. Null without a policy.")
    rebuilt: bool = Field(
        description="True for a past turn: rebuilt from its steps, with the instructions and policy of now."
    )


class Variable(BaseModel):
    """Variable that the agent keeps between turns."""

    agent: str = Field(description="Path of the managed agent that has it. Empty: the conversation's own agent.")
    kind: VariableKind
    name: str = Field(description="Name of the variable, or of the tool.")
    preview: str = Field(description="First 500 characters of its JSON, or a sentence that says why it has none.")
    size_bytes: int | None = Field(description="Size of its JSON, or of the file. Null: it has no JSON form.")
    reason: str | None = Field(description="Reason why it has no JSON form. Null for others.")


class VariableList(BaseModel):
    """Variables of a conversation."""

    items: list[Variable] = Field(description="Variables, by agent, kind and name.")


class WorkspaceFile(BaseModel):
    """File of a conversation's workspace."""

    path: str = Field(description="Path in the workspace, as notes/plan.md.")
    size_bytes: int = Field(description="Size in bytes.")
    modified_at: datetime = Field(description="Time of its last change.")
    url: str = Field(description="Address of the content, relative to the service's host.")


class WorkspaceFileList(BaseModel):
    """Files of a conversation's workspace."""

    items: list[WorkspaceFile] = Field(description="The files that the agent may read, by path.")
    complete: bool = Field(
        description="False: the workspace has over 20,000 files and folders, and `items` are some files."
    )


class StepToolCall(BaseModel):
    """Tool call in a step."""

    id: str | None = Field(description="Id of the call from the model.")
    name: str = Field(description="Name of the tool.")
    arguments: Any = Field(description="Arguments of the call, as JSON.")


class Step(BaseModel):
    """A step. Its type decides which of the members from `task` on it has."""

    model_config = ConfigDict(extra="allow")

    index: int = Field(description="Place of the step in the conversation: 0, 1, 2 …")
    turn: int = Field(description="Number of the turn that it belongs to.")
    type: StepType
    hidden: bool = Field(description="True if a later turn's reset hides it from the model.")
    archived: bool = Field(description="True if a prune removed it from the memory.")
    rolled_back: bool = Field(description="True if a rollback removed it from the memory.")
    unanswered: bool = Field(False, description="True for a task whose turn ended before its first step was finished.")
    task: str | None = Field(None, description="Of a task: the user's message.")
    plan: str | None = Field(None, description="Of a plan: its text.")
    number: int | None = Field(None, description="Of a note: its number, 1, 2, 3 … in the conversation.")
    text: str | None = Field(None, description="Of a note or a summary: its text.")
    replaces: int | None = Field(None, description="Of a note: number of the note that it replaces.")
    recent: int | None = Field(None, description="Of a summary: number of the last steps that it leaves in the prompt.")
    step: int | None = Field(None, description="Of an action: number of the step in its turn, from 1.")
    model_output: Any = Field(None, description="Of an action: text of the model. Some models send a list of parts.")
    code: str | None = Field(None, description="Of an action of a CodeAgent: the code that ran.")
    tool_calls: list[StepToolCall] = Field([], description="Of an action: calls that the model made.")
    observations: str | None = Field(None, description="Of an action: text that the model is shown next.")
    images: list[Image] = Field([], description="Of a task: images of the message. Of an action: those it observed.")
    files: list[File] = Field([], description="Of a task: files of the message. Of an action: those of its output.")
    output: Any = Field(None, description="Of an action: its output as JSON.")
    error: Failure | None = Field(None, description="Of an action: its error, as the model sees it. Null: none.")
    is_final_answer: bool = Field(False, description="Of an action: true if its output is the answer.")
    usage: Usage | None = Field(None, description="Of an action or a plan: tokens of its model call.")
    duration_ms: float | None = Field(None, description="Of an action or a plan: milliseconds that it took.")


class StepPage(BaseModel):
    """Page of steps."""

    items: list[Step] = Field(description="Steps, by their place.")
    next_cursor: str | None = Field(description=CURSOR)


class Tool(BaseModel):
    """A tool or a managed agent, as the model sees it."""

    name: str = Field(description="Name by which the model calls it.")
    description: str = Field(description="Text that tells the model what it does.")
    parameters: dict[str, Any] = Field(description="JSON Schema of its arguments, an object.")


class Agent(AgentVersion):
    """An agent that conversations can use."""

    description: str = Field(description="Text for people that choose an agent. May be empty.")
    tools: list[Tool] = Field(description="Its tools and managed agents.")
    max_steps: int = Field(description="Most steps of a turn that sets no `max_steps`.")
    code_runs_in: CodePlace | None = Field(
        description="Place where a CodeAgent's code runs (docs/security.md). `remote` is an executor of the agent's "
        "author. Null: it runs no code."
    )
    code_confinement: Confinement | None = Field(
        description="Strongest confinement in this process of the code of the agent and of the agents that it manages "
        "(docs/security.md). `not run here`: in a remote executor. Null without such code, and in a process that runs "
        "no turns."
    )
    limitations: list[str] = Field(description="Sentences on what the service cannot do for it.")
    policy: Policy = Field(description="Rules that bound the memory in its model's prompt.")
    examples: list[str] = Field(description="Questions that a page may offer. Often empty.")
    approve: list[str] | None = Field(
        description="Tools whose calls wait for a person's approval, also those of agents that it manages: names, and "
        "patterns such as `delete_*`. Null: a function of the agent's author decides on each call."
    )
    ask_user: bool = Field(description="True if it, or an agent that it manages, may ask the user a question.")
    client_tools: bool = Field(description="True if it takes tools of clients.")
    default: bool = Field(description="True for the agent of conversations that name none.")


class AgentLimits(BaseModel):
    """Limits of the agent's turns and of requests for them."""

    deadline_s: float = Field(description="Longest time of a turn that sets no `deadline_s`, in seconds.")
    max_deadline_s: float = Field(description="Largest `deadline_s` that a turn may set.")
    max_steps: int = Field(description="Largest `max_steps` that a turn may set.")
    max_message_chars: int = Field(description="Most characters of a message.")
    max_body_bytes: int = Field(description="Largest request.")
    max_image_pixels: int = Field(description="Most pixels of a request's images together.")


class AgentDetails(Agent):
    """An agent with its limits."""

    limits: AgentLimits = Field(description="Limits of its turns, and of requests for them.")


class AgentList(BaseModel):
    """All agents."""

    items: list[Agent] = Field(description="Agents, the default one first.")
