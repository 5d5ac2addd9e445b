"""Contracts of the store, as the core and the worker call it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, TypeVar

from smolsessions.core import records
from smolsessions.core.callers import Caller
from smolsessions.core.effects import JournaledResult, JournalSizes
from smolsessions.core.events import Event, Logged, ReplayState
from smolsessions.core.frozen import record
from smolsessions.core.memories import ConversationRecord, ImportedConversation, Memory, PackedStep, StoredStep, Version
from smolsessions.core.records import AgentName, Conversation, Owner, Page, Ref, Turn
from smolsessions.core.requests import Answer

WriteFiles = Callable[[Ref], Awaitable[Callable[[], Awaitable[None]]]]
"""Writes the files of a new conversation, right before it can be seen: no kill leaves it with some of them.

Returns what takes them back, if the conversation could not be created.
"""
StopReason = Literal["cancelled", "interrupted", "rolled_back", "deadline", "lost", "broken", "drained"]


@record
class Queue:
    """Number of an agent's conversations that wait for a thread, and the age of the oldest."""

    length: int
    oldest_s: float


@record
class Queues:
    """Queues by agent, of the partitions that answered. `silent` is the number of the others.

    `waiting` counts the turns that wait for a person.
    """

    of: Mapping[AgentName, Queue]
    waiting: Queue
    silent: int


class LogReader(Protocol):
    """Reader of one conversation's events. It misses no event of a turn that is submitted after its registration."""

    length: int
    """Number of events in the log when it was prepared, else 0."""
    waits: bool
    """True if the turn waited for a person then."""

    def follow(self, turn: int, after: int = 0) -> AsyncGenerator[Logged | None]:
        """Yield events with `seq > after`, each once, up to the final one. Yields None after 15 s without an event."""

    async def prepare(self, turn: int, after: int) -> None:
        """Read the log once. Raises the `SealBrokenError` that `follow` would raise in mid-stream."""

    async def end_of(self, turn: int, *, past_waits: bool) -> Turn | None:
        """Wait for the turn's end. Returns None when stopped, or when it waits for a person, except `past_waits`."""

    def stop(self) -> None:
        """End `follow` without a final event."""


class TurnStore(Protocol):
    """Turns that are submitted, read and cancelled."""

    async def submit(self, new: records.Submission) -> tuple[Turn, bool]:
        """Append a turn to its conversation's queue in one atomic step. Return it with its number and agent.

        If the same request made a turn before, that turn is returned, with False. The id of a conversation that a
        request with a key creates follows from owner and key.

        Raises `ConversationNotFoundError`, `OtherAgentError`, `AgentUnavailableError`, `BusyError`,
        `TooManyTurnsError`, `OverloadedError` and the errors of `recall`. Then nothing was written.
        """

    async def reserve_name(self, ref: Ref, once: records.IdempotentRequest) -> tuple[Ref, bool]:
        """Reserve a name for a key, of a conversation or a turn. Return the reserved name, and whether it is new.

        Raises `IdempotencyKeyReusedError` if another request had the key.
        """

    async def reserved_name(self, owner: Owner, once: records.IdempotentRequest) -> Ref | None:
        """Return the name that is reserved for a key."""

    async def release_name(self, owner: Owner, once: records.IdempotentRequest) -> None:
        """Forget a key whose request was refused."""

    async def recall(self, owner: Owner, once: records.IdempotentRequest) -> Turn | None:
        """Return the turn that this request made before, or None.

        Raises `IdempotencyKeyReusedError` if its key came with another request, and `ConversationNotFoundError` if
        the turn's conversation was deleted.
        """

    def reader(self, ref: Ref, *, reads_log: bool, all_events: bool) -> AbstractContextManager[LogReader]:
        """Register a reader of this process. Without `all_events` it only waits for the turn's end.

        Without `reads_log` it starts empty, which is enough before the turn is submitted.
        """

    async def cancel(self, ref: Ref, number: int) -> tuple[Turn, bool]:
        """Stop a turn. One that has not begun ends at once (True), else its worker is notified. Raises as `turn`."""

    async def answer(
        self, ref: Ref, number: int, accept: Callable[[Turn, bool], Awaitable[Sequence[Answer] | None]]
    ) -> Turn:
        """Record the answers that `accept` returns for the turn, in one step. None: it goes on without one.

        `accept` gets the turn and whether it waits. It is called again after a concurrent write. Raises the errors of
        `accept` and of `turn`.
        """

    async def turn(self, ref: Ref, number: int) -> Turn:
        """Raises `TurnNotFoundError` and `ConversationNotFoundError`."""

    async def journal(self, ref: Ref, number: int) -> JournalSizes:
        """Return the keys in an open turn's journal. That of a turn that is over is empty. Raises `SealBrokenError`."""

    async def journaled_results(self, ref: Ref, number: int, keys: Sequence[str]) -> dict[str, JournaledResult]:
        """Return the first bytes of results in a turn's journal, none if it ended. Raises `SealBrokenError`."""

    async def turns(self, ref: Ref, first: int | None, limit: int, order: records.Order = "asc") -> Page[Turn]:
        """Return turns from number `first` on. None: from the first of this order. Large ones make a page shorter."""


