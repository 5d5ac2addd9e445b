"""What the core needs of the rooms around it: the store's side and the agents' side, as contracts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from smolsessions.core.events import Event, Logged, StepEvent
    from smolsessions.core.policies import Policy
    from smolsessions.core.records import (
        AgentInfo,
        AgentName,
        AgentVersion,
        Conversation,
        ConversationFields,
        ConversationRecord,
        ExportedMemory,
        IdempotentRequest,
        ImportedConversation,
        ImportedMemory,
        LeftOut,
        Memory,
        OnBusy,
        Outcome,
        Owner,
        PackedStep,
        Page,
        PrunePreview,
        Ref,
        StepType,
        StoredStep,
        Turn,
        TurnInput,
        Usage,
        Version,
    )
    from smolsessions.core.replay_state import ReplayState


StopReason = Literal["cancelled", "interrupted", "rolled_back", "deadline", "lost", "broken", "drained"]


class LogReader(Protocol):
    """One reader of a conversation's events. Registered before the turn is submitted, it misses nothing."""

    def follow(self, turn: int, after: int = 0) -> AsyncIterator[Logged | None]:
        """Yield the turn's events with `seq > after`, each once and in order; ends after the final one.

        Yields None when there was none for about 15 s.
        """
        ...

    async def prepare(self, turn: int, after: int) -> None:
        """Look into the log once. Raises `SealBrokenError`, which would else come amid the stream."""
        ...

    async def end_of(self, turn: int) -> Turn | None:
        """Wait for the turn's end alone, which spares all others; None when stopped."""
        ...

    def stop(self) -> None:
        """Make `follow` end, without a final event."""
        ...


class TurnStore(Protocol):
    """Accepting turns and looking at them."""

    async def submit(
        self,
        turn: Turn,
        turn_input: TurnInput,
        *,
        create: dict[str, Any] | None,
        asked: bool,
        version_of: Callable[[AgentName], AgentVersion],
        on_busy: OnBusy = "reject",
        once: IdempotentRequest | None = None,
    ) -> tuple[Turn, bool]:
        """Accept a turn in one atomic step and give it back with its number and its conversation's agent.

        It goes behind those that run or wait, whose first is stopped where `on_busy` says so. With `once` the turn that
        the same request made before is given back (False): no other one is made. Then a conversation that is to be made
        gets an id that follows from owner and key.

        `create` holds the metadata of a conversation to be made where there is none; `asked` says that the caller named
        the agent, so that another one is an error; `version_of` describes
        the agent that it turns out to be. Raises `ConversationNotFoundError`, `OtherAgentError`,
        `AgentUnavailableError`, `BusyError`, `TooManyTurnsError`, `OverloadedError`, and what `recall` raises; then
        nothing was written.
        """
        ...

    async def recall(self, owner: Owner, once: IdempotentRequest) -> Turn | None:
        """Give the turn that this request made before, if it did.

        Raises `IdempotencyKeyReusedError` where its key came with another request, and `ConversationNotFoundError`
        where the turn's conversation was deleted.
        """
        ...

    def reader(self, ref: Ref, *, looks: bool, wants_all: bool) -> AbstractContextManager[LogReader]:
        """Register a reader of this process.

        One that `looks` begins with what is in the log; one that is registered before its turn is submitted need not.
        One that does not want all is asked for the turn's end alone.
        """
        ...

    async def cancel(self, ref: Ref, number: int) -> tuple[Turn, bool]:
        """Stop a turn: one that nobody has begun is over (True) when this returns, another one's worker is told.

        Raises what `turn` raises.
        """
        ...

    async def turn(self, ref: Ref, number: int) -> Turn:
        """Raise `TurnNotFoundError` or `ConversationNotFoundError` where there is none."""
        ...

    async def turns(self, ref: Ref, first: int, limit: int) -> Page[Turn]:
        """Give turns in ascending order from number `first`."""
        ...


