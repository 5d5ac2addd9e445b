"""Conversations in the store: create, read, list, patch, delete."""

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
SCANNED_AT_ONCE = 100  # steps, in search of one kind
MOST_SCANNED = 2000  # for one page, which may then hold fewer than its limit


class ConversationStore:
    """Conversations in the store."""

    def __init__(self, partitions: Partitions, turns: TurnStore) -> None:
        self._partitions = partitions
        self._turns = turns
        self._patching: WeakValueDictionary[Ref, asyncio.Lock] = WeakValueDictionary()

    async def create(self, ref: Ref, agent: AgentName, draft: ConversationFields) -> Conversation:
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
        return self.of_row(*await self._row(ref))

    async def conversations(self, owner: Owner, cursor: str | None, limit: int) -> Page[Conversation]:
        """Read a page, merged from all partitions. The cursor is the age of the last item, and its partition."""
        pages = [
            self._rows(partition, place, owner, cursor, limit + 1) for place, partition in enumerate(self._partitions)
        ]
        rows = list(islice(heapq.merge(*await asyncio.gather(*pages), key=itemgetter(0)), limit + 1))
        listed = rows[:limit]
        found = [conversation for _, row in listed if (conversation := self._readable(row))]
        if len(rows) <= limit:
            return Page(tuple(found), None)
        age, place = listed[-1][0]
        return Page(tuple(found), str(-age * MOST_PARTITIONS + place if len(self._partitions) > 1 else -age))

    async def _rows(
        self, partition: Partition, place: int, owner: Owner, cursor: str | None, most: int
    ) -> list[tuple[tuple[int, int], Any]]:
        """Read a partition's rows behind the cursor, newest first, each with its sort key."""
        before = "+inf"
        if cursor and len(self._partitions) > 1:
            age, last = divmod(int(cursor), MOST_PARTITIONS)
            before = str(age) if place > last else f"({age}"
        elif cursor:
            before = f"({cursor}"
        rows = await partition.scripts.call("list", owner=owner, before=before, limit=most)
        return [((-int(float(score)), place), row) for score, row in rows]

    async def patch(self, ref: Ref, change: Callable[[Conversation], ConversationFields]) -> Conversation:
        """Read, change and write, until no other writer interferes. In this process one call runs at a time."""
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
                own_channel=partition.channel,
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
        partition, scan = self._partitions.of(ref), _StepScan(first, limit, kind, archived=archived)
        while not scan.is_done:
            most = max(limit - len(scan.items), SCANNED_AT_ONCE if kind or scan.place > first else 0)
            found = await partition.scripts.call("steps", ref=str(ref), first=scan.place, last=scan.place + most)
            if not found:
                raise ConversationNotFoundError
            scan.read(partition, str(ref), found, most)
        page = Page(tuple(scan.items), str(scan.place) if scan.has_more else None)
        try:
            return scan.agent, page, await load_images(partition, str(ref), scan.items)
        except SealBrokenError:
            if ((await self._row(ref))[1][2] or b"") == scan.head_blob:
                raise
        return await self.steps(ref, first, limit, kind, archived=archived)  # steps were destroyed meanwhile

    async def image(self, ref: Ref, name: str) -> bytes:
        partition = self._partitions.of(ref)
        (blob,) = await image_blobs(partition, str(ref), [name])
        if blob is None:
            raise NotFoundError
        return await asyncio.to_thread(partition.sealer.open, blob, str(ref), "image", name)

    def _readable(self, row: Any) -> Conversation | None:
        """Open a row of a list. A damaged one is left out: a read of it alone raises the error."""
        scope, *fields = row
        try:
            if fields:
                return self.of_row(scope, *fields)
        except SealBrokenError as error:
            log.error("conversation %r cannot be listed: %s", scope, error, extra={"action": "seal.broken"})  # noqa: TRY400 - its sentence says all
        return None

    async def _row(self, ref: Ref) -> Any:
        row = await self._partitions.of(ref).scripts.call("read", ref=str(ref))
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
        """Open a row of a script's reply, and check its parts against each other."""
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


class _StepScan:
    """Scan for one page of steps, each checked against its place."""

    def __init__(self, first: int, limit: int, kind: StepType | None, *, archived: bool) -> None:
        self.items: list[StoredStep] = []
        self.place = first
        self.agent = AgentName("")
        self.head_blob = b""
        self.has_more = True
        self._end = first + MOST_SCANNED
        self._limit = limit
        self._kind = kind
        self._with_archived = archived

    @property
    def is_done(self) -> bool:
        return len(self.items) == self._limit or not self.has_more or (self.place >= self._end)

    def read(self, partition: Partition, scope: str, found: list[Any], most: int) -> None:
        """Take the wanted steps of a reply of steps.lua."""
        unsealed, generation, self.head_blob, blobs, terms, stored, queued, record = found
        partition.sealer.terms(scope, terms)
        head = open_head(partition.sealer, scope, generation, self.head_blob)
        check_count(head, stored, queued)
        self.agent = codec.agent_of(partition.sealer.open(record, scope, "conversation"), unsealed)
        skipped, start = head.destroyed if self._with_archived else head.out, self.place
        for index, blob in enumerate(blobs[:most], start):
            if len(self.items) == self._limit:
                break
            self.place = index + 1
            if skipped >> index & 1:
                continue
            step = _open_step(partition, scope, head, index, blob)
            if step.type != "edit" and self._kind in {None, step.type}:
                self.items.append(_with_unanswered(partition, scope, head, step, blobs[self.place - start :]))
        self.has_more = self.place < start + len(blobs)


def _open_step(partition: Partition, scope: str, head: Head, index: int, blob: bytes) -> StoredStep:
    opened = partition.sealer.open(blob, scope, "step", head.generation, index)
    return codec.decode_step(opened, index, head)


def _with_unanswered(
    partition: Partition, scope: str, head: Head, step: StoredStep, following: list[bytes]
) -> StoredStep:
    """Mark the task of a finished turn as unanswered if the next step belongs to another turn."""
    if step.type != "task" or step.index + 1 > head.count:
        return step
    for index, blob in enumerate(following, step.index + 1):
        if head.destroyed >> index & 1:
            return step
        after = _open_step(partition, scope, head, index, blob)
        if after.type != "edit":
            return replace(step, unanswered=after.turn != step.turn)
    return replace(step, unanswered=step.index + len(following) + 1 >= head.count)


def sealed_terms(partition: Partition, scope: str, terms: Terms) -> bytes:
    """Seal a conversation's terms. Most have none."""
    return partition.sealer.seal(codec.encode_terms(terms), scope, "terms") if terms != NO_TERMS else b""


def ttl_us(ttl_s: float | None) -> int | str:
    return "" if ttl_s is None else int(ttl_s * 1_000_000)


def _cancelled(turn: Turn) -> Turn:
    did = "waited" if turn.status == "queued" else "ran"
    failure = Failure("conversation_deleted", f"The conversation was deleted while this turn {did}.")
    timing = replace(turn.timing, finished_at=time.time())
    return replace(turn, timing=timing, outcome=Outcome("cancelled", error=failure))
