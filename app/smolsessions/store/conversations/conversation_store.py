"""Conversations in the store: create, read, list, patch, delete."""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import Any
from weakref import WeakValueDictionary

from smolsessions.core import errors, records
from smolsessions.core.events import Logged, TurnEnded
from smolsessions.core.memories import Head, StoredStep
from smolsessions.core.records import AgentName, Conversation, Owner, Page, Ref, Turn
from smolsessions.store import codec
from smolsessions.store.conversations.head import check_count, open_head
from smolsessions.store.conversations.message_search import MessageSearch
from smolsessions.store.conversations.stored_steps import PAGE_BYTES, image_blobs, load_images, open_step
from smolsessions.store.partition import Partition, Partitions, Scope
from smolsessions.store.scripts.loader import Argument, flattened
from smolsessions.store.turns.turn_store import TurnStore

log = logging.getLogger(__name__)

MOST_TRIES = 20
SCANNED_AT_ONCE = 100  # steps of one kind, or conversations that match a filter
IMAGE_BYTES = 32 * 1024 * 1024  # of the images and files of one page of steps
MOST_SCANNED = 2000  # for one page, which may then hold fewer than its limit


class ConversationStore:
    def __init__(self, partitions: Partitions, turns: TurnStore) -> None:
        self._partitions = partitions
        self._turns = turns
        self._patching: WeakValueDictionary[Ref, asyncio.Lock] = WeakValueDictionary()

    async def create(self, ref: Ref, agent: AgentName, draft: records.ConversationFields) -> Conversation:
        scope = self._partitions.scope(ref)
        fields = stored_fields(scope, agent, draft, 0, records.NO_SETTINGS)
        state, *rest = await scope.call("create", owner=ref.owner, **fields)
        if state == b"exists":
            raise errors.ConversationExistsError
        return self.decode_row(*rest[0])

    async def conversation(self, ref: Ref) -> Conversation:
        return self.decode_row(*await self._row(ref))

    async def conversations(
        self, owner: Owner, query: records.ConversationQuery, after: str | None, limit: int
    ) -> Page[Conversation]:
        """Read a page, merged from all partitions. Its cursor is the score and the id of the last row that was read.

        If a search in messages stopped within that row, its next turn follows.
        """
        found: list[Conversation] = []
        search = MessageSearch(query.q) if query.q and query.search_in == "messages" else None
        resumed, _, turn = after.rpartition(" ") if after and after.count(" ") > 1 else ("", "", "")
        is_filtered = bool(query.agent or query.status or query.metadata or query.q)
        most, scanned = SCANNED_AT_ONCE if is_filtered else limit, 0
        while scanned < MOST_SCANNED:
            rows = await self._rows(owner, query, after, most)
            for number, ((score, ref), row) in enumerate(rows[:most], 1):
                after = f"{score} {ref.decode(errors='replace').rpartition('/')[2]}"
                scope_name, *fields = row
                try:
                    if not fields or not query.matches(conversation := self.decode_row(scope_name, *fields)):
                        continue
                    match = None
                    if search and not query.is_in_title(conversation):
                        scope, first = self._partitions.scope(conversation.ref), conversation.turn_count
                        match, left = await search.find(scope, min(first, int(turn)) if after == resumed else first)
                        if left:
                            return Page(tuple(found), f"{after} {left}")
                        if not match:
                            continue
                    found.append(replace(conversation, match=match) if match else conversation)
                except errors.SealBrokenError as error:  # left out: a read of it alone raises the error
                    log.error("conversation %r cannot be listed: %s", ref, error, extra={"action": "seal.broken"})  # noqa: TRY400 - its sentence says all
                if len(found) == limit:
                    return Page(tuple(found), after if number < len(rows) else None)
            if len(rows) <= most:
                return Page(tuple(found), None)
            if not is_filtered:
                break  # some are damaged
            scanned += most
        return Page(tuple(found), after)

    async def _rows(
        self, owner: Owner, query: records.ConversationQuery, after: str | None, most: int
    ) -> list[tuple[tuple[int, bytes], Any]]:
        """Read `most` rows of all partitions in order, and one more if more follow. Each has its score and name."""
        start, last, turn, *_ = f"{after or ''}   ".split(" ")
        behind = (int(start), f"{owner}/{last}".encode()) if after else None
        kind, is_falling = "recent" if query.sort == "updated" else "owner", query.order == "desc"

        async def read(partition: Partition) -> list[tuple[tuple[int, bytes], Any]]:
            call = partition.call("list", owner=owner, kind=kind, order=query.order, start=start, limit=most + 1)
            keyed = [((int(float(score)), ref), row) for score, ref, row in await call]
            keyed.sort(key=itemgetter(0), reverse=is_falling)
            return [
                each
                for each in keyed
                if not behind or (each[0] < behind if is_falling else each[0] > behind) or (turn and each[0] == behind)
            ]

        pages = await asyncio.gather(*map(read, self._partitions))
        return list(heapq.merge(*pages, key=itemgetter(0), reverse=is_falling))[: most + 1]

    async def patch(
        self,
        ref: Ref,
        change: Callable[[Conversation], records.ConversationFields],
        first_agent: AgentName | None = None,
    ) -> Conversation:
        """Read, change and write, until no other writer interferes. In this process one call runs at a time."""
        scope = self._partitions.scope(ref)
        async with self._patching.setdefault(ref, asyncio.Lock()):
            for _ in range(MOST_TRIES):
                row = await self._row(ref)
                record, sealed, title = row[1][1], row[1][6], row[1][9]
                conversation = self.decode_row(*row)
                draft = change(conversation)
                settings = scope.settings(sealed)
                # The title, which comes with the first turn, is checked as well.
                agent = conversation.agent if conversation.turn_count else first_agent or conversation.agent
                fields = stored_fields(scope, agent, draft, conversation.turn_count, settings)
                read = {"read": record, "read_settings": sealed or b"", "read_title": title or b""}
                state, *rest = await scope.call("patch", **read, **fields)
                if state == b"ok":
                    return self.decode_row(*rest[0])
        raise errors.StoreUnavailableError("Others keep changing this conversation; try again.")

    async def delete(self, ref: Ref) -> list[Turn]:
        scope = self._partitions.scope(ref)
        partition = scope.partition
        for _ in range(MOST_TRIES):
            now, ended, is_damaged = time.time(), list[Turn](), False
            try:
                for turn in await self._turns.open_turns(ref):
                    did = "ran" if turn.status == "running" else "waited"
                    sentence = f"The conversation was deleted while this turn {did}."
                    failure = records.Failure("conversation_deleted", sentence)
                    timing = replace(turn.timing.wait_over(now), finished_at=now)
                    ended.append(replace(turn, timing=timing, outcome=records.Outcome("cancelled", error=failure)))
            except errors.SealBrokenError:
                is_damaged = True
            sealed = [(turn.number, scope.seal(codec.encode_turn(turn), "turn", turn.number)) for turn in ended]
            state, *rest = await scope.call(
                "delete",
                *flattened(sealed),
                owner=ref.owner,
                own_channel=partition.channel,
                log_ttl_s=partition.options.log_ttl_s,
                tombstone_s=partition.options.id_reuse_s,
                is_damaged=int(is_damaged),
            )
            if state == b"unknown":
                raise errors.ConversationNotFoundError
            if state == b"ok":
                for turn, seq in zip(ended, rest[0], strict=True):
                    partition.deliver(ref, turn.number, Logged(seq, TurnEnded(turn)))
                return ended
        raise errors.StoreUnavailableError("Turns keep coming to this conversation; try again.")

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
        scope = self._partitions.scope(ref)
        if first is None:
            first = 0 if order == "asc" else (await self._row(ref))[5]
        is_falling = order == "desc"
        items: list[StoredStep] = []
        place, has_more, agent, head_blob, size = first, True, AgentName(""), b"", 0
        read = 0  # bytes, of sealed steps
        while has_more and len(items) < limit and max(size, read) <= PAGE_BYTES and abs(place - first) < MOST_SCANNED:
            most = max(limit - len(items), SCANNED_AT_ONCE if kind or place != first else 0)
            start, end = (max(0, place - most), place) if is_falling else (place, place + most)
            asked = (end, start) if is_falling else (start, end)  # and the step behind them
            found = await scope.call("steps", first=asked[0], last=asked[1], max_bytes=PAGE_BYTES)
            if not found:
                raise errors.ConversationNotFoundError
            unsealed, head_blob, blobs, settings, stored, queued, record = found
            scope.settings(settings)
            head = open_head(scope, head_blob)
            check_count(head, stored, may_be_more=bool(queued))
            agent = codec.decode_conversation(scope.open(record, "conversation"), unsealed).agent
            read += sum(map(len, blobs))
            if is_falling:
                blobs.reverse()
                start = min(end, stored - 1) + 1 - len(blobs)
            elif start + len(blobs) < min(end + 1, stored):  # the last one is known as a step behind others alone
                end = start + len(blobs) - 1
            places = range(start, min(end, start + len(blobs)))
            for index in reversed(places) if is_falling else places:
                if len(items) == limit or size > PAGE_BYTES:
                    break
                place = index if is_falling else index + 1
                if (head.destroyed if archived else head.out) >> index & 1:
                    continue
                step = open_step(scope, head, index, blobs[index - start])
                if step.type != "edit" and kind in {None, step.type}:
                    items.append(_with_unanswered(scope, head, step, blobs[index - start + 1 :]))
                    size += len(step.data)
            has_more = bool(places) and (place > 0 if is_falling else place < start + len(blobs))
        names = sorted(set().union(*(step.attachments for step in items)))
        left = dict(zip(names, await scope.call("has_images", *names), strict=True)) if names else {}
        size = 0
        for count, step in enumerate(items):  # a page loads its images
            size += sum(left.pop(name, 0) for name in step.attachments)
            if size > IMAGE_BYTES and count:
                place, has_more = (items[count - 1].index + (not is_falling)), True
                del items[count:]
                break
        try:
            attachments = await load_images(scope, [step.attachments for step in items])
        except errors.SealBrokenError:
            if ((await self._row(ref))[1][2] or b"") == head_blob:
                raise
            return await self.steps(ref, first, limit, kind, archived=archived, order=order)  # destroyed meanwhile
        return agent, Page(tuple(items), str(place) if has_more else None), attachments

    async def attachment(self, ref: Ref, name: str) -> bytes:
        scope = self._partitions.scope(ref)
        (blob,) = await image_blobs(scope, [name])
        if blob is None:
            raise errors.NotFoundError
        return await asyncio.to_thread(scope.open, blob, "image", name)

    async def _row(self, ref: Ref) -> Any:
        row = await self._partitions.scope(ref).call("read")
        if not row:
            raise errors.ConversationNotFoundError
        return row

    def decode_row(  # noqa: PLR0917 - the order is that of the scripts' answers
        self,
        scope_name: bytes,
        fields: list[bytes],
        running: bytes,
        queued: int,
        stored_turns: int,
        stored_steps: int,
        listed_at: bytes,
        waits: int,
    ) -> Conversation:
        """Open a row of a script's reply, and check its parts against each other."""
        agent, record, sealed_head, created, updated, turns, sealed, ttl, expires, title = fields
        ref = codec.ref_of(codec.text(scope_name))
        scope = self._partitions.scope(ref)
        about = codec.decode_conversation(scope.open(record or b"", "conversation"), agent)
        settings = scope.settings(sealed)
        head = open_head(scope, sealed_head)
        check_count(head, stored_steps, may_be_more=bool(queued))
        if (
            codec.number(turns) != stored_turns
            or (listed_at and float(listed_at) != codec.number(created))
            or (settings == records.NO_SETTINGS and about.has_settings)
            or (turns != b"0" and about.title is None and not title)
            or (ttl is None) != (expires is None)
        ):
            raise errors.SealBrokenError(errors.DAMAGED)
        origin = settings.lineage[0] if settings.lineage else None
        return Conversation(
            ref=ref,
            agent=about.agent,
            metadata=about.metadata,
            created_at=codec.moment(created),
            updated_at=codec.moment(updated),
            turn_count=stored_turns,
            step_counts=head.step_counts,
            running_turn=codec.number(running) if running else None,
            queued_turns=queued - 1 if running else queued,
            archived_steps=(head.out & ~head.destroyed).bit_count(),
            policy=settings.policy,
            ttl_s=None if ttl is None else codec.moment(ttl),
            expires_at=None if expires is None else codec.moment(expires),
            forked_from=(codec.ref_of(origin.scope).id, origin.turn) if origin else None,
            title=(scope.open(title, "title").decode() if title and about.title is None else about.title) or None,
            approve=settings.approve,
            client_tools=settings.client_tools,
            waits=bool(waits),
        )