class ConversationStore(Protocol):
    """Conversations at rest."""

    async def create(self, ref: Ref, agent: AgentName, draft: ConversationFields) -> Conversation:
        """Raise `ConversationExistsError` where the id is taken."""
        ...

    async def conversation(self, ref: Ref) -> Conversation:
        """Raise `ConversationNotFoundError` where there is none."""
        ...

    async def conversations(self, owner: Owner, cursor: str | None, limit: int) -> Page[Conversation]:
        """Give an owner's conversations, newest first."""
        ...

    async def patch(self, ref: Ref, change: Callable[[Conversation], ConversationFields]) -> Conversation:
        """Make of the conversation what `change` gives, again where another writer came between."""
        ...

    async def delete(self, ref: Ref) -> Sequence[Turn]:
        """End the turns that run or wait as cancelled (they are given back), then take the conversation away."""
        ...

    async def steps(
        self, ref: Ref, first: int, limit: int, kind: StepType | None = None, *, archived: bool = False
    ) -> tuple[AgentName, Page[StoredStep], dict[str, bytes]]:
        """Give steps from index `first`, hidden ones too, with their attachments; what does not verify is an error.

        Of one kind alone if asked to: then a page may hold fewer than the limit although there are more.
        """
        ...

    async def image(self, ref: Ref, name: str) -> bytes:
        """Give an attachment by its name. Raises `NotFoundError`."""
        ...


class HistoryStore(Protocol):
    """What is done to conversations between their turns. While one runs all raise `BusyError`."""

    async def memory(self, ref: Ref, *, may_run: bool = False) -> Memory:
        """Read what the model is shown next, before any policy; `may_run`: also amid a turn, as it was before."""
        ...

    async def archive(self, ref: Ref, version: Version, places: Sequence[int]) -> Conversation | None:
        """Take steps out of the memory; they stay on record. None where the memory is of another version by now."""
        ...

    async def destroy(self, ref: Ref, version: Version, places: Sequence[int]) -> tuple[Conversation, int] | None:
        """Delete steps, and all that are archived or rolled back; give how many."""
        ...

    async def roll_back(self, ref: Ref, turn: int) -> Conversation:
        """Go back to what the conversation was after a turn (0: before the first): steps and variables.

        Raises `TurnNotFoundError`, and `HistoryGoneError` where its variables are not kept any more.
        """
        ...

    async def fork(self, ref: Ref, turn: int | None, metadata: dict[str, Any] | None) -> Conversation:
        """Make a conversation that is what this one was after a turn (None: its last). Raises as `roll_back` does."""
        ...

    async def record(self, ref: Ref) -> ConversationRecord:
        """Read all that is on record of a conversation, but for events."""
        ...

    async def adopt(
        self, ref: Ref, agent: AgentName, draft: ConversationFields, brought: ImportedConversation
    ) -> Conversation:
        """Make a conversation of what is brought in. Raises `ConversationExistsError`."""
        ...


