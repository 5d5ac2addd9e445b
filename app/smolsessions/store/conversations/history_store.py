"""History of a conversation between its turns: read, prune, roll back, fork, export, import."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from smolsessions.core.errors import (
    BusyError,
    ConversationExistsError,
    ConversationNotFoundError,
    HistoryGoneError,
    SealBrokenError,
    StoreUnavailableError,
    TurnNotFoundError,
)
from smolsessions.core.records import AgentName, ConversationRecord, Head, Memory, Origin, Ref, Rollback, Terms, Version
from smolsessions.store import codec
from smolsessions.store.conversation_sealer import NO_TERMS
from smolsessions.store.conversations.conversation_store import sealed_terms, ttl_us
from smolsessions.store.conversations.head import (
    COUNT_SENTENCE,
    VARIABLES_SENTENCE,
    counted,
    extend_hash,
    load_images,
    open_chunk_list,
    open_head,
)
from smolsessions.store.conversations.sealed_import import seal_import

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from smolsessions.core.records import (
        Conversation,
        ConversationFields,
        ImportedConversation,
        StepType,
        StoredStep,
        Turn,
    )
    from smolsessions.store.conversations.conversation_store import ConversationStore
    from smolsessions.store.partition import Partitions
    from smolsessions.store.scripts.loader import Argument
    from smolsessions.store.turns.turn_store import TurnStore

T = TypeVar("T")

STEPS_AT_ONCE = 500
TURNS_AT_ONCE = 500
MOST_TRIES = 20
MOST_FORKS = 50


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """State of a conversation at one moment. `earlier` is its head after an earlier turn, None if not kept."""

    agent: AgentName
    metadata: dict[str, Any]
    terms: Terms
    version: Version
    head: Head
    turns: int
    earlier: Head | None
    ttl_us: int | str


class HistoryStore:
    """Reads and changes of a conversation's history. All raise `BusyError` while a turn runs."""

    def __init__(self, partitions: Partitions, conversations: ConversationStore, turns: TurnStore) -> None:
        self._partitions = partitions
        self._conversations = conversations
        self._turns = turns

    async def memory(self, ref: Ref, *, may_run: bool = False) -> Memory:
        async def read(snapshot: _Snapshot) -> Memory:
            head, found = snapshot.head, await self._steps(ref, snapshot.head)
            steps = [step for step in found if not step.hidden and not head.out >> step.index & 1]
            images = await load_images(self._partitions.of(ref), str(ref), steps)
            return Memory(snapshot.agent, snapshot.terms, snapshot.version, tuple(steps), images)

        return await self._with_snapshot(ref, read, may_run=may_run)

    async def archive(self, ref: Ref, version: Version, places: Sequence[int]) -> Conversation | None:
        head = await self._without(ref, version, places)
        if head is None:
            return None
        return await self._amend(ref, version, replace(head, archived=head.archived | _bits(places)))

    async def destroy(self, ref: Ref, version: Version, places: Sequence[int]) -> tuple[Conversation, int] | None:
        """Also delete the images that no other step has, and the logs of the steps' turns, which contain the steps."""
        head = await self._without(ref, version, places)
        if head is None:
            return None
        steps = await self._unless_changed(ref, version, self._steps(ref, head))
        if steps is None:
            return None
        bits = _bits(places) | head.archived | head.rolled_back
        gone = [step for step in steps if bits >> step.index & 1]
        kept = {name for step in steps if not bits >> step.index & 1 for name in step.attachments}
        images = {name for step in gone for name in step.attachments} - kept
        head = replace(head, destroyed=head.destroyed | bits, archived=0, rolled_back=0)
        amended = await self._amend(ref, version, head, gone=gone, images=sorted(images))
        return (amended, sum(step.type != "edit" for step in gone)) if amended else None

    async def roll_back(self, ref: Ref, turn: int) -> Conversation:
        async def go(snapshot: _Snapshot) -> Conversation | None:
            head, earlier = snapshot.head, await self._earlier(ref, snapshot, turn)
            later = ((1 << head.count) - 1) >> earlier.count << earlier.count
            back = replace(earlier, count=head.count, hash=head.hash, rolled_back=earlier.rolled_back | later)
            # Of two rollbacks without a turn between them only the second counts.
            before = tuple(jump for jump in snapshot.terms.jumps if jump.after < snapshot.turns)
            terms = replace(snapshot.terms, jumps=(*before, Rollback(snapshot.turns, turn)))
            return await self._amend(
                ref,
                snapshot.version,
                await self._as_destroyed(ref, back, head),
                terms=sealed_terms(self._partitions.of(ref), str(ref), terms),
                restore=await self._chunk_tags(ref, earlier, head),
                turns=snapshot.turns,
            )

        return await self._with_snapshot(ref, go, turn)

    async def fork(self, ref: Ref, turn: int | None, metadata: dict[str, Any] | None) -> Conversation:
        async def branch(snapshot: _Snapshot) -> Conversation | None:
            at = snapshot.turns if turn is None else turn
            earlier = snapshot.head if turn is None else await self._earlier(ref, snapshot, turn)
            head = await self._as_destroyed(ref, earlier, snapshot.head)
            jumps = tuple(jump for jump in snapshot.terms.jumps if jump.after < at or turn is None)
            lineage = (Origin(str(ref), at), *snapshot.terms.lineage)
            if len(lineage) > MOST_FORKS:
                raise BusyError(f"This conversation was forked {MOST_FORKS} times in a row; export it and import it.")
            terms = Terms(snapshot.terms.policy, lineage, jumps)
            about = snapshot.metadata if metadata is None else metadata
            return await self._copy(ref, snapshot, turn=at, head=head, terms=terms, metadata=about)

        most = 2**31 if turn is None else turn
        return await self._with_snapshot(ref, branch, most, any_turn=turn is None)

    async def _copy(
        self, ref: Ref, snapshot: _Snapshot, *, turn: int, head: Head, terms: Terms, metadata: dict[str, Any]
    ) -> Conversation | None:
        """Copy steps and turns. Returns None if the conversation has changed, or the new id is taken."""
        partition, new = self._partitions.of(ref), self._neighbour(ref)
        seal, scope = partition.sealer.seal, str(new)
        chunks = [part for chunk in (await self._chunk_tags(ref, head, snapshot.head)).items() for part in chunk]
        state, *rest = await partition.scripts.call(
            "fork",
            *chunks,
            owner=ref.owner,
            ref=str(ref),
            read_head=snapshot.version.head,
            to=scope,
            agent=snapshot.agent,
            record=seal(codec.encode_conversation(snapshot.agent, metadata, has_terms=True), scope, "conversation"),
            terms=sealed_terms(partition, scope, terms),
            head=seal(codec.encode_head(head), scope, "head") if head.count or head.variables else b"",
            count=head.count,
            turn=turn,
            ttl=snapshot.ttl_us,
        )
        return self._conversation(state, rest, {b"moved", b"exists"})

    async def record(self, ref: Ref) -> ConversationRecord:
        async def read(snapshot: _Snapshot) -> ConversationRecord | None:
            conversation, turns = (
                await self._conversations.conversation(ref),
                await self._all_turns(ref, snapshot.turns),
            )
            steps = await self._steps(ref, snapshot.head)
            tags = await self._chunk_tags(ref, snapshot.head, snapshot.head)
            chunks = await self._open_chunks(ref, snapshot.head, {name: tag for name, tag in tags.items() if name})
            images = await load_images(self._partitions.of(ref), str(ref), steps)
            if not await self._is_unchanged(ref, snapshot.version):
                return None
            return ConversationRecord(conversation, turns, snapshot.terms.jumps, tuple(steps), images, chunks)

        return await self._with_snapshot(ref, read)

    async def adopt(
        self, ref: Ref, agent: AgentName, draft: ConversationFields, brought: ImportedConversation
    ) -> Conversation:
        partition, scope = self._partitions.of(ref), str(ref)
        terms = Terms(draft.policy, jumps=brought.jumps)
        record = codec.encode_conversation(agent, draft.metadata, has_terms=terms != NO_TERMS)
        sealed, head = await asyncio.to_thread(seal_import, partition, scope, brought)
        state, *rest = await partition.scripts.call(
            "import",
            *sealed,
            owner=ref.owner,
            ref=scope,
            agent=agent,
            record=partition.sealer.seal(record, scope, "conversation"),
            terms=sealed_terms(partition, scope, terms),
            ttl=ttl_us(draft.ttl_s),
            head=head,
        )
        if state == b"exists":
            raise ConversationExistsError
        return self._conversations.of_row(*rest[0])

    async def _with_snapshot(
        self,
        ref: Ref,
        operation: Callable[[_Snapshot], Awaitable[T | None]],
        turn: int = 0,
        *,
        may_run: bool = False,
        any_turn: bool = False,
    ) -> T:
        """Run an operation on a snapshot, and again on a new one if the conversation has changed meanwhile."""
        for _ in range(MOST_TRIES):
            snapshot = await self._snapshot(ref, turn, may_run=may_run, any_turn=any_turn)
            found = await self._unless_changed(ref, snapshot.version, operation(snapshot))
            if found is not None:
                return found
        raise StoreUnavailableError("Others keep changing this conversation; try again.")

    async def _unless_changed(self, ref: Ref, version: Version, reading: Awaitable[T]) -> T | None:
        """Return None instead of raising `SealBrokenError` if the data was destroyed since `version`."""
        try:
            return await reading
        except SealBrokenError:
            if await self._is_unchanged(ref, version):
                raise
        return None

    async def _is_unchanged(self, ref: Ref, version: Version) -> bool:
        return (await self._snapshot(ref, 0, may_run=True)).version == version

    async def _snapshot(self, ref: Ref, turn: int, *, may_run: bool = False, any_turn: bool = False) -> _Snapshot:
        partition, scope = self._partitions.of(ref), str(ref)
        state, *rest = await partition.scripts.call("snapshot", ref=scope, turn=turn)
        if state != b"ok":
            raise _refusal(state, rest)
        row, first, earlier, of_turn = rest
        if first and not may_run:
            raise _refusal(b"busy", [first])
        conversation = self._conversations.of_row(*row)
        if turn > conversation.turns and not any_turn:
            raise TurnNotFoundError
        _, _, head, generation, _, _, _, terms, ttl, _ = row[1]
        head_then = Head(codec.number(generation))
        if earlier:
            head_then = codec.decode_head(partition.sealer.open_past_head(earlier, scope))
        return _Snapshot(
            agent=conversation.agent,
            metadata=conversation.metadata,
            terms=partition.sealer.terms(scope, terms),
            version=Version(head or b"", terms or b""),
            head=open_head(partition.sealer, scope, generation, head or b""),
            turns=conversation.turns,
            earlier=head_then if of_turn else None,
            ttl_us=codec.number(ttl) if ttl else "",
        )

    async def _earlier(self, ref: Ref, snapshot: _Snapshot, turn: int) -> Head:
        """Return the head after a turn. Raises `HistoryGoneError` if it is not kept."""
        earlier = snapshot.earlier if turn else Head(snapshot.head.generation)
        around = await self._steps(ref, snapshot.head, max(0, earlier.count - 1), earlier.count + 1) if earlier else []
        if earlier is None or any((step.turn <= turn) != (step.index < earlier.count) for step in around):
            raise HistoryGoneError(
                f"The state of the conversation after turn {turn} is not kept: an older release played it, or it was "
                "imported with variables. Choose a later turn."
            )
        return earlier

    async def _all_turns(self, ref: Ref, count: int) -> tuple[Turn, ...]:
        turns: list[Turn] = []
        for first in range(1, count + 1, TURNS_AT_ONCE):
            turns += (await self._turns.turns(ref, first, TURNS_AT_ONCE)).items
        return tuple(turns[:count])

    async def _steps(self, ref: Ref, head: Head, first: int = 0, end: int | None = None) -> list[StoredStep]:
        """Read steps without the destroyed ones. A read of all steps is checked against the head."""
        partition, scope = self._partitions.of(ref), str(ref)
        steps: list[StoredStep] = []
        end, running = head.count if end is None else min(end, head.count), b""
        is_whole = (first, end) == (0, head.count)
        while first < end:
            last = min(end, first + STEPS_AT_ONCE) - 1
            found = await partition.scripts.call("steps", ref=scope, first=first, last=last)
            if not found or len(found[3]) != last + 1 - first:
                raise SealBrokenError(COUNT_SENTENCE)
            for index, blob in enumerate(found[3], first):
                running = extend_hash(running, blob)
                if not head.destroyed >> index & 1:
                    opened = partition.sealer.open(blob, scope, "step", head.generation, index)
                    steps.append(codec.decode_step(opened, index, head))
            first = last + 1
            await asyncio.sleep(0)
        if is_whole and running != head.hash:
            raise SealBrokenError(COUNT_SENTENCE)
        return steps

    async def _chunk_tags(self, ref: Ref, head: Head, now: Head) -> dict[str, bytes]:
        """Return the tags of the variables' chunks by name, and the tag of their sealed list under the empty name.

        Raises `HistoryGoneError` if the list of an earlier head is not kept.
        """
        if not head.variables:
            return {}
        partition = self._partitions.of(ref)
        (listed,) = await partition.scripts.call("chunks", "", head.variables, ref=str(ref), generation=head.generation)
        if not listed:
            raise SealBrokenError(VARIABLES_SENTENCE) if head.variables == now.variables else HistoryGoneError()
        return {"": head.variables, **open_chunk_list(partition.sealer, str(ref), head, listed)}

    async def _open_chunks(self, ref: Ref, head: Head, tags: dict[str, bytes]) -> dict[str, bytes]:
        partition, scope, opened = self._partitions.of(ref), str(ref), dict[str, bytes]()
        for name, tag in tags.items():
            (blob,) = await partition.scripts.call("chunks", name, tag, ref=scope, generation=head.generation)
            opened[name] = partition.sealer.open(blob or b"", scope, "variable", head.generation, name)
        return opened

    async def _without(self, ref: Ref, version: Version, places: Sequence[int]) -> Head | None:
        """Return the head with these steps out of its counts, or None if the memory has changed."""
        head = open_head(self._partitions.of(ref).sealer, str(ref), b"0", version.head)
        steps = await self._unless_changed(ref, version, self._steps(ref, head)) if places else []
        if steps is None:
            return None
        out, counts = set(places), dict(head.step_counts)
        for step in steps:
            if step.index in out:
                counts = counted(counts, step.type, -1)
        return replace(head, step_counts=counts)

    async def _as_destroyed(self, ref: Ref, earlier: Head, now: Head) -> Head:
        """Return an earlier head without the steps that were destroyed since."""
        destroyed = now.destroyed & ((1 << earlier.count) - 1)
        archived, rolled_back = earlier.archived & ~destroyed, earlier.rolled_back & ~destroyed
        head = replace(earlier, destroyed=destroyed, archived=archived, rolled_back=rolled_back)
        if destroyed & ~earlier.destroyed:
            counts: dict[StepType, int] = {}
            for step in await self._steps(ref, head):
                if not head.out >> step.index & 1:
                    counts = counted(counts, step.type, 1)
            head = replace(head, step_counts=counts)
        return head

    async def _amend(
        self,
        ref: Ref,
        version: Version,
        head: Head,
        *,
        terms: bytes = b"",
        restore: dict[str, bytes] | None = None,
        turns: int | None = None,
        gone: Sequence[StoredStep] = (),
        images: Sequence[str] = (),
    ) -> Conversation | None:
        """Write a new head. Returns None if the conversation has changed since `version`."""
        partition, scope = self._partitions.of(ref), str(ref)
        arguments: list[Argument] = [len(restore or {})]
        for name, tag in (restore or {}).items():
            arguments += [name, tag]
        for items in ([step.index for step in gone], images, sorted({step.turn for step in gone})):
            arguments += [len(items), *items]
        state, *rest = await partition.scripts.call(
            "amend",
            *arguments,
            ref=scope,
            read_head=version.head,
            read_terms=version.terms,
            turns="" if turns is None else turns,
            head=partition.sealer.seal(codec.encode_head(head), scope, "head"),
            terms=terms,
            restores=int(restore is not None),
        )
        return self._conversation(state, rest, {b"moved"})

    def _conversation(self, state: bytes, rest: list[Any], retried: set[bytes]) -> Conversation | None:
        if state == b"ok":
            return self._conversations.of_row(*rest[0])
        if state not in retried:
            raise _refusal(state, rest)
        return None

    def _neighbour(self, ref: Ref) -> Ref:
        """Return an unused id in the same partition, so that one script can copy."""
        while True:
            new = Ref(ref.owner, secrets.token_hex(12))
            if self._partitions.of(new) is self._partitions.of(ref):
                return new


def _bits(places: Iterable[int]) -> int:
    return sum(1 << place for place in places)


def _refusal(state: bytes, rest: list[Any]) -> Exception:
    if state == b"busy":
        running = codec.number(rest[0])
        return BusyError(
            f"Turn {running} of this conversation is running; wait for its end, or stop it.", running_turn=running
        )
    return HistoryGoneError() if state == b"gone" else ConversationNotFoundError()
