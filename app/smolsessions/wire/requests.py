"""Bodies of requests."""

from __future__ import annotations

from functools import partial
from keyword import iskeyword
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from smolsessions.core.json_data import MAX_OBJECT_BYTES, storable
from smolsessions.core.policies import Policy
from smolsessions.core.records import AgentName, OnBusy
from smolsessions.core.requests import Decision

MAX_FIELDS = 50
MAX_INT = 2**31 - 1  # the largest that clients with integers of 32 bits can hold

ConversationId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
# `storable` checks the names: pydantic's error about a name that holds half a character could not be encoded.
JsonObject = Annotated[dict[Any, Any], AfterValidator(partial(storable, most_bytes=MAX_OBJECT_BYTES))]
JsonResult = Annotated[Any, AfterValidator(partial(storable, most_bytes=MAX_OBJECT_BYTES))]
Agent = Annotated[AgentName, Field(min_length=1, max_length=64)]
Approve = Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=50, fail_fast=True)]
Ttl = Annotated[float, Field(ge=1, le=10 * 366 * 86400)]


POLICY = "Rules that bound the memory in the prompt. Null: the agent's own policy."
TTL = "Seconds from its last use until the conversation is deleted. Null: it is kept."
APPROVE = "Tools whose calls wait for a person's approval: names, and patterns such as `delete_*`."
CLIENT_TOOLS = "Tools that the client runs, beside those of the agent. At most 64 KiB together."
METADATA = "Data of the caller about the conversation. At most 64 KiB of JSON."
TITLE = "Taken from the first message, and null until it comes."


class Body(BaseModel):
    """Body of a request. Too many fields raise one error, instead of one for each field."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > MAX_FIELDS:
            raise ValueError("has far too many fields")
        return data


class FileIn(Body):
    """File of a message."""

    name: str = Field(
        min_length=1, max_length=200, description="Name with an extension and without folders: report.csv."
    )
    media_type: str = Field(
        min_length=1,
        max_length=100,
        description="text/plain, text/csv, text/markdown, text/tab-separated-values, application/json, "
        "application/pdf, audio/wav, audio/mpeg, audio/mp4, audio/ogg, audio/flac or audio/webm.",
    )
    data: str = Field(description="Content as base64 or as a data: URL. A text is UTF-8.")


class ClientTool(Body):
    """Tool that the client runs: a call of it makes the turn wait for the client's result."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$", description="Name by which the model calls it.")
    description: str = Field(min_length=1, max_length=8000, description="Text that tells the model what it does.")
    parameters: JsonObject = Field(description="JSON Schema of its arguments, an object, without foreign references.")
    output_schema: JsonObject | None = Field(None, description="JSON Schema of its result. Null: any JSON.")

    @field_validator("name")
    @classmethod
    def _is_no_keyword(cls, name: str) -> str:
        if iskeyword(name):
            raise ValueError("is a word of Python, by which code cannot call a tool")
        return name


ClientTools = Annotated[list[ClientTool], Field(max_length=64, fail_fast=True)]


class TurnRequest(Body):
    """One user message. Limits on text, pixels, steps and duration are those of the default settings."""

    model_config = ConfigDict(str_min_length=1, json_schema_extra={"examples": [{"message": "What is 12 * 7?"}]})

    message: str = Field(description="The user's message. White space alone is refused. At most 100,000 characters.")
    conversation_id: ConversationId | None = Field(None, description="Conversation to continue. Null: a new one.")
    create: bool = Field(False, description="Create the conversation `conversation_id` if there is none, not a 404.")
    agent: Agent | None = Field(None, description="Agent of a new conversation. An existing one keeps its own.")
    images: list[str] = Field(
        [],
        max_length=16,
        fail_fast=True,
        description="PNG, JPEG, GIF or WebP, as base64 or as a data: URL. At most 25 million pixels together.",
    )
    files: list[FileIn] = Field(
        [],
        max_length=16,
        fail_fast=True,
        description="Files for the agent's tools and code. The model reads their names only. At most 5 MiB together.",
    )
    additional_args: JsonObject = Field(
        {},
        description="Variables for the agent. They become part of the prompt. At most 1 MiB of JSON. A body over "
        "64 KiB may hold at most 10000 values.",
    )
    max_steps: int | None = Field(
        None, ge=1, description="Most steps of this turn. Null: those of the agent. At most 100."
    )
    deadline_s: float | None = Field(
        None,
        gt=0,
        description="Most seconds from the turn's start to its end. Null: the service's own limit. At most 3600.",
    )
    reset: bool = Field(False, description="Hide earlier steps from the model from this turn on. They stay on record.")
    on_busy: OnBusy = Field(
        "reject",
        description="If a turn of the conversation is running: `reject` returns 409, `enqueue` waits for its end. "
        "`interrupt` and `rollback` stop it and wait: `interrupt` keeps its finished steps, `rollback` drops them. "
        "`steer`: the running turn reads the message before its next model call.",
    )
    approve: Approve = Field(
        [], description=f"{APPROVE} They hold for this turn, beside those of conversation and agent."
    )
    client_tools: ClientTools = Field(
        [],
        description=f"{CLIENT_TOOLS} They hold for this turn, and win over those of the conversation.",
    )
    output_schema: JsonObject | None = Field(
        None, description="JSON Schema of the answer, without foreign references. Null: the agent's, if it has one."
    )
    metadata: JsonObject = Field({}, description=f"{METADATA} An existing conversation keeps its own.")


