"""Turns as answers hold them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from smolsessions.wire.words import FailureCode, OnBusyWord, State, Status

CURSOR = "`cursor` of the next page. Null: this is the last page."
CALL_ID = "Id of the call, unique in the turn."
STEP_ID = "Step of the call or event, unique in the turn: `2`, or `2.1/1` inside an agent that call `2.1` called."
AGENT_PATH = "The agent's path: `manager`, `manager/searcher`."
INTERNAL = "True for `python_interpreter` (a code block) and `final_answer`."


class ModelIdentity(BaseModel):
    """Model of an agent, as far as it is known."""

    provider: str | None = Field(
        description="Provider, such as `openai` or `huggingface`, or the name of the model's own class. Null: unknown."
    )
    id: str | None = Field(description="Id by which the provider knows the model. Null: unknown.")


class AgentVersion(BaseModel):
    """Agent of a turn, as it was when it answered."""

    name: str = Field(description="Configured name of the agent.")
    kind: str = Field(description="Name of its class, such as `ToolCallingAgent` or `CodeAgent`.")
    smolagents: str = Field(description="Release of smolagents that runs it.")
    model: ModelIdentity = Field(description="Its model.")
    fingerprint: str = Field(
        description="Hash of its prompts, tools and options. Agents with different ones may answer differently."
    )
    version: str | None = Field(description="Release of the package that makes it. Null: unknown.")


class ToolCall(BaseModel):
    """Call of a tool or a managed agent, or a run of a code block."""

    call_id: str = Field(description=CALL_ID)
    name: str = Field(description="Name of the tool or of the managed agent.")
    arguments: Any = Field(description="Arguments of the call, as JSON. Usually an object, with a member for each.")
    agent: str = Field(description=AGENT_PATH)
    step_id: str = Field(description=STEP_ID)
    internal: bool = Field(description=INTERNAL)
    ok: bool = Field(description="True if the tool returned.")
    duration_ms: float = Field(description="Duration of the call in milliseconds.")
    repeated: bool = Field(description="True if the call was made again, because a process ended during the first.")


class Usage(BaseModel):
    """Tokens that the model reported."""

    input_tokens: int = Field(description="Tokens of the prompts.")
    output_tokens: int = Field(description="Tokens that the model wrote.")


class LeftOut(BaseModel):
    """Part of a prompt that the memory policy left out: whole steps, and cuts of others."""

    steps: int = Field(description="Number of steps that are missing as a whole.")
    shortened: int = Field(description="Number of steps that are cut.")
    characters: int = Field(description="Number of missing characters, of whole steps and of cuts.")
    tokens: int = Field(description="Estimate of the missing tokens.")


class Failure(BaseModel):
    """Failure of a turn."""

    code: FailureCode
    message: str = Field(description="For people.")
    retryable: bool = Field(description="True if the same message may succeed later.")


class Timing(BaseModel):
    """Times of a turn."""

    submitted_at: datetime = Field(description="Time at which the turn was accepted.")
    started_at: datetime | None = Field(description="Null for a turn that waits, or that ended before it started.")
    finished_at: datetime | None = Field(description="Time of the turn's end. Null: it is not over.")
    queued_ms: float | None = Field(
        description="Milliseconds until its start, or until its end if it never started. Null: it waits."
    )
    duration_ms: float | None = Field(
        description="Milliseconds from its start to its end. 0 if it never started. Null: it is not over."
    )


class Image(BaseModel):
    """Image of a step: its size in pixels and its address."""

    width: int = Field(description="Width in pixels.")
    height: int = Field(description="Height in pixels.")
    url: str = Field(description="Address of the image's file, relative to the service's host.")


class File(BaseModel):
    """File of a message or an answer: its name, type and size, and its address."""

    name: str = Field(description="Name of the file, which is not unique.")
    media_type: str = Field(description="Type of its content, as it was sent or as the tool named it.")
    size_bytes: int = Field(description="Size in bytes.")
    url: str = Field(description="Address of the content, relative to the service's host.")


class TurnOptions(BaseModel):
    """Options of a turn, as they were sent."""

    max_steps: int | None = Field(description="Most steps of the turn. Null: the agent's own limit.")
    deadline_s: float | None = Field(description="Longest duration in seconds. Null: the service's own limit.")
    reset: bool = Field(description="True if earlier steps are hidden from the model from this turn on.")
    on_busy: OnBusyWord


class Turn(BaseModel):
    """A turn. Fields that are not known yet (reply, output, state, error) are null."""

    conversation_id: str = Field(description="Id of the turn's conversation.")
    turn: int = Field(description="Number of the turn in its conversation: 1, 2, 3 …")
    status: Status
    agent: AgentVersion = Field(description="Agent of the turn.")
    message: str = Field(description="The user's message.")
    images: list[Image] = Field(
        description="Images of the message. Empty until the turn has started, and after they were destroyed."
    )
    files: list[File] = Field(
        description="Files of the message. Empty until the turn has started, and after they were destroyed."
    )
    additional_args: dict[str, Any] = Field(description="Variables for the agent, as they were sent.")
    options: TurnOptions = Field(description="Options, as they were sent.")
    reply: str | None = Field(description="The answer as text. Null until the turn is finished.")
    output: Any = Field(
        description="The answer as JSON: a text, a number, a list, an object … Null until the turn is finished."
    )
    output_images: list[Image] = Field(
        description="Images in the answer, also inside its lists and objects. At most 16."
    )
    output_files: list[File] = Field(
        description="Files and audio in the answer, also inside its lists and objects. At most 16 with the images."
    )
    tool_call_names: list[str] = Field(description="Names of the tools that this turn called, in order.")
    tool_calls: list[ToolCall] = Field(
        description="Calls of this turn, in order. Internal ones only with `include_internal_tools`."
    )
    state: State | None = Field(description="How smolagents ended the run. Null until then.")
    steps: int = Field(description="Number of the finished steps of the turn's own agent, plans among them.")
    usage: Usage = Field(description="Tokens of all model calls in finished steps.")
    timing: Timing = Field(description="Times of the turn.")
    attempts: int = Field(description="Number of processes that have run the turn. 0: it waits.")
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
    error: Failure | None = Field(description="Cause of the end of a failed or cancelled turn. Null for others.")


class TurnPage(BaseModel):
    """Page of turns."""

    items: list[Turn] = Field(description="Turns, by their number.")
    next_cursor: str | None = Field(description=CURSOR)