class Lease(Protocol):
    """A worker's fenced right to one conversation, while it plays one turn of it."""

    @property
    def turn(self) -> Turn: ...

    @property
    def turn_input(self) -> TurnInput: ...

    @property
    def attempt(self) -> int: ...

    @property
    def fence(self) -> str:
        """The token without which nothing is written."""
        ...

    @property
    def version(self) -> bytes:
        """What the conversation's steps are now; a session of the same version needs no loading."""
        ...

    async def steps(self) -> tuple[list[bytes], dict[str, bytes]]:
        """Load the entries that make the memory, verified, with their attachments.

        The bytes of one that is out of the memory are empty, so that entries keep their distances.
        """
        ...

    async def variables(self) -> dict[str, bytes]:
        """Load the pieces of the agent's variables, verified."""
        ...

    @property
    def stop_reason(self) -> asyncio.Future[StopReason]:
        """Done when the turn is to stop: somebody wants it, or another one holds the conversation. The first reason."""
        ...

    def cancel(self, why: bytes) -> None:
        """Somebody wants the turn to stop; `why` is the store's own flag, the strongest one counts in `commit`."""
        ...

    def lose(self) -> None:
        """Another one holds the conversation now."""
        ...

    def confirm(self, at: float) -> None:
        """The store has said that the lease was held, to a question that was asked `at` (of the monotonic clock)."""
        ...

    def check_readable(self) -> None:
        """Raise `SealBrokenError` where what was claimed cannot be read; the turn can be ended all the same."""
        ...

    async def flush(self) -> None:
        """Wait until all that was emitted is written. Raises `LeaseLostError` and `SealBrokenError`."""
        ...

    async def load_replay_state(self) -> ReplayState:
        """Load what earlier attempts left: their finished steps are kept, whatever comes."""
        ...

    @property
    def kept_steps(self) -> int:
        """How many finished steps of this turn are kept, without its task."""
        ...

    @property
    def lacks_task(self) -> bool:
        """True while no step of this turn is kept, not even its task."""
        ...

    @property
    def watched(self) -> bool:
        """Somebody may want to see events at once. For any thread; a hint: who comes later sees them a little later."""
        ...

    @property
    def crashes(self) -> int:
        """How many attempts at the turn ended with their process, and without a new effect."""
        ...

    @property
    def has_progressed(self) -> bool:
        """This attempt has written an effect."""
        ...

    @property
    def fingerprint(self) -> str:
        """What the agent was that began the turn."""
        ...

    @property
    def policy(self) -> Policy | None:
        """The conversation's own memory policy, as it was when the turn was claimed; None: the agent's."""
        ...

    def when_written(self, call: Callable[[], object]) -> None:
        """Call when all that was emitted so far is written, or never will be."""
        ...

    @property
    def backlog(self) -> int:
        """How many writes the store has not answered yet."""
        ...

    @property
    def is_late(self) -> bool:
        """Writes wait for long, or it is not certain that the lease is still held. For any thread."""
        ...

    @property
    def is_sure(self) -> bool:
        """The store has said so lately that the lease cannot have run out. For any thread."""
        ...

    @property
    def is_over(self) -> bool:
        """Nothing can be written any more: another one holds the conversation, or the store was tampered with."""
        ...

    def emit(
        self, key: str, *, result: bytes = b"", step: PackedStep | None = None, events: Iterable[Event] = ()
    ) -> None:
        """Queue one write of the turn; returns at once. What was queued before is written before.

        `result` is what the journal holds under the key, until the turn is over; without a key it holds nothing.
        """
        ...

    def buffer_events(self, events: Iterable[Event]) -> bool:
        """Take the last events of the turn, to be written by its commit; False where they must be emitted."""
        ...

    async def commit(self, outcome: Outcome) -> Turn:
        """End the turn: the steps emitted so far stay, the final event is shown, the lease goes back.

        A turn that another one interrupted says so in what is given back; one that is rolled back is cancelled whatever
        its outcome, and the conversation is left as the turn found it.
        Repeated until the store answers. Raises `LeaseLostError` where another one holds the conversation now, and
        `SealBrokenError` where stored steps are missing; then a second commit ends the turn and leaves the steps.
        """
        ...


class Scheduler(Protocol):
    """Who plays what. Leases last `lease_s` seconds from claim or renewal."""

    @property
    def lease_s(self) -> float: ...

    async def claim(self, agents: Mapping[AgentName, str], most: int, *, idle: bool) -> Sequence[Lease]:
        """Take up to `most` ready conversations of these agents (with their fingerprints), the longest waiting first.

        A turn with a counted attempt is given, alone, to an idle worker: one whose turns have all got on. One that
        another kind of agent began is left for a while to a worker that has that one. Where the store is away, or slow
        to answer, there is nothing now; what it gives late is given by a later call.
        """
        ...

    def stop_claiming(self) -> None:
        """Take nothing more: what was claimed late, or is still to come, goes back."""
        ...

    async def all_given_back(self) -> None:
        """Wait, once claiming was stopped, until what came late is back; a store that is away is waited for."""
        ...

    async def renew(self, leases: Sequence[Lease]) -> None:
        """Extend the leases; those that are gone are `lost` now."""
        ...

    async def sweep(self) -> int:
        """Make conversations with an expired lease ready again; give their number."""
        ...

    async def hand_back(self, lease: Lease) -> None:
        """Give up a claim, begun or not; its conversation is ready again."""
        ...

    def nudge(self) -> None:
        """Make `wait_for_work` return."""
        ...

    async def wait_for_work(self, timeout_s: float) -> None:
        """Return when a conversation may have become ready, at the latest after the timeout. A hint, no promise."""
        ...