class AnswerIn(Body):
    """Answer to one request of a waiting turn: a decision on a call, or the answer to a question."""

    request_id: str = Field(min_length=1, max_length=500, description="Id of the request.")
    decision: Decision | None = Field(None, description="`reject` also declines to answer. Null: the answer is `text`.")
    arguments: JsonObject | None = Field(
        None, description="With `approve`: all arguments of the call, in place of its own."
    )
    reason: str | None = Field(None, max_length=10_000, description="Told to the agent's model.")
    text: str | None = Field(
        None, max_length=100_000, description="Answer to a question: one of its `choices`, if any."
    )
    result: JsonResult = Field(None, description="Result of your tool, for the kind `result`. At most 1 MiB of JSON.")
    error: str | None = Field(None, max_length=10_000, description="Why your tool has no result. The model reads it.")
    images: list[str] = Field([], max_length=16, fail_fast=True, description="Images of the result, as in POST /turn.")
    files: list[FileIn] = Field([], max_length=16, fail_fast=True, description="Files of the result, as in POST /turn.")

    @property
    def has_result(self) -> bool:
        return bool({"result", "error", "images", "files"} & self.model_fields_set)


class AnswersRequest(Body):
    """Answers to requests of a waiting turn. The turn goes on when none is open. One invalid answer rejects all."""

    answers: list[AnswerIn] = Field(min_length=1, max_length=100, fail_fast=True, description="At most 100.")


class NewConversation(Body):
    """A new, empty conversation."""

    id: ConversationId | None = Field(None, description="Letters, digits, `-` and `_`, at most 64. Null: a new one.")
    agent: Agent | None = Field(None, description="Name of its agent. Null: the service's default agent.")
    metadata: JsonObject = Field({}, description=METADATA)
    policy: Policy | None = Field(None, description=POLICY)
    ttl_s: Ttl | None = Field(None, description=TTL)
    approve: Approve = Field([], description=APPROVE)
    client_tools: ClientTools = Field([], description=CLIENT_TOOLS)


def _without_defaults(schema: dict[str, Any]) -> None:
    for member in schema["properties"].values():
        member.pop("default", None)


class ConversationPatch(Body):
    """A JSON merge patch (RFC 7396). Fields that it does not name stay as they are."""

    # A generated client would send a default that is described, and so empty what the caller did not name.
    model_config = ConfigDict(json_schema_extra=_without_defaults)

    metadata: JsonObject = Field({}, description="Null removes a member, objects merge, other values replace.")
    policy: Policy | None = Field(None, description=POLICY)
    ttl_s: Ttl | None = Field(None, description=TTL)
    title: str | None = Field(None, min_length=1, max_length=200, description="Null removes it.")
    approve: Approve = Field([], description=f"{APPROVE} It replaces the list.")
    client_tools: ClientTools = Field([], description=f"{CLIENT_TOOLS} It replaces the list.")

    @model_validator(mode="after")
    def _has_a_field(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("names nothing to change: send metadata, policy, ttl_s, title, approve or client_tools")
        return self


class PruneRequest(Body):
    """Steps to remove from the memory."""

    policy: Policy | None = Field(
        None, description="Policy whose dropped steps are archived. Null: the conversation's."
    )
    dry_run: bool = Field(False, description="Only report the changes.")
    destroy: bool = Field(
        False, description="Permanently delete the dropped steps, and all archived and rolled back ones."
    )


class RollbackRequest(Body):
    """Turn to return to."""

    turn: int = Field(ge=0, le=MAX_INT, description="The last turn to keep in the memory. 0: none.")


class ForkRequest(Body):
    """Turn at which the new conversation branches off."""

    turn: int | None = Field(
        None, ge=0, le=MAX_INT, description="The last turn of the new conversation. Null: the last."
    )
    metadata: JsonObject | None = Field(None, description="Metadata of the new conversation. Null: a copy.")
