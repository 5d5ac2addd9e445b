"""Conversations at rest: make, show, list, patch, delete, and their steps as bytes."""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from smolsessions.core.errors import (
    DAMAGED,
    ConversationExistsError,
    ConversationNotFoundError,
    NotFoundError,
    SealBrokenError,
    StoreUnavailableError,
)
from smolsessions.core.events import Logged, TurnEnded
from smolsessions.core.records import AgentName, Conversation, Failure, Outcome, Page, Terms
from smolsessions.store import codec
from smolsessions.store.conversation_sealer import NO_TERMS
from smolsessions.store.conversations.head import check_count, image_blobs, load_images, open_head

if TYPE_CHECKING:
    from collections.abc import Callable

    from smolsessions.core.records import ConversationFields, Head, Owner, Ref, StepType, StoredStep, Turn
    from smolsessions.store.partition import Partition, Partitions
    from smolsessions.store.scripts.loader import Argument
    from smolsessions.store.turns.turn_store import TurnStore

log = logging.getLogger(__name__)

MOST_TRIES = 20
MOST_PARTITIONS = 1000
LOOKED_AT_ONCE = 100  # steps, for those of one kind
MOST_LOOKED_AT = 2000  # for one page, which may then hold fewer than its limit


class ConversationStore:
    """The store's side of conversations."""

    def __init__(self, partitions: Partitions, turns: TurnStore) -> None:
        self._partitions = partitions
        self._turns = turns
        self._patching: WeakValueDictionary[Ref, asyncio.Lock] = WeakValueDictionary()

    async def create(self, ref: Ref, agent: AgentName, draft: ConversationFields) -> Conversation:
        """Make an empty conversation."""
        partition, terms = self._partitions.of(ref), Terms(draft.policy)
        state, *rest = await partition.scripts.call(
            "create",
            owner=ref.owner,
            ref=str(ref),
            agent=agent,
            record=self._record(ref, agent, draft.metadata, terms),
            terms=sealed_terms(partition, str(ref), terms),
            ttl=ttl_us(draft.ttl_s),
        )
        if state == b"exists":
            raise ConversationExistsError
        return self.of_row(*rest[0])

    async def conversation(self, ref: Ref) -> Conversation:
        """Read one conversation."""
        return self.of_row(*await self._row(ref))

    async def conversations(self, owner: Owner, cursor: str | None, limit: int) -> Page[Conversation]:
        """Read a page, merged of all partitions; the cursor is the age of the last one shown, and its partition."""
        pages = [
            self._rows(partition, place, owner, cursor, limit + 1) for place, partition in enumerate(self._partitions)
        ]
        rows = list(islice(heapq.merge(*await asyncio.gather(*pages), key=itemgetter(0)), limit + 1))
        shown = rows[:limit]
        found = [conversation for _, row in shown if (conversation := self._readable(row))]
        if len(rows) <= limit:
            return Page(tuple(found), None)
        age, place = shown[-1][0]
        return Page(tuple(found), str(-age * MOST_PARTITIONS + place if len(self._partitions) > 1 else -age))

    async def _rows(
        self, partition: Partition, place: int, owner: Owner, cursor: str | None, most: int
    ) -> list[tuple[tuple[int, int], Any]]:
        """Read what a partition has behind the cursor, newest first; each with what it is to be sorted by."""
        before = "+inf"
        if cursor and len(self._partitions) > 1:
            age, last = divmod(int(cursor), MOST_PARTITIONS)
            before = str(age) if place > last else f"({age}"
        elif cursor:
            before = f"({cursor}"
        rows = await partition.scripts.call("list", owner=owner, before=before, limit=most)
        return [((-int(float(score)), place), row) for score, row in rows]

    async def patch(self, ref: Ref, change: Callable[[Conversation], ConversationFields]) -> Conversation:
        """Read, change and write, until no other writer comes between; in this process one at a time."""
        lock = self._patching.setdefault(ref, asyncio.Lock())
        async with lock:
            return await self._patch(ref, change)

    async def _patch(self, ref: Ref, change: Callable[[Conversation], ConversationFields]) -> Conversation:
        partition = self._partitions.of(ref)
        for _ in range(MOST_TRIES):
            row = await self._row(ref)
            conversation = self.of_row(*row)
            draft = change(conversation)
            terms = replace(partition.sealer.terms(str(ref), row[1][7]), policy=draft.policy)
            state, *rest = await partition.scripts.call(
                "patch",
                ref=str(ref),
                read=row[1][1],
                written=self._record(ref, conversation.agent, draft.metadata, terms),
                read_terms=row[1][7] or b"",
                terms=sealed_terms(partition, str(ref), terms),
                ttl=ttl_us(draft.ttl_s),
            )
            if state == b"ok":
                return self.of_row(*rest[0])
        raise StoreUnavailableError("Others keep changing this conversation; try again.")

    async def delete(self, ref: Ref) -> list[Turn]:
        """End what runs and what waits, then take everything away."""
        partition = self._partitions.of(ref)
        for _ in range(MOST_TRIES):
            try:
                ended, is_damaged = [_cancelled(turn) for turn in await self._turns.open_turns(ref)], False
            except SealBrokenError:
                ended, is_damaged = [], True
            given: list[Argument] = []
            for turn in ended:
                given += [turn.number, self._seal(codec.encode_turn(turn), ref, "turn", turn.number)]
            state, *rest = await partition.scripts.call(
                "delete",
                *given,
                owner=ref.owner,
                ref=str(ref),
                me=partition.channel,
                log_ttl_s=partition.log_ttl_s,
                tombstone_s=partition.id_reuse_s,
                is_damaged=int(is_damaged),
            )
            if state == b"unknown":
                raise ConversationNotFoundError
            if state == b"ok":
                for turn, seq in zip(ended, rest[0], strict=True):
                    partition.log.deliver(ref, turn.number, Logged(seq, TurnEnded(turn)))
                return ended
        raise StoreUnavailableError("Turns keep coming to this conversation; try again.")

    async def steps(
        self, ref: Ref, first: int, limit: int, kind: StepType | None = None, *, archived: bool = False
    ) -> tuple[AgentName, Page[StoredStep], dict[str, bytes]]:
        """Read steps, each checked against its place, until there are enough of those that are wanted."""
        scope, partition = str(ref), self._partitions.of(ref)
        items: list[StoredStep] = []
        place, end = first, first + MOST_LOOKED_AT
        while True:
            most = max(limit - len(items), LOOKED_AT_ONCE if kind or place > first else 0)
            found = await partition.scripts.call("steps", ref=scope, first=place, last=place + most)
            if not found:
                raise ConversationNotFoundError
            shown, generation, head_blob, blobs, terms, stored, queued, record = found
            partition.sealer.terms(scope, terms)
            head = open_head(partition.sealer, scope, generation, head_blob)
            check_count(head, stored, queued)
            agent = codec.agent_of(partition.sealer.open(record, scope, "conversation"), shown)
            left, last = head.destroyed if archived else head.out, place + len(blobs)
            start = place
            for index, blob in enumerate(blobs[:most], place):
                if len(items) == limit:
                    break
                place = index + 1
                if left >> index & 1:
                    continue
                step = _step(partition, scope, head, index, blob)
                if step.type != "edit" and kind in {None, step.type}:
                    items.append(_noted(partition, scope, head, step, blobs[place - start :]))
            more = place < last
            if len(items) == limit or not more or place >= end:
                break
        page = Page(tuple(items), str(place) if more else None)
        try:
            return agent, page, await load_images(partition, scope, items)
        except SealBrokenError:
            if ((await self._row(ref))[1][2] or b"") == head_blob:
                raise
        return await self.steps(ref, first, limit, kind, archived=archived)  # some were destroyed since they were read

    async def image(self, ref: Ref, name: str) -> bytes:
        """Read an attachment."""
        partition = self._partitions.of(ref)
        (blob,) = await image_blobs(partition, str(ref), [name])
        if blob is None:
            raise NotFoundError
        return await asyncio.to_thread(partition.sealer.open, blob, str(ref), "image", name)

    def _readable(self, row: Any) -> Conversation | None:
        """Open a row of a list; a broken one must not hide the others, and says what it is when it is asked for."""
        scope, *fields = row
        try:
            if shown := fields and self.of_row(scope, *fields):
                return shown
        except SealBrokenError as error:
            log.error("conversation %r cannot be listed: %s", scope, error, extra={"action": "seal.broken"})  # noqa: TRY400 - its sentence says all
        return None

    async def _row(self, ref: Ref) -> Any:
        row = await self._partitions.of(ref).scripts.call("show", ref=str(ref))
        if not row:
            raise ConversationNotFoundError
        return row

    def of_row(  # noqa: PLR0917 - the order is that of the scripts' answers
        self,
        scope: bytes,
        fields: list[bytes],
        running: bytes,
        queued: int,
        stored_turns: int,
        stored_steps: int,
        listed_at: bytes,
    ) -> Conversation:
        """Open a conversation as scripts show it, and compare its parts."""
        agent, record, sealed_head, generation, created, updated, turns, sealed, ttl, expires = fields
        ref = codec.ref_of(codec.text(scope))
        sealer = self._partitions.of(ref).sealer
        opened = sealer.open(record or b"", str(ref), "conversation")
        terms = sealer.terms(str(ref), sealed)
        head = open_head(sealer, str(ref), generation, sealed_head)
        check_count(head, stored_steps, queued)
        if (
            codec.number(turns) != stored_turns
            or (listed_at and float(listed_at) != codec.number(created))
            or (terms == NO_TERMS and codec.has_terms(opened))
            or (ttl is None) != (expires is None)
        ):
            raise SealBrokenError(DAMAGED)
        origin = terms.lineage[0] if terms.lineage else None
        return Conversation(
            ref=ref,
            agent=codec.agent_of(opened, agent),
            metadata=codec.decode_metadata(opened),
            created_at=codec.moment(created),
            updated_at=codec.moment(updated),
            turns=stored_turns,
            step_counts=head.step_counts,
            running_turn=codec.number(running) if running else None,
            queued_turns=queued - 1 if running else queued,
            archived_steps=(head.out & ~head.destroyed).bit_count(),
            policy=terms.policy,
            ttl_s=None if ttl is None else codec.moment(ttl),
            expires_at=None if expires is None else codec.moment(expires),
            forked_from=(codec.ref_of(origin.scope).id, origin.turn) if origin else None,
        )

    def _record(self, ref: Ref, agent: AgentName, metadata: dict[str, Any], terms: Terms) -> bytes:
        data = codec.encode_conversation(agent, metadata, has_terms=terms != NO_TERMS)
        return self._seal(data, ref, "conversation")

    def _seal(self, data: bytes, ref: Ref, *place: str | int) -> bytes:
        return self._partitions.of(ref).sealer.seal(data, str(ref), *place)