class EventBridge(Protocol):
    """What a session plays on: what it tells goes out, a stop comes in. For any thread."""

    @property
    def stop_requested(self) -> bool:
        """The turn is to stop. Asked at every model call, delta and tool call; once true it stays so."""
        ...

    @property
    def pause_requested(self) -> bool:
        """The turn is to be handed to another worker as soon as the step that runs is finished."""
        ...

    def emit(
        self, event: StepEvent | None, step: PackedStep | None = None, effect: tuple[str, bytes] | None = None
    ) -> None:
        """Hand on an event, and a finished step or an effect (key and result) to be kept with it. Returns at once."""
        ...

    @property
    def hands_over(self) -> bool:
        """What is broken off goes on elsewhere, and is shown there."""
        ...

    @property
    def is_late(self) -> bool:
        """What was told waits for the store longer than it should, or the lease may be lost."""
        ...

    def flush(self, effect: tuple[str, bytes] | None = None) -> None:
        """Return when all that was told so far, and this effect, is written, or the turn is to stop."""
        ...


class Session(Protocol):
    """A conversation's live agent in this process. One turn at a time."""

    held_bytes: int
    """Size of the images and variables that it holds between turns."""

    def run_turn(
        self,
        turn: Turn,
        turn_input: TurnInput,
        bridge: EventBridge,
        replay: ReplayState | None = None,
        policy: Policy | None = None,
    ) -> Outcome:
        """Run the agent in the calling thread, telling the stage all that happens and each finished step.

        What an earlier attempt did (`replay`) is not done again; `policy` None: the agent's own. Never raises what the
        agent raises: that is a failed outcome. A turn that the stage halted is a cancelled one.
        """
        ...

    def cut_model_calls(self) -> None:
        """End waits for a model's provider, after the stage was halted. Called on the loop while `run_turn` runs."""
        ...

    def partial_outcome(self) -> Outcome:
        """Give the turn that is being played as a cancelled one, as far as it went; its thread does not come back."""
        ...

    def close(self) -> None:
        """Let go of what the agent holds."""
        ...


class AgentCatalog(Protocol):
    """The agents that this process can play."""

    @property
    def infos(self) -> dict[AgentName, AgentInfo]: ...

    def confinement(self) -> dict[AgentName, Literal["namespaces", "landlock", "uid", "none"] | None]:
        """Tell what confines each agent's code; called in a thread, as it may wait for processes to come up."""
        ...

    def build(
        self, name: AgentName, steps: Sequence[bytes], attachments: dict[str, bytes], variables: dict[str, bytes]
    ) -> Session:
        """Make a session whose memory these entries make, and with these variables; called in a thread.

        Empty bytes stand for an entry that is out of the memory.
        """
        ...

    def task_step(self, turn: Turn, turn_input: TurnInput) -> PackedStep:
        """Return the task of a turn that ended before its agent ran, as a step; called in a thread.

        Raises a `ServiceError` for one that is too large.
        """
        ...

    def journal_usage(self, replay: ReplayState) -> Usage:
        """Return the tokens of the model calls that a turn's journal holds."""
        ...

    def check_policy(self, name: AgentName, policy: Policy, pointer: str) -> None:
        """Raise `InvalidRequestError` at this pointer for a policy that the agent cannot have."""
        ...

    def messages(
        self, name: AgentName, memory: Memory, policy: Policy | None, *, summary_mode: bool
    ) -> tuple[list[dict[str, Any]], LeftOut | None]:
        """Give what the model is shown next of a memory, and what the policy (None: the agent's) leaves out."""
        ...

    def preview_prune(self, name: AgentName, memory: Memory, policy: Policy | None) -> PrunePreview:
        """Say what a prune of the memory would leave out. Raises `InvalidRequestError` where none bounds it."""
        ...

    def describe_step(self, name: AgentName, step: bytes, attachments: dict[str, bytes]) -> dict[str, Any]:
        """Give a step as JSON."""
        ...

    def export(
        self, name: AgentName, steps: Sequence[bytes], attachments: dict[str, bytes], variables: dict[str, bytes]
    ) -> ExportedMemory:
        """Give steps, the images that they show, and variables as JSON data (docs/export.md); called in a thread.

        A step is without its turn and without what only the conversation knows of it.
        """
        ...

    def import_document(self, name: AgentName, data: Any, max_pixels: int) -> ImportedMemory:
        """Make steps and pieces of a document's `format`, `version`, `steps`, `images` and `variables`; in a thread.

        Its steps may be smolagents' own (`MEMORY_FORMAT`). `max_pixels` bounds a step's images together.
        Raises `InvalidRequestError` with a pointer into the document.
        """
        ...

    def image_file(self, data: bytes) -> tuple[str, bytes]:
        """Give an attachment as an image file: its media type and its bytes."""
        ...