class ConversationStore(Protocol):
    """Conversations between turns."""

    async def create(self, ref: Ref, agent: AgentName, draft: records.ConversationFields) -> Conversation:
        """Raises `ConversationExistsError`."""

    async def conversation(self, ref: Ref) -> Conversation:
        """Raises `ConversationNotFoundError`."""

    async def conversations(
        self, owner: Owner, query: records.ConversationQuery, after: str | None, limit: int
    ) -> Page[Conversation]:
        """Return an owner's conversations behind a cursor. A filtered page may be short, although more follow."""

    async def patch(
        self,
        ref: Ref,
        change: Callable[[Conversation], records.ConversationFields],
        first_agent: AgentName | None = None,
    ) -> Conversation:
        """Store the result of `change`, which is called again after a concurrent write.

        A conversation without a turn gets `first_agent`.
        """

    async def delete(self, ref: Ref) -> Sequence[Turn]:
        """Delete the conversation. Return its running and waiting turns, which end as cancelled."""

    async def steps(
        self,
        ref: Ref,
        first: int | None,
        limit: int,
        kind: records.StepType | None = None,
        *,
        archived: bool = False,
        order: records.Order = "asc",
    ) -> tuple[AgentName, Page[StoredStep], dict[str, bytes]]:
        """Return steps from index `first`, or from below it, with hidden ones and their attachments.

        Raises `SealBrokenError`.

        With `kind`, or if steps are large, a page may hold fewer than the limit although more follow.
        """

    async def attachment(self, ref: Ref, name: str) -> bytes:
        """Return an attachment. Raises `NotFoundError`."""


class HistoryStore(Protocol):
    """Memory of conversations between turns. All methods raise `BusyError` while a turn runs."""

    async def memory(self, ref: Ref, *, may_run: bool = False) -> Memory:
        """Return the memory before any policy. With `may_run` also during a turn, as it was before that turn."""

    async def past_memory(self, ref: Ref, turn: int, step: int) -> Memory:
        """Return the memory before a step of a turn that is over, without destroyed steps. Also during a turn.

        Raises `BusyError` if that turn is not over, `TurnNotFoundError`, and `HistoryGoneError` if the memory before
        it is not kept. A `step` that the turn does not have is an `InvalidRequestError`.
        """

    async def archive(self, ref: Ref, version: Version, places: Sequence[int]) -> Conversation | None:
        """Archive steps, which stay on record. Returns None if the memory has another version by now."""

    async def destroy(self, ref: Ref, version: Version, places: Sequence[int]) -> tuple[Conversation, int] | None:
        """Delete these steps and all that are archived or rolled back. Return their number, or None as `archive`."""

    async def roll_back(self, ref: Ref, turn: int) -> Conversation:
        """Restore steps and variables as they were after a turn (0: before the first).

        Raises `TurnNotFoundError`, and `HistoryGoneError` if the variables of that turn are not kept any more.
        """

    def name_beside(self, ref: Ref) -> Ref:
        """Return an unused name for a fork, in the partition of its origin."""

    async def fork(
        self, ref: Ref, new_ref: Ref, turn: int | None, metadata: dict[str, Any] | None, write_files: WriteFiles
    ) -> Conversation:
        """Copy the state after a turn (None: the last). `new_ref` is from `name_beside`. Raises as `roll_back`."""

    async def record(self, ref: Ref) -> ConversationRecord:
        """Return everything on record except events."""

    async def variables(self, ref: Ref) -> tuple[AgentName, dict[str, bytes]]:
        """Return the agent's name and the pieces of the variables by name."""

    async def store_import(
        self,
        ref: Ref,
        agent: AgentName,
        draft: records.ConversationFields,
        imported: ImportedConversation,
        write_files: WriteFiles,
    ) -> Conversation:
        """Create a conversation from an import. Raises `ConversationExistsError`."""


