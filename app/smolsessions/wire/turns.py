"""Turns and the effects in their journals, as answers hold them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from smolsessions.wire import words
from smolsessions.wire.requests import ClientTool

CURSOR = "`cursor` of the next page. Null: this is the last page."
CALL_ID = "Id of the call, unique in the turn."
STEP_ID = "Step of the call or event, unique in the turn: `2`, or `2.1/1` inside an agent that call `2.1` called."
AGENT_PATH = "The agent's path: `manager`, `manager/searcher`."
POINTER = "Its place among `arguments`, as a JSON pointer. There the JSON has a label."
SHA256 = "SHA-256 of the bytes at `url`, in hexadecimal digits."
INTERNAL = "True for `python_interpreter` (a code block) and `final_answer`."


class ModelIdentity(BaseModel):
    """Model of an agent, as far as it is known."""

    provider: str | None = Field(
        description="Provider, such as `openai`, or the name of the model's own class. Null: unknown."
    )
    id: str | None = Field(description="Id by which the provider knows the model. Null: unknown.")


class AgentVersion(BaseModel):
    """Agent of a turn, as it was when it answered."""

    name: str = Field(description="Configured name of the agent.")
    kind: str = Field(description="Name of its class, such as `ToolCallingAgent` or `CodeAgent`.")
    smolagents: str = Field(description="Release of smolagents that runs it.")
    model: ModelIdentity = Field(description="Its model.")
    fingerprint: str = Field(
        description="Hash of prompts, tools and options. Agents of different ones may answer differently."
    )
    version: str | None = Field(description="Release of the package that makes it. Null: unknown.")


class Answerer(BaseModel):
    """Author of an answer."""

    owner: str = Field(description="Owner of the conversation.")
    key: str | None = Field(description="First digits of the SHA-256 of the API key. Null: the service has no keys.")


class Approval(BaseModel):
    """Person's decision on a call."""

    decision: words.ApprovalWord
    by: Answerer | None = Field(description="Who decided. Null: nobody did in time.")
    at: words.Time = Field(description="Time of the decision, or of the end of the wait.")
    reason: str | None = Field(description="Reason that was given. Null: none.")


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


class ShownImage(Image):
    """Image among the arguments of a call that a person is to approve."""

    pointer: str = Field(description=POINTER)
    sha256: str = Field(description=SHA256)


class ShownFile(File):
    """File among the arguments of a call that a person is to approve."""

    pointer: str = Field(description=POINTER)
    sha256: str = Field(description=SHA256)


class InputRequest(BaseModel):
    """Request of a waiting turn: for the approval of a call, an answer to a question, or a result of your tool."""

    request_id: str = Field(description="Its id, unique for its owner. It names conversation, turn and call.")
    kind: words.RequestWord
    call_id: str = Field(description=CALL_ID)
    tool: str = Field(description="Name of the tool or managed agent, or `python_interpreter` for a code block.")
    arguments: Any = Field(description="Arguments of the call, as JSON: those that the tool gets if it is approved.")
    parameters: dict[str, Any] | None = Field(description="JSON Schema of the arguments. Null for a question.")
    question: str | None = Field(description="The question. Null for an approval.")
    choices: list[str] | None = Field(description="Answers to choose from. Null: any text.")
    agent: str = Field(description=AGENT_PATH)
    step_id: str = Field(description=STEP_ID)
    asked_at: words.Time = Field(description="Time at which it was asked first.")
    expires_at: words.Time = Field(description="Time after which it counts as rejected.")
    replaces: str | None = Field(description="Earlier request for the same call with other arguments. Null: none.")
    images: list[ShownImage] = Field(description="Images among the arguments.")
    files: list[ShownFile] = Field(description="Files among the arguments.")
    output_schema: dict[str, Any] | None = Field(description="JSON Schema of the result. Null: any, or none is asked.")


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
    approval: Approval | None = Field(description="A person's decision on it. Null: it needed none.")
    where: words.PlaceOfCall


class Usage(BaseModel):
    """Tokens that the model reported. Null: the provider does not say."""

    input_tokens: int = Field(description="Tokens of the prompts.")
    output_tokens: int = Field(description="Tokens that the model wrote.")
    cached_input_tokens: int | None = Field(description="Those of the prompts that the provider read from its cache.")
    cache_write_tokens: int | None = Field(description="Those of the prompts that it wrote to its cache.")
    reasoning_tokens: int | None = Field(description="Those of the answers that the model reasoned with, unseen.")


class LeftOut(BaseModel):
    """Part of a prompt that the memory policy left out: whole steps, and cuts of others."""

    steps: int = Field(description="Number of steps that are missing as a whole.")
    shortened: int = Field(description="Number of steps that are cut.")
    characters: int = Field(description="Number of missing characters, of whole steps and of cuts.")
    tokens: int = Field(description="Estimate of the missing tokens.")


class Failure(BaseModel):
    """Error of a turn, of a step or of a call."""

    code: words.FailureCode
    message: str = Field(description="For people.")
    retryable: bool = Field(description="True if the same message may succeed later. False for steps and calls.")