def _step(partition: Partition, scope: str, head: Head, index: int, blob: bytes) -> StoredStep:
    opened = partition.sealer.open(blob, scope, "step", head.generation, index)
    return codec.decode_step(opened, index, head)


def _noted(partition: Partition, scope: str, head: Head, step: StoredStep, following: list[bytes]) -> StoredStep:
    """Note on the task of a turn that is over whether the step after it, if any, is of another turn."""
    if step.type != "task" or step.index + 1 > head.count:
        return step
    for index, blob in enumerate(following, step.index + 1):
        if head.destroyed >> index & 1:
            return step
        after = _step(partition, scope, head, index, blob)
        if after.type != "edit":
            return replace(step, unanswered=after.turn != step.turn)
    return replace(step, unanswered=step.index + len(following) + 1 >= head.count)


def sealed_terms(partition: Partition, scope: str, terms: Terms) -> bytes:
    """Seal a conversation's terms; most have none."""
    return partition.sealer.seal(codec.encode_terms(terms), scope, "terms") if terms != NO_TERMS else b""


def ttl_us(ttl_s: float | None) -> int | str:
    """Give a time to live as scripts take it."""
    return "" if ttl_s is None else int(ttl_s * 1_000_000)


def _cancelled(turn: Turn) -> Turn:
    did = "waited" if turn.status == "queued" else "ran"
    failure = Failure("conversation_deleted", f"The conversation was deleted while this turn {did}.")
    timing = replace(turn.timing, finished_at=time.time())
    return replace(turn, timing=timing, outcome=Outcome("cancelled", error=failure))