class WorkspaceFolders(Protocol):
    """Files of conversations, by owner and id. They are no part of the store. The methods block."""

    def files(self, owner: str, conversation_id: str) -> tuple[dict[str, bytes], dict[str, str]]:
        """Return the files, and why others are left out, by path. A bound of all files has an empty path."""

    def listed(self, owner: str, conversation_id: str) -> tuple[dict[str, tuple[int, float]], bool]:
        """Return size in bytes and Unix time of the last change of each file, by path, and whether it is all files."""

    def file(self, owner: str, conversation_id: str, path: str) -> bytes | None:
        """Return one file. It is None if absent."""

    def refusal(self, files: Mapping[str, bytes]) -> tuple[str, str] | None:
        """Return path and sentence for the first of these files that no conversation can have."""

    def create(self, owner: str, conversation_id: str, files: Mapping[str, bytes]) -> Callable[[], None]:
        """Write all files of a new conversation, or raise `OSError`. The returned function restores earlier ones."""

    def delete(self, owner: str, conversation_id: str) -> None:
        """Delete all files of a conversation. Raises `OSError`."""

    def conversations(self) -> Iterator[tuple[str, str]]:
        """Yield owner and id of the conversations with files, also of deleted ones. Raises `OSError`.

        Files that changed in the last minutes are left out, as their conversation may still be created.
        """


class Lease(Protocol):
    """Fenced right of a worker to write to one conversation while it runs one turn."""

    turn: Turn
    turn_input: records.TurnInput
    caller: Caller
    """Caller of the turn. The metadata are those at the claim."""
    attempt: int
    head_tag: bytes
    """Tag of the head's seal, which names a version of the steps. A warm session of it needs no loading."""
    fingerprint: str
    """Fingerprint of the agent that began the turn."""
    settings: records.ConversationSettings
    """Those of the conversation at the claim."""
    crashes: int
    """Number of attempts that ended with their process and without a new effect."""
    is_over: bool
    """True if nothing can be written any more: the lease is lost, or the stored data is damaged. For any thread."""
    has_progressed: bool
    """True once this attempt has written an effect."""
    stop_reason: asyncio.Future[StopReason]
    """Future of the first reason to stop the turn."""
    on_reader: Callable[[], object] | None
    """Called when a reader comes, to write the events that wait."""

    steers: bool
    """True if messages may wait that are to join the turn. For any thread."""
    steered: tuple[Turn, ...]
    """Turns that ended because this attempt took their messages."""

    @property
    def kept_steps(self) -> int:
        """Number of this turn's stored steps, without its task."""

    @property
    def lacks_task(self) -> bool:
        """True while not even the turn's task is stored."""

    @property
    def watched(self) -> bool:
        """True if a reader may wait for events. A hint, for any thread."""

    @property
    def backlog(self) -> int:
        """Number of writes that the store has not acknowledged."""

    @property
    def is_late(self) -> bool:
        """True if writes wait for long, or the lease may have expired. For any thread."""

    @property
    def is_sure(self) -> bool:
        """True if the lease cannot have expired. For any thread."""

    def check_readable(self) -> None:
        """Raise `SealBrokenError` if the claimed records cannot be read. The turn can still be committed."""

    async def steps(self) -> tuple[list[bytes], dict[str, bytes]]:
        """Load and verify the steps and attachments. A step that is not in memory is empty bytes: indexes stay."""

    async def variables(self) -> dict[str, bytes]:
        """Load and verify the agent's variables."""

    async def load_replay_state(self, *, effects: bool = True) -> ReplayState:
        """Load the steps of earlier attempts, and with `effects` their journal and events, too."""

    async def load_steering(self) -> list[tuple[Turn, records.TurnInput]]:
        """Return the queued turns whose messages are to join, as they end with that, the oldest first.

        A write whose key is `joined:PLACE:TURN` ends such a turn. Sets `steers` if more are left.
        """

    def compress(self, step: PackedStep | None, result: bytes) -> None:
        """Compress the large parts of the next emit. For the agent's thread, as the loop would wait for it."""

    def emit(
        self, key: str, *, result: bytes = b"", step: PackedStep | None = None, events: Sequence[Event] = ()
    ) -> None:
        """Queue one write, in order. The journal keeps `result` under the key, if any, until the turn is over."""

    def send(self) -> None:
        """Send all queued writes."""

    def buffer_events(self, events: Sequence[Event]) -> bool:
        """Keep the turn's last events for the commit. Returns False if they must be emitted."""

    def when_written(self, call: Callable[[], object]) -> None:
        """Call once all writes so far are acknowledged or given up."""

    async def flush(self) -> None:
        """Wait until all writes so far are acknowledged. Raises `LeaseLostError` and `SealBrokenError`."""

    async def suspend(self, pause: records.Suspension) -> bool:
        """Let the turn wait for a person, and release the lease. False: it is to stop instead. Raises as `commit`."""

    async def commit(self, outcome: records.Outcome) -> Turn:
        """End the turn: keep its steps, append the final event, release the lease. Retried until the store answers.

        A pending stop request is part of the returned turn. A turn that is rolled back is cancelled, and leaves the
        conversation as it was.
        Raises `LeaseLostError`, and `SealBrokenError` if stored steps are missing. After the latter, a second commit
        ends the turn and leaves the steps.
        """


