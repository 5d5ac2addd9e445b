"""What the service keeps, as frozen records without behaviour; the words are those of the design."""

from __future__ import annotations

import hashlib
from dataclasses import field
from typing import TYPE_CHECKING, Any, Generic, Literal, NewType, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from dataclasses import dataclass

    from smolsessions.core.policies import Policy
else:
    from smolsessions.core.frozen import dataclass

T = TypeVar("T")

Owner = NewType("Owner", str)
AgentName = NewType("AgentName", str)
TurnStatus = Literal["queued", "running", "finished", "failed", "cancelled"]
OnBusy = Literal["reject", "enqueue", "interrupt", "rollback"]
RunState = Literal["success", "max_steps_error"]
StepType = Literal["task", "planning", "action", "note", "summary"]
EntryType = StepType | Literal["edit"]
"""Of an entry of the record. An edit is a change of the memory by a callback of the agent's author."""

IMAGE_NAME_DIGITS = 32
MAX_CRASHES = 3  # attempts at a turn that ended with their process before they wrote an effect; then it is given up


@dataclass(frozen=True, slots=True)
class Ref:
    """A conversation's full name: ids are scoped to their owner."""

    owner: Owner
    id: str

    def __str__(self) -> str:
        return f"{self.owner}/{self.id}"


@dataclass(frozen=True, slots=True)
class AgentVersion:
    """What a turn records of the agent that plays it: its configured name, its class, the release of smolagents."""

    name: AgentName
    kind: str
    smolagents: str


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """What `GET /agents` says of an agent."""

    version: AgentVersion
    description: str
    tools: tuple[str, ...]
    max_steps: int
    code_runs_in: Literal["process", "thread", "remote"] | None = None
    fingerprint: str = ""
    """A hash of its prompts, tools and options: a turn is replayed by the very agent that began it."""
    policy: Policy = ()
    """What bounds the memory that its model is shown, where a conversation has no policy of its own."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A conversation that another one was forked from, after a turn of it."""

    scope: str
    turn: int


@dataclass(frozen=True, slots=True)
class Rollback:
    """A rollback: what follows turn `after` goes on from turn `to`."""

    after: int
    to: int


@dataclass(frozen=True, slots=True)
class Terms:
    """What a conversation has of its own beside its agent's: a memory policy (None: the agent's), and its history.

    `lineage` begins with the conversation that it was forked from, `jumps` are its rollbacks in their order.
    """

    policy: Policy | None = None
    lineage: tuple[Origin, ...] = ()
    jumps: tuple[Rollback, ...] = ()

    def is_rolled_back(self, turn: int, last: int) -> bool:
        """Tell whether a turn is none of those that lead to the conversation as it is after turn `last`."""
        place, is_tip = last, True
        for jump in reversed(self.jumps):
            if place > jump.after or (is_tip and place == jump.after):
                if turn > jump.after:
                    break
                place, is_tip = jump.to, False
        return turn > place


@dataclass(frozen=True, slots=True)
class ConversationFields:
    """What a caller may change of a conversation. `policy` None: its agent's; `ttl_s` None: it is kept."""

    metadata: dict[str, Any]
    policy: Policy | None = None
    ttl_s: float | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """The durable thing. Times are Unix seconds.

    `step_counts` are of the steps that a prune or a rollback has not taken out of the memory.
    """

    ref: Ref
    agent: AgentName
    metadata: dict[str, Any]
    created_at: float
    updated_at: float
    turns: int
    step_counts: dict[StepType, int]
    running_turn: int | None
    queued_turns: int
    archived_steps: int = 0
    policy: Policy | None = None
    ttl_s: float | None = None
    expires_at: float | None = None
    forked_from: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a turn failed: a stable code, a sentence for the caller, and whether the same turn may work later."""

    code: str
    message: str
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of a turn. `arguments` is JSON; `ok` says that the tool returned.

    `repeated`: it was in flight when an earlier attempt's process ended, so it may have been made twice.
    """

    call_id: str
    name: str
    arguments: Any
    agent: str
    step_id: str
    internal: bool
    ok: bool
    duration_ms: float
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the model reports them, summed over the turn's finished steps."""

    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PromptSize:
    """What a prompt, or a part of it, holds. Tokens as the model reports them, or an estimate."""

    steps: int
    characters: int
    tokens: int
    is_estimate: bool = True


@dataclass(frozen=True, slots=True)
class PrunePreview:
    """What a prune with a policy changes: the prompt before and after, and the places of the steps that it leaves out.

    `shortened` steps are shown cut by the policy where it is the conversation's; a prune leaves them as they are.
    """

    before: PromptSize
    after: PromptSize
    left_out: tuple[int, ...]
    shortened: int
    edits: tuple[int, ...] = ()
    """Places of the entries that hold later versions of the steps that it leaves out."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What the memory policy left out of a turn's last prompt: whole steps, and what of others was cut."""

    steps: int
    shortened: int
    characters: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Timing:
    """When the turn was accepted, taken by a worker and over: Unix seconds."""

    submitted_at: float
    started_at: float | None = None
    finished_at: float | None = None


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """What the caller asked of this turn beyond its message.

    `max_steps` None: the agent's own; `deadline_s` None: the service's, in seconds from the turn's start.
    """

    max_steps: int | None = None
    reset: bool = False
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class StepImage:
    """An image that a step holds: its name in the conversation (a content hash) and its size in pixels."""

    name: str
    width: int
    height: int