class Timing(BaseModel):
    """Times of a turn."""

    submitted_at: words.Time = Field(description="Time at which the turn was accepted.")
    started_at: words.Time | None = Field(description="Null for a turn that waits, or that ended before it started.")
    finished_at: words.Time | None = Field(description="Time of the turn's end. Null: it is not over.")
    queued_ms: float | None = Field(
        description="Milliseconds until its start, or its end if it never started. Null: it waits."
    )
    duration_ms: float | None = Field(
        description="Milliseconds that it ran, without `waited_ms`. Null: it is not over."
    )
    waited_ms: float = Field(description="Milliseconds that it waited for persons, without the present wait.")


class TurnOptions(BaseModel):
    """Options of a turn, as they were sent."""

    max_steps: int | None = Field(description="Most steps of the turn. Null: the agent's own limit.")
    deadline_s: float | None = Field(description="Longest duration in seconds. Null: the service's own limit.")
    reset: bool = Field(description="True if earlier steps are hidden from the model from this turn on.")
    on_busy: words.OnBusyWord
    approve: list[str] = Field(description="Tools that need an approval in this turn, beside others.")
    client_tools: list[ClientTool] = Field(description="Tools that the client runs, in this turn.")
    output_schema: dict[str, Any] | None = Field(description="JSON Schema of the answer. Null: none was sent.")


class Turn(BaseModel):
    """A turn. Fields that are not known yet (reply, output, outcome, error) are null."""

    conversation_id: str = Field(description="Id of the turn's conversation.")
    turn: int = Field(description="Number of the turn in its conversation: 1, 2, 3 …")
    status: words.Status
    agent: AgentVersion = Field(description="Agent of the turn.")
    message: str = Field(description="The user's message.")
    images: list[Image] = Field(description="Images of the message. Empty until its start, and once destroyed.")
    files: list[File] = Field(description="Files of the message. Empty until its start, and once destroyed.")
    additional_args: dict[str, Any] = Field(description="Variables for the agent, as they were sent.")
    options: TurnOptions = Field(description="Options, as they were sent.")
    reply: str | None = Field(description="The answer as text. Null until the turn is finished.")
    output: Any = Field(description="The answer as JSON: a text, a list, an object … Null until the turn is finished.")
    output_images: list[Image] = Field(description="Images in the answer, also in its lists and objects. At most 16.")
    output_files: list[File] = Field(description="Files and audio in the answer, likewise. At most 16 with the images.")
    tool_call_names: list[str] = Field(
        description="Names of the tools that it called, in order, without rejected calls."
    )
    tool_calls: list[ToolCall] = Field(
        description="Its calls, in order: the first 5,000, and the first one of each further tool. Internal ones only "
        "with `include_internal_tools`. Arguments beyond 4 MB in all have their long texts cut."
    )
    requests: list[InputRequest] = Field(description="Open requests of a waiting turn, for POST …/answers.")
    outcome: words.RunOutcome | None = Field(description="How smolagents ended the run. Null until then.")
    step_count: int = Field(description="Number of the finished steps of the turn's own agent, plans among them.")
    usage: Usage = Field(description="Tokens of all model calls in finished steps.")
    timing: Timing = Field(description="Times of the turn.")
    attempts: int = Field(description="Number of times that a process began or continued the turn. 0: it is queued.")
    dropped_variables: list[str] = Field(description="Variables of the agent's code and state that could not be saved.")
    left_out: LeftOut | None = Field(description="What the memory policy left out of the turn's last prompt.")
    rolled_back: bool = Field(description="True if its steps were dropped, by `on_busy: rollback` or a rollback.")
    error: Failure | None = Field(description="Cause of the end of a failed or cancelled turn. Null for others.")


class TurnPage(BaseModel):
    """Page of turns."""

    items: list[Turn] = Field(description="Turns, by their number.")
    next_cursor: str | None = Field(description=CURSOR)


class Effect(BaseModel):
    """Effect in a turn's journal: a call whose result a replay returns. The result itself is not shown."""

    kind: words.EffectKind
    call_id: str = Field(
        description=f"{CALL_ID} Of a request and its answer: the call that waits. Of a message: its place."
    )
    step_id: str | None = Field(description="Step of the call. Null: it belongs to no step, as that of a summary.")
    name: str | None = Field(
        description="Name of the tool, or of the fallback model that answered. Of a message: the number of its turn. "
        "Null for others."
    )
    state: words.EffectState
    attempt: int | None = Field(
        description="Attempt that made the call, or began it last. Null for a request, an answer and a message."
    )
    repeated: bool = Field(description="True if the call was begun again, because a process ended during the first.")
    ok: bool | None = Field(description="True if the call returned. Null until then, and for what is no call.")
    error: Failure | None = Field(description="Error of the call, whose message names the exception. Null: none.")
    duration_ms: float | None = Field(description="Duration of a call of a tool or code in milliseconds.")
    size_bytes: int | None = Field(description="Size of the stored result. Null: none is stored yet.")


class EffectPage(BaseModel):
    """Page of a turn's effects."""

    items: list[Effect] = Field(description="Effects, by step and call.")
    next_cursor: str | None = Field(description=CURSOR)
    complete: bool = Field(description="False: the journal has over 10,000 entries, and the pages show some of them.")
