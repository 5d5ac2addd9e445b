"""Records of the service: frozen data without behaviour."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypeVar

from pydantic import Field, SkipValidation

from smolsessions.core.frozen import record
from smolsessions.core.media import StepFile, StepImage
from smolsessions.core.policies import Policy
from smolsessions.core.requests import Answered, Approval, InputRequest

T = TypeVar("T")
Owner = NewType("Owner", str)
LOCAL = Owner("local")  # every client of a service without API keys
AgentName = NewType("AgentName", str)
TurnStatus = Literal["queued", "running", "waiting", "finished", "failed", "cancelled"]
OnBusy = Literal["reject", "enqueue", "interrupt", "rollback", "steer"]
ConversationStatus = Literal["idle", "queued", "running", "waiting"]
Sort = Literal["updated", "created"]
SearchIn = Literal["title", "messages"]
Order = Literal["asc", "desc"]
RunState = Literal["success", "max_steps_error"]
StepType = Literal["task", "planning", "action", "note", "summary"]
EntryType = StepType | Literal["edit"]  # of a stored entry; an edit is a change by a callback of the agent's author
Seconds = Annotated[float, Field(ge=0, le=2e10)]  # pydantic reads larger numbers as milliseconds
Count = Annotated[int, Field(ge=0)]
Items = Annotated[tuple[T, ...], Field(fail_fast=True)]  # pydantic would collect an error of 1 KB for each wrong item

MAX_TITLE_CHARS = 80  # of a title from a message
MAX_CRASHES = 3  # of a turn's attempts without a new effect; then the turn fails


class Ref(NamedTuple):
    """Full name of a conversation. Ids are scoped to their owner."""

    owner: Owner
    id: str

    def __str__(self) -> str:
        return f"{self.owner}/{self.id}"


@record
class ModelIdentity:
    """Provider and id of a model, as far as they are known."""

    provider: str | None = None
    id: str | None = None


@record
class AgentVersion:
    """Version of an agent: its configured name, its class, the release of smolagents, its model, its fingerprint.

    The fingerprint is a hash of prompts, tools and options. Only an agent with the same one replays a turn.
    `version` is the release of the package that makes the agent.
    """

    name: AgentName
    kind: str
    smolagents: str
    model: ModelIdentity = field(default_factory=ModelIdentity)
    fingerprint: str = ""
    version: str | None = None


@record
class ClientTool:
    """Tool that the client runs. `parameters` are the JSON Schema of its arguments, `output_schema` of its result."""

    name: str
    description: str
    parameters: dict[str, Any]
    output_schema: dict[str, Any] | None = None


@record
class Origin:
    """Conversation and turn from which a conversation was forked."""

    scope: str
    turn: int


@record
class Rollback:
    """Rollback: turns after `after` continue from turn `to`."""

    after: int
    to: int


@record
class ConversationSettings:
    """Own memory policy of a conversation (None: the agent's), its origins and its rollbacks, in their order.

    `approve` names the tools that need an approval, beside those of the agent. `client_tools` are the client's.
    """

    policy: Policy | None = None
    lineage: tuple[Origin, ...] = ()
    rollbacks: tuple[Rollback, ...] = ()
    approve: tuple[str, ...] = ()
    client_tools: tuple[ClientTool, ...] = ()

    def is_rolled_back(self, turn: int, last: int) -> bool:
        """Return whether a turn does not lead to the conversation as it is after turn `last`."""
        place, is_tip = last, True
        for rollback in reversed(self.rollbacks):
            if place > rollback.after or (is_tip and place == rollback.after):
                if turn > rollback.after:
                    break
                place, is_tip = rollback.to, False
        return turn > place


NO_SETTINGS = ConversationSettings()


@record
class ConversationFields:
    """Fields that a caller may change. `policy` None: the agent's. `ttl_s` None: it never expires.

    `title` None: that of the first message, if that is still to come. `approve` names tools that need an approval.
    """

    metadata: dict[str, Any]
    policy: Policy | None = None
    ttl_s: float | None = None
    title: str | None = None
    approve: tuple[str, ...] = ()
    client_tools: tuple[ClientTool, ...] = ()


@record
class Match:
    """Turn whose message or answer has the text of a search, and the text around it."""

    turn: int
    excerpt: str


@record
class Conversation:
    """Conversation in the store. Times are Unix seconds. `step_counts` leaves out archived and rolled back steps."""

    ref: Ref
    agent: AgentName
    metadata: dict[str, Any]
    created_at: float
    updated_at: float
    turn_count: int
    step_counts: dict[StepType, int]
    running_turn: int | None
    queued_turns: int
    archived_steps: int = 0
    policy: Policy | None = None
    ttl_s: float | None = None
    expires_at: float | None = None
    forked_from: tuple[str, int] | None = None
    title: str | None = None
    approve: tuple[str, ...] = ()
    client_tools: tuple[ClientTool, ...] = ()
    waits: bool = False
    """True if the running turn waits for a person."""
    match: Match | None = None
    """Place of a searched text, if the search did not find it in the title."""

    @property
    def status(self) -> ConversationStatus:
        if self.running_turn is not None:
            return "waiting" if self.waits else "running"
        return "queued" if self.queued_turns else "idle"


def title_of(message: str) -> str:
    words = " ".join(message[: 4 * MAX_TITLE_CHARS].split())
    return words if len(words) <= MAX_TITLE_CHARS else words[: MAX_TITLE_CHARS - 1].rstrip() + "…"


@record
class ConversationQuery:
    """Order and filters of a list of conversations. `q` is a part of the title, in upper or lower case.

    With `search_in` messages it may also be a part of a message or an answer.
    """

    sort: Sort = "updated"
    order: Order = "desc"
    agent: str | None = None
    status: ConversationStatus | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    q: str | None = None
    search_in: SearchIn = "title"

    def matches(self, found: Conversation) -> bool:
        """Return whether a conversation passes the filters, except a search in messages."""
        if (self.agent and self.agent != found.agent) or (self.status and self.status != found.status):
            return False
        for name, value in self.metadata:
            kept = found.metadata.get(name)
            shown = kept if isinstance(kept, str) else json.dumps(kept, ensure_ascii=False)
            if name not in found.metadata or value != shown:
                return False
        return self.search_in != "title" or self.is_in_title(found)

    def is_in_title(self, found: Conversation) -> bool:
        return not self.q or self.q.casefold() in (found.title or "").casefold()


@record
class Failure:
    """Failure of a turn: a stable code, a sentence for the caller, and whether a retry may work."""

    code: str
    message: str
    retryable: bool = False


AGENT_CHANGED = Failure(
    "agent_changed",
    "The process that played this turn ended, or the turn waited for a person, and the agent is another one now: its "
    "prompts, tools or options were changed. The turn ends with its finished steps.",
    retryable=True,
)


@record
class ToolCall:
    """Tool call of a turn. `arguments` is JSON. `ok` is true if the tool returned.

    `repeated`: it may have run twice, as an earlier process ended during it. `approval`: a person's decision on it.
    """

    call_id: str
    name: str
    arguments: Any
    agent: str
    step_id: str
    internal: bool
    ok: bool
    duration_ms: Annotated[float, Field(allow_inf_nan=False)]
    repeated: bool = False
    approval: Approval | None = None
    where: Literal["service", "client"] = "service"


@record
class Usage:
    """Tokens that the model reported, summed over the turn's finished steps. None: it did not report this part.

    Those of the cache are part of `input_tokens`, and those of reasoning part of `output_tokens`.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


@record
class PromptSize:
    """Size of a prompt or a part of it. Tokens are reported by the model, or an estimate."""

    steps: int
    characters: int
    tokens: int
    is_estimate: bool = True


@record
class LeftOut:
    """Part of a turn's last prompt that the memory policy left out: whole steps, and cuts of others."""

    steps: int
    shortened: int
    characters: int
    tokens: int


@record
class Timing:
    """Times of a turn: accepted, claimed first, ended. Unix seconds.

    `waited_s` are the seconds of its `waits` for persons, without the present one, which began at `waits_since`.
    """

    submitted_at: Seconds
    started_at: Seconds | None = None
    finished_at: Seconds | None = None
    waited_s: Seconds = 0.0
    waits_since: Seconds | None = None
    waits: Count = 0

    def wait_over(self, now: float) -> Timing:
        if self.waits_since is None:
            return self
        waited_s = self.waited_s + max(0.0, now - self.waits_since)
        return replace(self, waited_s=waited_s, waits_since=None)


@record
class TurnOptions:
    """Options of a turn. `max_steps` None: the agent's. `deadline_s` None: the service's, from the turn's start.

    `on_busy` is applied to the turns that run or wait already. `approve` names tools that need an approval, too.
    `output_schema` is the JSON Schema of the answer. None: the agent's, if it has one.
    """

    max_steps: Annotated[int, Field(ge=1)] | None = None
    reset: bool = False
    deadline_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    on_busy: OnBusy = "reject"
    approve: Items[str] = ()
    client_tools: Items[ClientTool] = ()
    output_schema: dict[str, Any] | None = None


@record
class Outcome:
    """End of a turn, as its session returns it."""

    status: Literal["finished", "failed", "cancelled"]
    reply: str | None = None
    output: Any = None
    state: RunState | None = None
    steps: Count = 0
    tool_calls: Items[ToolCall] = ()
    usage: Usage = field(default_factory=Usage)
    error: Failure | None = None
    dropped_variables: Items[str] = ()
    left_out: LeftOut | None = None
    images: Items[StepImage] = ()
    files: Items[StepFile] = ()
    """Images and files of the answer, stored with the last step."""


@record
class Turn:
    """One user message and everything that the agent does until it answers.

    A turn that is over has an `outcome`, and mostly `last_seq`, the number of its final event. `images` and `files` are
    those of the message, stored with the task step. `additional_args` is JSON. With open `requests` it waits.
    """

    ref: SkipValidation[Ref]
    number: int
    agent: AgentVersion
    message: str
    options: TurnOptions
    timing: Timing
    attempts: Count = 0
    outcome: Outcome | None = None
    last_seq: int | None = None
    images: tuple[StepImage, ...] = ()
    additional_args: dict[str, Any] = field(default_factory=dict)
    files: tuple[StepFile, ...] = ()
    requests: tuple[InputRequest, ...] = ()
    answered: tuple[Answered, ...] = ()
    rolled_back: bool = False
    """True after a rollback to an earlier turn. Derived when turns are listed, and not stored."""

    @property
    def status(self) -> TurnStatus:
        if self.outcome:
            return self.outcome.status
        if self.requests:
            return "waiting"
        return "queued" if self.timing.started_at is None else "running"


@record
class Suspension:
    """Pause of a turn for a person. `outcome` is for a stop that comes first, `media` are those of the requests."""

    requests: tuple[InputRequest, ...]
    outcome: Outcome
    media: dict[str, bytes] = field(default_factory=dict)


@record
class TurnInput:
    """Input of a turn that its record does not repeat: images as files, claims of its caller, files as stored."""

    images: tuple[bytes, ...] = ()
    claims: dict[str, Any] = field(default_factory=dict)
    files: tuple[bytes, ...] = ()


@record
class IdempotentRequest:
    """Request that the caller may retry: its Idempotency-Key, and its fields as bytes. The store keeps it `keep_s`."""

    key: str
    request: bytes
    keep_s: int = 86_400


@record
class Submission:
    """Turn for the store, which sets its number and agent. A number that it has already is the expected one.

    `create` is the metadata of a new conversation, or None if it must exist. `asked`: the caller named the agent, so
    another one is an error. `is_named`: the caller named the conversation. `follows`: it reads all events.
    """

    turn: Turn
    turn_input: TurnInput
    create: dict[str, Any] | None
    asked: bool
    version_of: Callable[[AgentName, Sequence[ClientTool]], AgentVersion]  # of the conversation's agent and tools
    once: IdempotentRequest | None = None
    is_named: bool = False
    follows: bool = False


@record
class Page(Generic[T]):
    """Page of a list. `next_cursor` is None on the last page."""

    items: tuple[T, ...]
    next_cursor: str | None
