"""Memory of a conversation while one turn is played: steps, variables, and the remains of earlier attempts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from smolsessions.core.errors import ConversationNotFoundError, LeaseLostError, SealBrokenError
from smolsessions.core.events import Event, ReplayState
from smolsessions.core.memories import PackedStep
from smolsessions.core.records import EntryType
from smolsessions.store import codec
from smolsessions.store.conversations.head import VARIABLES_SENTENCE, extended
from smolsessions.store.conversations.stored_steps import load_images, load_steps, open_step
from smolsessions.store.partition import Scope
from smolsessions.store.scripts.loader import Argument
from smolsessions.store.seal import compress, tag_of
from smolsessions.store.turns.chunk_writes import take_staged
from smolsessions.store.turns.claim import Claim
from smolsessions.store.turns.turn_log import open_event

log = logging.getLogger(__name__)

JOURNAL_SENTENCE = "The journal of this turn does not hold the effects that were written to it."
EVENTS_AT_ONCE = 200
LARGE_BYTES = 1024 * 1024  # to compress 16 MB of text takes 150 ms
MANY_CHUNKS = 1000  # a script that writes 20,000 takes 60 ms


class TurnMemory:
    """Steps and variables at the start of a turn, and the changes that the turn has made since."""

    def __init__(self, scope: Scope, claim: Claim) -> None:
        head = claim.head
        self._scope = scope
        self._turn = claim.turn
        self._before = head
        if claim.turn.options.reset:  # hides all steps so far
            head = replace(head, shown_from=head.count, shown_hash=head.hash)
        self._start = head
        self._added: list[tuple[EntryType, bytes]] = []
        """Type and tag of each step that was appended since."""
        self._knows_tail = claim.turn.attempts <= 1
        self._chunks_before = claim.chunks
        self.chunks = dict(claim.chunks)
        self.staged: tuple[list[Argument], str] = [], ""
        """Chunks that an earlier attempt staged, and the mark of those that are valid."""
        self._compressed: dict[bytes, bytes] = {}
        """Compressed forms of large parts that are sealed next."""
        self.count_before = head.count

    @property
    def count(self) -> int:
        return self._start.count + len(self._added)

    @property
    def kept_steps(self) -> int:
        """Number of this turn's steps, without its task."""
        return sum(kind in {"planning", "action"} for kind, _ in self._added)

    @property
    def lacks_task(self) -> bool:
        """True while no step of this turn is kept. False if the steps of an earlier attempt cannot be read."""
        return self._knows_tail and not self._added

    async def steps(self) -> tuple[list[bytes], dict[str, bytes]]:
        """Load the steps of the turn's start and their attachments. The bytes of a removed step are empty."""
        head = self._start
        try:
            loaded = await load_steps(self._scope, head, head.shown_from, without=head.out)
        except ConversationNotFoundError:
            raise LeaseLostError from None
        steps = [b""] * (head.count - head.shown_from)
        for step in loaded:
            steps[step.index - head.shown_from] = step.data
        return steps, await load_images(self._scope, [step.attachments for step in loaded])

    async def variables(self) -> dict[str, bytes]:
        """Load the variables' chunks of the turn's start. Raises `SealBrokenError` if they differ from the list."""
        if not self._chunks_before:
            return {}
        kept, _ = await self._load_chunks()
        if {name: tag_of(blob) for name, blob in kept.items()} != self._chunks_before:
            raise SealBrokenError(VARIABLES_SENTENCE)
        return {name: self._open_chunk(name, blob) for name, blob in kept.items()}

    async def replay_state(self, fence: str, *, effects: bool) -> ReplayState:
        """Load and adopt the remains of earlier attempts: their steps even if the journal cannot be read."""
        number, head = self._turn.number, self._start
        state, *found = await self._scope.call(
            "replay_state", turn=number, fence=fence, first=head.count, effects=int(effects)
        )
        if state == b"lost":
            raise LeaseLostError
        journal, log, tail, count = found
        _, pending = await self._load_chunks()
        self.staged = take_staged(pending)
        steps, added = [], []
        for index, blob in enumerate(tail, head.count):
            steps.append(open_step(self._scope, self._start, index, blob))
            added.append((steps[-1].type, tag_of(blob)))
        for name, blob in pending.items():
            if blob:
                self._open_chunk(name, blob)
        self._added, self.chunks, self._knows_tail = added, dict(self._chunks_before), True
        for name, blob in pending.items():
            self._set_chunk(name, blob)
        events: list[Event] = []
        for entry in log:
            name, _, blob = entry.partition(b"\n")
            try:
                events.append(open_event(self._scope, number, codec.text(name), blob))
            except ValueError:  # of a newer release: this one does not repeat it
                log.warning("an event %s cannot be read", name, extra={"action": "event.unreadable"})
            if len(events) % EVENTS_AT_ONCE == 0:
                await asyncio.sleep(0)
        written = _by_name(journal)
        if effects and sum(map(bool, written.values())) != codec.number(count):
            raise SealBrokenError(JOURNAL_SENTENCE)
        return ReplayState(
            effects={key: self._scope.open(blob, "effect", number, key) for key, blob in written.items() if blob},
            begun=frozenset(key for key, blob in written.items() if not blob),
            events=tuple(events),
            steps=tuple(step.data for step in steps),
            attachments=await load_images(self._scope, [step.attachments for step in steps]) if effects else {},
        )

    def compress(self, step: PackedStep | None, result: bytes) -> None:
        """Compress the large parts of a step, and a large result, before they are sealed. For any thread."""
        parts = [result]
        if step:
            large = codec.encode_step(step) if len(step.data) > LARGE_BYTES else b""
            parts += [large, *step.attachments.values(), *filter(None, step.variables.values())]
        for part in parts:
            if len(part) > LARGE_BYTES:
                self._compressed[part] = compress(part)

    def seal(self, data: bytes, *place: str | int) -> bytes:
        packed = self._compressed.pop(data, None) if len(data) > LARGE_BYTES else None
        return self._scope.seal(data, *place, packed=packed)

    def seal_step(self, step: PackedStep) -> list[Argument]:
        """Append a step to the head, and return the arguments of its parts: step and images."""
        seal, index = self.seal, self.count
        blob = seal(codec.encode_step(step), "step", 0, index)
        self._added.append((step.type, tag_of(blob)))
        sealed: list[Argument] = [index, blob]
        for name, data in step.attachments.items():
            sealed += [name, seal(data, "image", name)]
        return sealed

    def seal_chunks(self, variables: Mapping[str, bytes | None]) -> list[Argument]:
        """Change chunks of variables, and return their names and blobs. One that is deleted has an empty blob."""
        sealed: list[Argument] = []
        for name, chunk in variables.items():
            blob = b"" if chunk is None else self.seal(chunk, "variable", 0, name)
            self._set_chunk(name, blob)
            sealed += [name, blob]
        return sealed

    def replaced_chunks(self) -> list[str]:
        """Return the names of the chunks that the turn replaces or deletes, if very many have changed."""
        before, after = self._chunks_before, self.chunks
        changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
        return ["", *(name for name in changed if name in before)] if len(changed) > MANY_CHUNKS else []

    def seal_head(self) -> tuple[bytes, bytes]:
        """Seal the list of the variables' chunks and the head. Either is empty if it is unchanged."""
        chunk_list, head = b"", extended(self._start, self._added)
        if self.chunks != self._chunks_before:
            chunk_list = self._scope.seal(codec.encode_chunk_list(self.chunks), "variables", 0)
            head = replace(head, variables=tag_of(chunk_list))
        if head == self._before:
            return b"", b""
        return chunk_list, self._scope.seal(codec.encode_head(head), "head")

    def _set_chunk(self, name: str, blob: bytes) -> None:
        self.chunks.pop(name, None)
        if blob:
            self.chunks[name] = tag_of(blob)

    def _open_chunk(self, name: str, blob: bytes) -> bytes:
        return self._scope.open(blob, "variable", 0, name)

    async def _load_chunks(self) -> tuple[dict[str, bytes], dict[str, bytes]]:
        """Load the chunks of the turn's start, and those of earlier attempts."""
        kept, pending = await self._scope.call("variables")
        return {name: blob for name, blob in _by_name(kept).items() if name}, _by_name(pending)


def _by_name(pairs: Sequence[bytes]) -> dict[str, bytes]:
    return {codec.text(name): blob for name, blob in zip(pairs[::2], pairs[1::2], strict=True)}
