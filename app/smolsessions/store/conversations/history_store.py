"""A conversation's memory between turns: read as a whole, pruned, rolled back, forked, and brought in."""

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
    extended,
    load_images,
    open_chunk_list,
    open_head,
)
from smolsessions.store.seal import tag_of

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
    from smolsessions.store.partition import Partition, Partitions
    from smolsessions.store.scripts.loader import Argument
    from smolsessions.store.turns.turn_store import TurnStore

T = TypeVar("T")

STEPS_AT_ONCE = 500
TURNS_AT_ONCE = 500
MOST_TRIES = 20
MOST_FORKS = 50
MOST_NAMES = 10_000


class HistoryStore:
    """The store's side of what is done to conversations between their turns; while one runs all raise `BusyError`."""

    def __init__(self, partitions: Partitions, conversations: ConversationStore, turns: TurnStore) -> None:
        self._partitions = partitions
        self._conversations = conversations
        self._turns = turns

    async def memory(self, ref: Ref, *, may_run: bool = False) -> Memory:
        """Read what the model is shown next, before any policy; `may_run`: also while a turn runs, as it was before."""

        async def read(moment: _Moment) -> Memory:
            head, found = moment.head, await self._steps(ref, moment.head)
            steps = [step for step in found if not step.hidden and not head.out >> step.index & 1]
            images = await load_images(self._partitions.of(ref), str(ref), steps)
            return Memory(moment.agent, moment.terms, moment.version, tuple(steps), images)

        return await self._until_still(ref, read, may_run=may_run)

    async def archive(self, ref: Ref, version: Version, places: Sequence[int]) -> Conversation | None:
        """Take steps out of the memory; they stay on record. None where the memory is of another version by now."""
        head = await self._without(ref, version, places)
        if head is None:
            return None
        bits = sum(1 << place for place in places)
        return await self._amend(ref, version, replace(head, archived=head.archived | bits))

    async def destroy(self, ref: Ref, version: Version, places: Sequence[int]) -> tuple[Conversation, int] | None:
        """Delete steps, and all that are archived or rolled back.

        Images that no other step shows go with them, and the logs of their turns: a log shows its turn's steps.
        """
        head = await self._without(ref, version, places)
        if head is None:
            return None
        steps = await self._if_still(ref, version, self._steps(ref, head))
        if steps is None:
            return None
        bits = sum(1 << place for place in places) | head.archived | head.rolled_back
        gone = [step for step in steps if bits >> step.index & 1]
        kept = {name for step in steps if not bits >> step.index & 1 for name in step.attachments}
        images = {name for step in gone for name in step.attachments} - kept
        head = replace(head, destroyed=head.destroyed | bits, archived=0, rolled_back=0)
        amended = await self._amend(ref, version, head, gone=gone, images=sorted(images))
        return (amended, sum(step.type != "edit" for step in gone)) if amended else None

    async def roll_back(self, ref: Ref, turn: int) -> Conversation:
        """Go back to what the conversation was after a turn (0: before the first): steps and variables."""

        async def go(moment: _Moment) -> Conversation | None:
            head, then = moment.head, await self._then(ref, moment, turn)
            later = ((1 << head.count) - 1) >> then.count << then.count
            back = replace(then, count=head.count, hash=head.hash, rolled_back=then.rolled_back | later)
            # Of two in a row without a turn between them the earlier one leads nowhere any more.
            before = tuple(jump for jump in moment.terms.jumps if jump.after < moment.turns)
            terms = replace(moment.terms, jumps=(*before, Rollback(moment.turns, turn)))
            return await self._amend(
                ref,
                moment.version,
                await self._as_destroyed(ref, back, head),
                terms=sealed_terms(self._partitions.of(ref), str(ref), terms),
                restore=await self._pieces_of(ref, then, head),
                turns=moment.turns,
            )

        return await self._until_still(ref, go, turn)

    async def fork(self, ref: Ref, turn: int | None, metadata: dict[str, Any] | None) -> Conversation:
        """Make a conversation that is what this one was after a turn (None: its last); it has a policy of its own."""

        async def branch(moment: _Moment) -> Conversation | None:
            at = moment.turns if turn is None else turn
            then = moment.head if turn is None else await self._then(ref, moment, turn)
            head = await self._as_destroyed(ref, then, moment.head)
            jumps = tuple(jump for jump in moment.terms.jumps if jump.after < at or turn is None)
            lineage = (Origin(str(ref), at), *moment.terms.lineage)
            if len(lineage) > MOST_FORKS:
                raise BusyError(f"This conversation was forked {MOST_FORKS} times in a row; export it and import it.")
            terms = Terms(moment.terms.policy, lineage, jumps)
            about = moment.metadata if metadata is None else metadata
            return await self._copy(ref, moment, turn=at, head=head, terms=terms, metadata=about)

        most = 2**31 if turn is None else turn
        return await self._until_still(ref, branch, most, any_turn=turn is None)

    async def _copy(
        self, ref: Ref, moment: _Moment, *, turn: int, head: Head, terms: Terms, metadata: dict[str, Any]
    ) -> Conversation | None:
        """Copy turns and steps up to these; nothing where it is not as it was read, or the new name is taken."""
        partition, new = self._partitions.of(ref), self._neighbour(ref)
        seal, scope = partition.sealer.seal, str(new)
        given: list[Argument] = []
        for name, tag in (await self._pieces_of(ref, head, moment.head)).items():
            given += [name, tag]
        state, *rest = await partition.scripts.call(
            "fork",
            *given,
            owner=ref.owner,
            ref=str(ref),
            read_head=moment.version.head,
            to=scope,
            agent=moment.agent,
            record=seal(codec.conversation_to_bytes(moment.agent, metadata, has_terms=True), scope, "conversation"),
            terms=sealed_terms(partition, scope, terms),
            head=seal(codec.head_to_bytes(head), scope, "head") if head.count or head.variables else b"",
            count=head.count,
            turn=turn,
            ttl=moment.ttl_us,
        )
        if state == b"ok":
            return self._conversations.of_row(*rest[0])
        if state not in {b"moved", b"exists"}:
            raise _refusal(state, rest)
        return None

    async def record(self, ref: Ref) -> ConversationRecord:
        """Read all that is on record of a conversation, but for events."""

        async def read(moment: _Moment) -> ConversationRecord | None:
            head, conversation = moment.head, await self._conversations.conversation(ref)
            turns: list[Turn] = []
            while len(turns) < moment.turns:
                page = await self._turns.turns(ref, len(turns) + 1, TURNS_AT_ONCE)
                turns += page.items
                if page.next_cursor is None:
                    break
            steps = await self._steps(ref, head)
            wanted = await self._pieces_of(ref, head, head)
            pieces = await self._open_pieces(ref, head, {name: tag for name, tag in wanted.items() if name})
            images = await load_images(self._partitions.of(ref), str(ref), steps)
            if not await self._is_still(ref, moment.version):
                return None
            return ConversationRecord(
                conversation, tuple(turns[: moment.turns]), moment.terms.jumps, tuple(steps), images, pieces
            )

        return await self._until_still(ref, read)

    async def adopt(
        self,
        ref: Ref,
        agent: AgentName,
        draft: ConversationFields,
        brought: ImportedConversation,
    ) -> Conversation:
        """Make a conversation of what is brought in."""
        partition, scope = self._partitions.of(ref), str(ref)
        terms = Terms(draft.policy, jumps=brought.jumps)
        record = codec.conversation_to_bytes(agent, draft.metadata, has_terms=terms != NO_TERMS)
        given, head = await asyncio.to_thread(_sealed_for, partition, scope, brought)
        state, *rest = await partition.scripts.call(
            "adopt",
            *given,
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

    async def _until_still(
        self,
        ref: Ref,
        attempt: Callable[[_Moment], Awaitable[T | None]],
        turn: int = 0,
        *,
        may_run: bool = False,
        any_turn: bool = False,
    ) -> T:
        """Do something with a conversation as it is, and again where it was changed meanwhile."""
        for _ in range(MOST_TRIES):
            moment = await self._moment(ref, turn, may_run=may_run, any_turn=any_turn)
            found = await self._if_still(ref, moment.version, attempt(moment))
            if found is not None:
                return found
        raise StoreUnavailableError("Others keep changing this conversation; try again.")

    async def _if_still(self, ref: Ref, version: Version, reading: Awaitable[T]) -> T | None:
        """Read; None where what cannot be opened has been destroyed since."""
        try:
            return await reading
        except SealBrokenError:
            if await self._is_still(ref, version):
                raise
        return None

    async def _is_still(self, ref: Ref, version: Version) -> bool:
        return (await self._moment(ref, 0, may_run=True)).version == version

    async def _moment(self, ref: Ref, turn: int, *, may_run: bool = False, any_turn: bool = False) -> _Moment:
        partition, scope = self._partitions.of(ref), str(ref)
        state, *rest = await partition.scripts.call("moment", ref=scope, turn=turn)
        if state != b"ok":
            raise _refusal(state, rest)
        row, first, then, of_turn = rest
        if first and not may_run:
            raise _refusal(b"busy", [first])
        conversation = self._conversations.of_row(*row)
        if turn > conversation.turns and not any_turn:
            raise TurnNotFoundError
        _, _, head, generation, _, _, _, terms, ttl, _ = row[1]
        return _Moment(
            agent=conversation.agent,
            metadata=conversation.metadata,
            terms=partition.sealer.terms(scope, terms),
            version=Version(head or b"", terms or b""),
            head=open_head(partition.sealer, scope, generation, head or b""),
            turns=conversation.turns,
            then=_head_then(partition, scope, codec.number(generation), then) if of_turn else None,
            ttl_us=codec.number(ttl) if ttl else "",
        )

    async def _then(self, ref: Ref, moment: _Moment, turn: int) -> Head:
        """Give the head after a turn, and make sure that it is the one: an older release kept none."""
        then = moment.then if turn else Head(moment.head.generation)
        around = await self._steps(ref, moment.head, max(0, then.count - 1), then.count + 1) if then else []
        if then is None or any((step.turn <= turn) != (step.index < then.count) for step in around):
            raise HistoryGoneError(
                f"What the conversation was after turn {turn} is not kept: an older release played it, or it was "
                "brought in with variables. A later turn can be gone back to."
            )
        return then

    async def _steps(self, ref: Ref, head: Head, first: int = 0, end: int | None = None) -> list[StoredStep]:
        """Read steps, but those that are destroyed; from the first to the last all are checked against the head."""
        partition, scope = self._partitions.of(ref), str(ref)
        steps: list[StoredStep] = []
        end, running = head.count if end is None else min(end, head.count), b""
        whole = (first, end) == (0, head.count)
        while first < end:
            found = await partition.scripts.call(
                "steps", ref=scope, first=first, last=min(end, first + STEPS_AT_ONCE) - 1
            )
            if not found or len(found[3]) != min(end, first + STEPS_AT_ONCE) - first:
                raise SealBrokenError(COUNT_SENTENCE)
            for index, blob in enumerate(found[3], first):
                running = extend_hash(running, blob)
                if not head.destroyed >> index & 1:
                    opened = partition.sealer.open(blob, scope, "step", head.generation, index)
                    steps.append(codec.step_from_bytes(opened, index, head))
            first += len(found[3])
            await asyncio.sleep(0)  # others want the loop, too
        if whole and running != head.hash:
            raise SealBrokenError(COUNT_SENTENCE)
        return steps

    async def _pieces_of(self, ref: Ref, head: Head, now: Head) -> dict[str, bytes]:
        """Return the tags of the variables' pieces by name, with the sealed list of them under the empty name.

        Raises `HistoryGoneError` if an earlier head's list is not kept any more.
        """
        if not head.variables:
            return {}
        partition = self._partitions.of(ref)
        (listed,) = await partition.scripts.call("pieces", "", head.variables, ref=str(ref), generation=head.generation)
        if not listed:
            raise SealBrokenError(VARIABLES_SENTENCE) if head.variables == now.variables else HistoryGoneError()
        return {"": head.variables, **open_chunk_list(partition.sealer, str(ref), head, listed)}

    async def _open_pieces(self, ref: Ref, head: Head, wanted: dict[str, bytes]) -> dict[str, bytes]:
        partition, scope, opened = self._partitions.of(ref), str(ref), dict[str, bytes]()
        for name, tag in wanted.items():
            (blob,) = await partition.scripts.call("pieces", name, tag, ref=scope, generation=head.generation)
            opened[name] = partition.sealer.open(blob or b"", scope, "variable", head.generation, name)
        return opened

    def _open(self, ref: Ref, version: Version) -> Head:
        return open_head(self._partitions.of(ref).sealer, str(ref), b"0", version.head)

    async def _without(self, ref: Ref, version: Version, places: Sequence[int]) -> Head | None:
        """Take the steps at these places out of the counts; None where the memory is of another version by now."""
        out, head = set(places), self._open(ref, version)
        steps = await self._if_still(ref, version, self._steps(ref, head)) if places else []
        if steps is None:
            return None
        counts = dict(head.step_counts)
        for step in steps:
            if step.index in out:
                counts = counted(counts, step.type, -1)
        return replace(head, step_counts=counts)

    async def _as_destroyed(self, ref: Ref, then: Head, now: Head) -> Head:
        """Take out of an earlier head what has been destroyed since."""
        destroyed = now.destroyed & ((1 << then.count) - 1)
        head = replace(
            then, destroyed=destroyed, archived=then.archived & ~destroyed, rolled_back=then.rolled_back & ~destroyed
        )
        if destroyed & ~then.destroyed:
            head = replace(head, step_counts=_counts(await self._steps(ref, head), head))
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
        partition, scope = self._partitions.of(ref), str(ref)
        given: list[Argument] = [len(restore or {})]
        for name, tag in (restore or {}).items():
            given += [name, tag]
        turns_gone = sorted({step.turn for step in gone})
        given += [len(gone), *(step.index for step in gone), len(images), *images, len(turns_gone), *turns_gone]
        state, *rest = await partition.scripts.call(
            "amend",
            *given,
            ref=scope,
            read_head=version.head,
            read_terms=version.terms,
            turns="" if turns is None else turns,
            head=partition.sealer.seal(codec.head_to_bytes(head), scope, "head"),
            terms=terms,
            restores=int(restore is not None),
        )
        if state == b"ok":
            return self._conversations.of_row(*rest[0])
        if state != b"moved":
            raise _refusal(state, rest)
        return None

    def _neighbour(self, ref: Ref) -> Ref:
        """Find an id whose conversation lies at the same partition, so that one script can copy."""
        for _ in range(MOST_NAMES):
            new = Ref(ref.owner, secrets.token_hex(12))
            if self._partitions.of(new) is self._partitions.of(ref):
                return new
        raise AssertionError("of so many names one lies at any partition")


@dataclass(frozen=True, slots=True)
class _Moment:
    """A conversation as it is, and its head as it was after a turn."""

    agent: AgentName
    metadata: dict[str, Any]
    terms: Terms
    version: Version
    head: Head
    turns: int
    then: Head | None
    """None: nothing is kept of it."""
    ttl_us: int | str


def _head_then(partition: Partition, scope: str, generation: int, head: bytes) -> Head:
    return codec.head_from_bytes(partition.sealer.open_past_head(head, scope)) if head else Head(generation)


def _counts(steps: Iterable[StoredStep], head: Head) -> dict[StepType, int]:
    counts: dict[StepType, int] = {}
    for step in steps:
        if not head.out >> step.index & 1:
            counts = counted(counts, step.type, 1)
    return counts


def _sealed_for(partition: Partition, scope: str, brought: ImportedConversation) -> tuple[list[Argument], bytes]:
    """Seal what is brought in, as `adopt` takes it, and the head over it."""
    seal = partition.sealer.seal
    given: list[Argument] = [len(brought.turns)]
    given += [seal(codec.turn_to_bytes(turn), scope, "turn", turn.number) for turn in brought.turns]
    steps, archived = brought.memory.steps, brought.memory.archived
    hidden = next((place for place in range(len(steps)) if place not in brought.memory.hidden), len(steps))
    archived |= {place for place in brought.memory.hidden if place > hidden}  # hidden one by one are what a prune hides
    given.append(len(steps))
    head = Head()
    images: dict[str, bytes] = {}
    moments: list[Argument] = []
    for index, step in enumerate(steps):
        if index and step.turn > steps[index - 1].turn:
            moments += [steps[index - 1].turn, _sealed_moment(partition, scope, head, archived)]
        blob = seal(codec.step_to_bytes(step), scope, "step", 0, index)
        given.append(blob)
        head = extended(head, step.type, blob)
        if index in archived:
            head = replace(head, step_counts=counted(head.step_counts, step.type, -1))
        if index < hidden:
            head = replace(head, shown_from=index + 1, shown_hash=head.hash)
        images |= step.attachments
    given.append(len(images))
    for name, data in images.items():
        given += [name, seal(data, scope, "image", name)]
    sealed = {name: seal(piece, scope, "variable", 0, name) for name, piece in brought.memory.variables.items()}
    if sealed:
        listed = seal(
            codec.chunk_list_to_bytes({name: tag_of(blob) for name, blob in sealed.items()}), scope, "variables", 0
        )
        head = replace(head, variables=tag_of(listed))
        sealed[""] = listed
    given.append(len(sealed))
    for name, blob in sealed.items():
        given += [name, blob]
    known = [] if sealed else moments  # which variables there were after an earlier turn is not told
    given += [len(known) // 2, *known]
    return given, _sealed_moment(partition, scope, head, archived) if steps or sealed else b""


def _sealed_moment(partition: Partition, scope: str, head: Head, archived: Iterable[int]) -> bytes:
    out = sum(1 << place for place in archived if place < head.count)
    return partition.sealer.seal(codec.head_to_bytes(replace(head, archived=out)), scope, "head")


def _refusal(state: bytes, rest: list[Any]) -> Exception:
    if state == b"busy":
        running = codec.number(rest[0])
        return BusyError(
            f"Turn {running} of this conversation is running; wait for its end, or stop it.", running_turn=running
        )
    return HistoryGoneError() if state == b"gone" else ConversationNotFoundError()
