"""History of a conversation between its turns: read, prune, roll back, fork, export, import."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from smolsessions.core import errors, records
from smolsessions.core.memories import ConversationRecord, Head, ImportedConversation, Memory, StoredStep, Version
from smolsessions.core.records import AgentName, Conversation, Ref, Turn
from smolsessions.core.store_ports import WriteFiles
from smolsessions.store import codec
from smolsessions.store.conversations.conversation_store import ConversationStore, stored_fields
from smolsessions.store.conversations.head import VARIABLES_SENTENCE, counted, open_chunk_list, open_head
from smolsessions.store.conversations.imports import seal_import
from smolsessions.store.conversations.staging import keep_chunks, pieces, stage_chunks, stage_copy, staged_keys
from smolsessions.store.conversations.stored_steps import load_images, load_steps
from smolsessions.store.partition import Partitions, Scope
from smolsessions.store.scripts.loader import Argument
from smolsessions.store.turns.turn_store import TurnStore

T = TypeVar("T")

TURNS_AT_ONCE = 500
MOST_TRIES = 20
MOST_FORKS = 50
_OF_RUN = {"planning", "action"}


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """State of a conversation at one moment. `earlier` is its head after an earlier turn, None if not kept."""

    scope: Scope
    conversation: Conversation
    settings: records.ConversationSettings
    version: Version
    head: Head
    earlier: Head | None


class HistoryStore:
    """Reads and changes of a conversation's history. All raise `BusyError` while a turn runs."""

    def __init__(self, partitions: Partitions, conversations: ConversationStore, turns: TurnStore) -> None:
        self._partitions = partitions
        self._conversations = conversations
        self._turns = turns

    async def memory(self, ref: Ref, *, may_run: bool = False) -> Memory:
        async def read(snapshot: _Snapshot) -> Memory:
            head = snapshot.head
            return await _memory_of(snapshot, await load_steps(snapshot.scope, head, head.shown_from, without=head.out))

        return await self._with_snapshot(ref, read, may_run=may_run)

    async def past_memory(self, ref: Ref, turn: int, step: int) -> Memory:
        played = await self._turns.turn(ref, turn)
        if not played.outcome:
            raise errors.BusyError(f"Turn {turn} of this conversation is not over; read its prompts afterwards.")

        async def read(snapshot: _Snapshot) -> Memory:
            head = await _earlier(snapshot, turn)  # includes a prune or rollback before the turn, and no later one
            out = head.out | snapshot.head.destroyed
            steps = await load_steps(snapshot.scope, snapshot.head, head.shown_from, head.count, without=out)
            own = [place for place, each in enumerate(steps) if each.turn == turn and each.type in _OF_RUN]
            if step > len(own) + 1:
                sentence = f"is past the {len(own)} steps that this turn has on record"
                raise errors.InvalidRequestError.in_parameter("query", "step", sentence)
            return await _memory_of(snapshot, steps[: [*own, len(steps)][step - 1]])

        return await self._with_snapshot(ref, read, turn, may_run=True)

    async def archive(self, ref: Ref, version: Version, places: Sequence[int]) -> Conversation | None:
        head, _ = await self._without(ref, version, places)
        if head is None:
            return None
        return await self._amend(ref, version, replace(head, archived=head.archived | _bits(places)))

    async def destroy(self, ref: Ref, version: Version, places: Sequence[int]) -> tuple[Conversation, int] | None:
        """Also delete the attachments that no kept step has, and the logs of the steps' turns, which contain the steps.

        Attachments that were shown with a request for an approval go, too.
        """
        head, steps = await self._without(ref, version, places)
        if head is None:
            return None
        bits = _bits(places) | head.archived | head.rolled_back
        flags = bits.to_bytes(head.count // 8 + 1, "little")  # to shift all bits for each step would be slow
        gone = [step for step in steps if flags[step.index // 8] >> step.index % 8 & 1]
        out = {step.index for step in gone}
        kept = {name for step in steps if step.index not in out for name in step.attachments}
        head = replace(head, destroyed=head.destroyed | bits, archived=0, rolled_back=0)
        scope = self._partitions.scope(ref)
        wanted: list[Argument] = [len(kept), *kept, *sorted({step.turn for step in gone})]
        async with staged_keys(scope.partition) as staged:
            if gone:
                places = [step.index for step in gone]
                await stage_copy(scope, staged, "steps", head.count, gone=places)
            amended = await self._amend(ref, version, head, *wanted, staged=staged, steps=head.count if gone else "")
        return (amended, sum(step.type != "edit" for step in gone)) if amended else None

    async def roll_back(self, ref: Ref, turn: int) -> Conversation:
        async def go(snapshot: _Snapshot) -> Conversation | None:
            head, earlier, turns = snapshot.head, await _earlier(snapshot, turn), snapshot.conversation.turn_count
            later = ((1 << head.count) - 1) >> earlier.count << earlier.count
            back = replace(earlier, count=head.count, hash=head.hash, rolled_back=earlier.rolled_back | later)
            # Of two rollbacks without a turn between them only the second counts.
            before = tuple(rollback for rollback in snapshot.settings.rollbacks if rollback.after < turns)
            wanted, present = await _chunk_tags(snapshot, earlier), await _chunk_tags(snapshot, head)
            replaced = [name for name, tag in present.items() if wanted.get(name) != tag]
            settings = replace(snapshot.settings, rollbacks=(*before, records.Rollback(turns, turn)))
            back = await _as_destroyed(snapshot, back)
            parts: dict[str, Argument] = {"turns": turns}
            async with staged_keys(snapshot.scope.partition) as staged:
                if wanted != present:
                    await stage_chunks(snapshot.scope, staged, wanted)
                    await keep_chunks(snapshot.scope, replaced)
                    parts |= {"staged": staged, "chunks": len(wanted)}
                return await self._amend(ref, snapshot.version, back, settings=settings, **parts)

        return await self._with_snapshot(ref, go, turn)

    def name_beside(self, ref: Ref) -> Ref:
        while True:  # one script can copy only within a partition
            new = Ref(ref.owner, secrets.token_hex(12))
            if self._partitions.of(new) is self._partitions.of(ref):
                return new

    async def fork(
        self, ref: Ref, new_ref: Ref, turn: int | None, metadata: dict[str, Any] | None, write_files: WriteFiles
    ) -> Conversation:
        new = self._partitions.scope(new_ref)

        async def copy(snapshot: _Snapshot) -> Conversation | None:
            """Copy steps and turns. Returns None if the conversation has changed."""
            origin, now = snapshot.conversation, snapshot.settings
            at = origin.turn_count if turn is None else turn
            head = await _as_destroyed(snapshot, snapshot.head if turn is None else await _earlier(snapshot, turn))
            rollbacks = tuple(rollback for rollback in now.rollbacks if rollback.after < at or turn is None)
            lineage = (records.Origin(snapshot.scope.name, at), *now.lineage)
            if len(lineage) > MOST_FORKS:
                raise errors.BusyError(
                    f"This conversation was forked {MOST_FORKS} times in a row; export it and import it."
                )
            about = origin.metadata if metadata is None else metadata
            draft = records.ConversationFields(
                about, now.policy, origin.ttl_s, origin.title, now.approve, now.client_tools
            )
            settings = records.ConversationSettings(lineage=lineage, rollbacks=rollbacks)
            last: dict[str, int | str] = {"turns": at, "heads": at, "logs": at, "steps": head.count}
            async with staged_keys(new.partition) as staged:
                for kind in (*last, "images", "old", "oldest"):  # one by one, so that other calls come between
                    await stage_copy(snapshot.scope, staged, kind, last.get(kind, ""))
                chunks = await _chunk_tags(snapshot, head)
                await stage_chunks(snapshot.scope, staged, chunks)
                take_back = await write_files(new_ref)
                state, *rest = await snapshot.scope.call(
                    "fork",
                    owner=origin.ref.owner,
                    read_head=snapshot.version.head,
                    staged=staged,
                    to=new.name,
                    head=new.seal(codec.encode_head(head), "head") if head.count or head.variables else b"",
                    count=head.count,
                    turn=at,
                    chunks=len(chunks),
                    **stored_fields(new, origin.agent, draft, at, settings),
                )
                if state != b"ok":
                    await take_back()
            return self._changed(state, rest, {b"moved", b"expired"})

        return await self._with_snapshot(ref, copy, turn or 0)

    async def record(self, ref: Ref) -> ConversationRecord:
        async def read(snapshot: _Snapshot) -> ConversationRecord | None:
            scope, head, turns = snapshot.scope, snapshot.head, list[Turn]()
            total = snapshot.conversation.turn_count
            while len(turns) < total and (page := await self._turns.turns(ref, len(turns) + 1, TURNS_AT_ONCE)).items:
                turns += page.items  # fewer than asked for, if they are large
            steps = tuple(await load_steps(scope, head))
            chunks = await _load_chunks(snapshot)
            images = await load_images(scope, [step.attachments for step in steps])
            if not await self._is_unchanged(ref, snapshot.version):
                return None
            rollbacks = snapshot.settings.rollbacks
            return ConversationRecord(snapshot.conversation, tuple(turns[:total]), rollbacks, steps, images, chunks)

        return await self._with_snapshot(ref, read)

    async def variables(self, ref: Ref) -> tuple[AgentName, dict[str, bytes]]:
        async def read(snapshot: _Snapshot) -> tuple[AgentName, dict[str, bytes]] | None:
            chunks = await _load_chunks(snapshot)
            unchanged = await self._is_unchanged(ref, snapshot.version)
            return (snapshot.conversation.agent, chunks) if unchanged else None

        return await self._with_snapshot(ref, read)

    async def store_import(
        self,
        ref: Ref,
        agent: AgentName,
        draft: records.ConversationFields,
        imported: ImportedConversation,
        write_files: WriteFiles,
    ) -> Conversation:
        scope = self._partitions.scope(ref)
        partition, turns = scope.partition, len(imported.turns)
        is_taken = partial(partition.ask, "EXISTS", f"{partition.name}:conversation:{scope.name}")
        if await is_taken():
            raise errors.ConversationExistsError
        sealed, head = await asyncio.to_thread(seal_import, scope, imported)
        settings = records.ConversationSettings(rollbacks=imported.rollbacks)
        async with staged_keys(partition) as staged:
            for kind, values in sealed.items():
                for start, piece in pieces(values):
                    await partition.call("stage", *piece, staged=staged, kind=kind, at=start)
            if await is_taken():  # its files are not to be touched
                raise errors.ConversationExistsError
            take_back = await write_files(ref)
            state, *rest = await scope.call(
                "import",
                owner=ref.owner,
                staged=staged,
                head=head,
                turns=turns,
                steps=len(imported.memory.steps),
                **stored_fields(scope, agent, draft, turns, settings),
            )
            if state != b"ok":
                await take_back()
        if made := self._changed(state, rest, {b"expired"}):
            return made
        raise errors.StoreUnavailableError  # the import took longer than staged keys are kept

    async def _with_snapshot(
        self, ref: Ref, operation: Callable[[_Snapshot], Awaitable[T | None]], turn: int = 0, *, may_run: bool = False
    ) -> T:
        """Run an operation on a snapshot, and again on a new one if the conversation has changed meanwhile."""
        for _ in range(MOST_TRIES):
            snapshot = await self._snapshot(ref, turn, may_run=may_run)
            found = await self._unless_changed(ref, snapshot.version, operation(snapshot))
            if found is not None:
                return found
        raise errors.StoreUnavailableError("Others keep changing this conversation; try again.")

    async def _unless_changed(self, ref: Ref, version: Version, reading: Awaitable[T]) -> T | None:
        """Return None instead of raising for data that was destroyed or replaced since `version`."""
        try:
            return await reading
        except (errors.SealBrokenError, errors.HistoryGoneError):
            if await self._is_unchanged(ref, version):
                raise
        return None

    async def _is_unchanged(self, ref: Ref, version: Version) -> bool:
        return (await self._snapshot(ref, 0, may_run=True)).version == version

    async def _snapshot(self, ref: Ref, turn: int, *, may_run: bool) -> _Snapshot:
        scope = self._partitions.scope(ref)
        state, *rest = await scope.call("snapshot", turn=turn)
        if state != b"ok":
            raise _refusal(state, rest)
        row, first, earlier, of_turn = rest
        if first and not may_run:
            raise _refusal(b"busy", [first, row[-1]])
        conversation = self._conversations.decode_row(*row)
        if turn > conversation.turn_count:
            raise errors.TurnNotFoundError
        _, _, head, _, _, _, settings, *_ = row[1]
        opened = open_head(scope, head)
        head_then = codec.decode_head(scope.open(earlier, "head", is_past_head=True)) if earlier else Head()
        version = Version(head or b"", settings or b"")
        return _Snapshot(scope, conversation, scope.settings(settings), version, opened, head_then if of_turn else None)

    async def _without(self, ref: Ref, version: Version, places: Sequence[int]) -> tuple[Head | None, list[StoredStep]]:
        """Return the head with these steps out of its counts, and all steps. No head: the memory has changed."""
        scope = self._partitions.scope(ref)
        head = open_head(scope, version.head)
        steps = await self._unless_changed(ref, version, load_steps(scope, head))
        if steps is None:
            return None, []
        out, counts = set(places), dict(head.step_counts)
        for step in steps:
            if step.index in out:
                counts = counted(counts, step.type, -1)
        return replace(head, step_counts=counts), steps

    async def _amend(
        self,
        ref: Ref,
        version: Version,
        head: Head,
        *wanted: Argument,
        settings: records.ConversationSettings | None = None,
        **more: Argument,
    ) -> Conversation | None:
        """Write a new head. Returns None if the conversation has changed since `version`."""
        scope = self._partitions.scope(ref)
        named: dict[str, Argument] = {"staged": "", "chunks": "", "steps": "", "turns": "", **more}
        state, *rest = await scope.call(
            "amend",
            *wanted,
            read_head=version.head,
            read_settings=version.settings,
            head=scope.seal(codec.encode_head(head), "head"),
            settings=scope.seal_settings(settings) if settings else b"",
            **named,
        )
        return self._changed(state, rest, {b"moved"})

    def _changed(self, state: bytes, rest: list[Any], retried: set[bytes]) -> Conversation | None:
        if state == b"ok":
            return self._conversations.decode_row(*rest[0])
        if state not in retried:
            raise _refusal(state, rest)
        return None


async def _memory_of(snapshot: _Snapshot, steps: Sequence[StoredStep]) -> Memory:
    images = await load_images(snapshot.scope, [step.attachments for step in steps])
    about = snapshot.conversation
    return Memory(about.agent, about.metadata, snapshot.settings, snapshot.version, tuple(steps), images)


async def _earlier(snapshot: _Snapshot, turn: int) -> Head:
    """Raises `HistoryGoneError` if the head after this turn is not kept."""
    earlier = snapshot.earlier if turn else Head()
    if earlier:
        around = await load_steps(snapshot.scope, snapshot.head, max(0, earlier.count - 1), earlier.count + 1)
        if all((step.turn <= turn) == (step.index < earlier.count) for step in around):
            return earlier
    raise errors.HistoryGoneError(
        f"The state of the conversation after turn {turn} is not kept: an older release played it, or it was "
        "imported with variables. Choose a later turn."
    )


async def _as_destroyed(snapshot: _Snapshot, earlier: Head) -> Head:
    """Return an earlier head without the steps that were destroyed since."""
    destroyed = snapshot.head.destroyed & ((1 << earlier.count) - 1)
    archived, rolled_back = earlier.archived & ~destroyed, earlier.rolled_back & ~destroyed
    head = replace(earlier, destroyed=destroyed, archived=archived, rolled_back=rolled_back)
    if destroyed & ~earlier.destroyed:
        counts: dict[records.StepType, int] = {}
        for step in await load_steps(snapshot.scope, head, without=head.out):
            counts = counted(counts, step.type, 1)
        head = replace(head, step_counts=counts)
    return head


async def _load_chunks(snapshot: _Snapshot) -> dict[str, bytes]:
    scope, head, chunks = snapshot.scope, snapshot.head, dict[str, bytes]()
    for name, tag in (await _chunk_tags(snapshot, head)).items():
        if name:
            (blob,) = await scope.call("chunks", name, tag)
            chunks[name] = scope.open(blob, "variable", 0, name)
    return chunks


async def _chunk_tags(snapshot: _Snapshot, head: Head) -> dict[str, bytes]:
    """Return the tags of chunks by name, that of their list by ''. Raises `HistoryGoneError` for an old list."""
    if not head.variables:
        return {}
    (listed,) = await snapshot.scope.call("chunks", "", head.variables)
    if not listed:
        is_present = head.variables == snapshot.head.variables
        raise errors.SealBrokenError(VARIABLES_SENTENCE) if is_present else errors.HistoryGoneError()
    return {"": head.variables, **open_chunk_list(snapshot.scope, head, listed)}


def _bits(places: Collection[int]) -> int:
    """Return a set of places as bits. To add them one by one would copy all of them each time."""
    found = bytearray(max(places, default=-1) // 8 + 1)
    for place in places:
        found[place // 8] |= 1 << place % 8
    return int.from_bytes(found, "little")


def _refusal(state: bytes, rest: list[Any]) -> Exception:
    if state == b"busy":
        return errors.BusyError.of_turn(codec.number(rest[0]), "wait for its end, or stop it", waits=bool(rest[1]))
    kinds = {b"gone": errors.HistoryGoneError, b"exists": errors.ConversationExistsError}
    return kinds.get(state, errors.ConversationNotFoundError)()