L = TypeVar("L", bound=Lease)
M_contra = TypeVar("M_contra", bound=Lease, contravariant=True)


class Intake(Protocol[M_contra]):
    """Worker of this process, which begins the turns that this process submits if a thread is free for them."""

    reserved_threads: int
    """Number of threads that wait for turns which are being submitted."""

    def reserve_thread(self, agent: AgentName, owner: Owner) -> Mapping[AgentName, str] | None:
        """Reserve a thread for a turn of this agent. Return all agents with their fingerprints, or None."""

    def use_thread(self, lease: M_contra | None, owner: Owner) -> None:
        """Begin a turn in the thread that was reserved for the owner. None: free the thread."""


class Scheduler(Protocol[L]):
    """Assignment of ready conversations to workers. A lease lasts `lease_s` from its claim or renewal."""

    intake: Intake[L] | None

    @property
    def lease_s(self) -> float: ...

    async def claim(
        self, agents: Mapping[AgentName, str], most: int, *, idle: bool, most_each: int, rooms: Mapping[Owner, int]
    ) -> Sequence[L]:
        """Claim up to `most` ready conversations of these agents (with their fingerprints), oldest first.

        Of an owner at most its number in `rooms`, else `most_each`, are claimed.

        An idle worker's turns have all progressed. Only such a worker gets a turn with a crash, alone. A turn that an
        agent with another fingerprint began waits a while for a worker with that agent. A store that is away or slow
        yields nothing. A later call returns its late claims.
        """

    def stop_claiming(self) -> None:
        """Claim no more, and hand late claims back."""

    async def all_given_back(self) -> None:
        """Wait, after `stop_claiming`, until late claims are handed back."""

    async def renew(self, leases: Sequence[L]) -> None:
        """Extend the leases. Expired ones become lost."""

    async def sweep(self) -> int:
        """Make conversations with an expired lease ready again, and return their number."""

    async def hand_back(self, lease: L) -> None:
        """Release a lease before its turn has ended. Its conversation is ready again."""

    def nudge(self) -> None:
        """Make `wait_for_work` return."""

    async def wait_for_work(self, timeout_s: float) -> None:
        """Return when a conversation may be ready, or after the timeout. A hint only."""