def image_name(data: bytes) -> str:
    """Return the name under which the store keeps an image's bytes."""
    return hashlib.sha256(data).hexdigest()[:IMAGE_NAME_DIGITS]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a turn ended, as the session saw it."""

    status: Literal["finished", "failed", "cancelled"]
    reply: str | None = None
    output: Any = None
    state: RunState | None = None
    steps: int = 0
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    error: Failure | None = None
    dropped_variables: tuple[str, ...] = ()
    left_out: LeftOut | None = None
    images: tuple[StepImage, ...] = ()
    """Images of the answer that were kept with the last step."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One user message and all that the agent does until it answers.

    `outcome` is there when it is over, and `last_seq`, the number of its final event (None where it is not known).
    `images` are those of the message. The store keeps them from the time when it has the turn's task step.
    """

    ref: Ref
    number: int
    agent: AgentVersion
    message: str
    options: TurnOptions
    timing: Timing
    attempts: int = 0
    outcome: Outcome | None = None
    last_seq: int | None = None
    images: tuple[StepImage, ...] = ()
    rolled_back: bool = False
    """The conversation was rolled back to a turn before it: known to who lists turns, not kept with the record."""

    @property
    def status(self) -> TurnStatus:
        if self.outcome:
            return self.outcome.status
        return "queued" if self.timing.started_at is None else "running"


@dataclass(frozen=True, slots=True)
class TurnInput:
    """What only the run needs and the record does not repeat: images as files' bytes, arguments as JSON."""

    images: tuple[bytes, ...] = ()
    additional_args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """A request that its caller may send again: the key that names it, and all that it asks for, as bytes."""

    key: str
    request: bytes


@dataclass(frozen=True, slots=True)
class PackedStep:
    """A finished step as bytes; what is large and repeats (images) lies beside it, by content hash.

    `variables` are the pieces that changed with it, by name; None takes one away.
    """

    type: EntryType
    turn: int
    data: bytes
    attachments: dict[str, bytes]
    variables: dict[str, bytes | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExportedMemory:
    """What a conversation holds as JSON data (docs/export.md).

    `steps` are without their turn and without what the conversation knows of them; `images` are by name; of what could
    not be exported `not_exported` says the agent's path, the kind, the name and the reason.
    """

    steps: tuple[dict[str, Any], ...]
    images: dict[str, dict[str, str]]
    variables: dict[str, Any]
    not_exported: tuple[dict[str, str], ...]


@dataclass(frozen=True, slots=True)
class ImportedMemory:
    """What was made of such data; `archived` and `hidden` are positions in `steps`."""

    steps: tuple[PackedStep, ...]
    archived: frozenset[int] = frozenset()
    hidden: frozenset[int] = frozenset()
    variables: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredStep:
    """A step as the store gives it back."""

    index: int
    type: EntryType
    turn: int
    data: bytes
    attachments: tuple[str, ...]
    hidden: bool
    archived: bool = False
    rolled_back: bool = False
    unanswered: bool = False
    """A task whose turn ended before its first step was finished. Known to pages of steps alone."""


def with_gaps(steps: Sequence[StoredStep]) -> list[bytes]:
    """Return the steps' bytes at their distances; empty bytes stand for one that is missing."""
    data = {step.index: step.data for step in steps}
    return [data.get(index, b"") for index in range(min(data), max(data) + 1)] if data else []


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list; `next_cursor` None: there is no more."""

    items: tuple[T, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Queue:
    """How many of an agent's conversations wait for a thread of any process, and for how long the oldest does."""

    length: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class Queues:
    """What waits, agent by agent, at the partitions that said so; `silent` is how many did not."""

    of: Mapping[AgentName, Queue]
    silent: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What a conversation's agent remembers between turns: `steps` that its model may be shown, and its variables.

    `version` names what the memory is, for who changes it only if it is still so.
    """

    agent: AgentName
    terms: Terms
    version: Version
    steps: tuple[StoredStep, ...]
    attachments: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Version:
    """A conversation's memory as it was read: sealed head and terms, as they lie in the store."""

    head: bytes
    terms: bytes


@dataclass(frozen=True, slots=True)
class ConversationRecord:
    """A whole conversation, to be taken out: all that is on record but events. `pieces` are its variables'."""

    conversation: Conversation
    turns: tuple[Turn, ...]
    jumps: tuple[Rollback, ...]
    steps: tuple[StoredStep, ...]
    attachments: dict[str, bytes]
    pieces: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class ImportedConversation:
    """A conversation that is brought in."""

    turns: tuple[Turn, ...]
    jumps: tuple[Rollback, ...]
    memory: ImportedMemory


@dataclass(frozen=True, slots=True)
class Head:
    """What a conversation's steps are, sealed: how many, of which generation, and a running hash over their tags.

    `shown_from` is the index where what the model is shown begins, `shown_hash` the running hash before it,
    `variables` the tag of the sealed list of the variables' pieces. `archived` (by a prune), `rolled_back` and
    `destroyed` are sets of indexes, as bits; of a destroyed step the store has the tag alone.
    """

    generation: int = 0
    count: int = 0
    hash: bytes = b""
    shown_from: int = 0
    shown_hash: bytes = b""
    step_counts: dict[StepType, int] = field(default_factory=dict)
    variables: bytes = b""
    archived: int = 0
    rolled_back: int = 0
    destroyed: int = 0

    @property
    def out(self) -> int:
        """The places whose steps are not in the memory any more."""
        return self.archived | self.rolled_back | self.destroyed