def _with_unanswered(scope: Scope, head: Head, step: StoredStep, following: list[bytes]) -> StoredStep:
    """Mark the task of a finished turn as unanswered if the next step belongs to another turn."""
    if step.type != "task" or step.index + 1 > head.count:
        return step
    for index, blob in enumerate(following, step.index + 1):
        if head.destroyed >> index & 1:
            return step
        after = open_step(scope, head, index, blob)
        if after.type != "edit":
            return replace(step, unanswered=after.turn != step.turn)
    return replace(step, unanswered=step.index + len(following) + 1 >= head.count)


def stored_fields(
    scope: Scope,
    agent: AgentName,
    draft: records.ConversationFields,
    turns: int,
    settings: records.ConversationSettings,
) -> dict[str, Argument]:
    """Return the fields as arguments of scripts. `settings` has those of no draft. With turns the title is set."""
    settings = replace(settings, policy=draft.policy, approve=draft.approve, client_tools=draft.client_tools)
    title = "" if turns and draft.title is None else draft.title
    record = codec.encode_conversation(agent, draft.metadata, title, has_settings=settings != records.NO_SETTINGS)
    return {
        "agent": agent,
        "record": scope.seal(record, "conversation"),
        "settings": scope.seal_settings(settings),
        "ttl": "" if draft.ttl_s is None else round(draft.ttl_s * 1_000_000),
    }
