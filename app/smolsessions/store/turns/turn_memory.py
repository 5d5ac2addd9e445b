"""Memory of a conversation while one turn is played: steps, variables, and the remains of earlier attempts."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from smolsessions.core.errors import LeaseLostError, SealBrokenError
from smolsessions.core.events import ReplayState
from smolsessions.store import codec
from smolsessions.store.conversations.head import (
    COUNT_SENTENCE,
    VARIABLES_SENTENCE,
    extend_hash,
    extended,
    hidden_so_far,
    load_images,
)
from smolsessions.store.seal import tag_of

if TYPE_CHECKING:
    from smolsessions.core.events import Event
    from smolsessions.core.records import Head, PackedStep, StoredStep, Turn
    from smolsessions.store.partition import Partition
    from smolsessions.store.scripts.loader import Argument

JOURNAL_SENTENCE = "The journal of this turn does not hold the effects that were written to it."
EVENTS_AT_ONCE = 200


class TurnMemory:
    """Steps and variables at the start of a turn, and the changes that the turn has made since."""

    def __init__(self, partition: Partition, turn: Turn, head: Head, chunks: dict[str, bytes]) -> None:
        """`chunks` are the tags of the variables' chunks by name, as the head was sealed over them."""
        self._partition = partition
        self._turn = turn
        self._scope = str(turn.ref)
        self._before = head
        self._start = self._head = hidden_so_far(head) if turn.options.reset else head
        self._knows_tail = turn.attempts <= 1
        self._chunks_before = chunks
        self._chunks = dict(chunks)
        self.generation = head.generation

    @property
    def count(self) -> int:
        return self._head.count

    @property
    def count_before(self) -> int:
        return self._before.count

    @property
    def new_steps(self) -> int:
        """Number of this turn's steps, without its task."""
        before, now = self._before.step_counts, self._head.step_counts
        return sum(now.get(kind, 0) - before.get(kind, 0) for kind in ("planning", "action"))

    @property
    def lacks_task(self) -> bool:
        """True while no step of this turn is kept. False if the steps of an earlier attempt cannot be read."""
        return self._knows_tail and self._head.count == self._start.count

    async def steps(self) -> tuple[list[bytes], dict[str, bytes]]:
        """Load the steps of the turn's start and their attachments. The bytes of a removed step are empty.

        Raises `SealBrokenError` if a step is missing, swapped or cut off.
        """
        head = self._start
        blobs = await self._load_steps(head.shown_from, head.count)
        running = head.shown_hash
        steps: list[StoredStep | None] = []
        for index, blob in enumerate(blobs, head.shown_from):
            running = extend_hash(running, blob)
            steps.append(None if head.out >> index & 1 else self._open_step(blob, index))
        if running != head.hash or len(blobs) != head.count - head.shown_from:
            raise SealBrokenError(COUNT_SENTENCE)
        images = await load_images(self._partition, self._scope, filter(None, steps))
        return [step.data if step else b"" for step in steps], images

    async def variables(self) -> dict[str, bytes]:
        """Load the variables' chunks of the turn's start. Raises `SealBrokenError` if they differ from the list."""
        if not self._chunks_before:
            return {}
        kept, _ = await self._load_chunks()
        if {name: tag_of(blob) for name, blob in kept.items()} != self._chunks_before:
            raise SealBrokenError(VARIABLES_SENTENCE)
        return {name: self._open_chunk(name, blob) for name, blob in kept.items()}

    async def replay_state(self, fence: str) -> ReplayState:
        """Load the remains of earlier attempts, and adopt their finished steps and variables.

        The steps are adopted even if the journal cannot be read.
        """
        journal, log, tail, effects = await self._load_attempts(fence)
        _, fresh = await self._load_chunks()
        head, steps = self._start, []
        for index, blob in enumerate(tail, head.count):
            steps.append(self._open_step(blob, index))
            head = extended(head, steps[-1].type, blob)
        for name, blob in fresh.items():
            if blob:
                self._open_chunk(name, blob)
        self._head, self._chunks, self._knows_tail = head, dict(self._chunks_before), True
        for name, blob in fresh.items():
            self._set_chunk(name, blob)
        written = {codec.text(name): blob for name, blob in zip(journal[::2], journal[1::2], strict=True)}
        if sum(map(bool, written.values())) != effects:
            raise SealBrokenError(JOURNAL_SENTENCE)
        return ReplayState(
            effects={name: self._open_effect(name, blob) for name, blob in written.items() if blob},
            begun=frozenset(name for name, blob in written.items() if not blob),
            events=await self._open_events(log),
            steps=tuple(step.data for step in steps),
            attachments=await load_images(self._partition, self._scope, steps),
        )

    def seal_step(self, step: PackedStep) -> list[Argument]:
        """Append a step to the head, and return the arguments of its write."""
        index = self._head.count
        blob = self._seal(codec.encode_step(step), "step", self.generation, index)
        self._head = extended(self._head, step.type, blob)
        sealed: list[Argument] = [index, blob, len(step.attachments)]
        for name, data in step.attachments.items():
            sealed += [name, self._seal(data, "image", name)]
        sealed.append(len(step.variables))
        for name, chunk in step.variables.items():
            blob = b"" if chunk is None else self._seal(chunk, "variable", self.generation, name)
            self._set_chunk(name, blob)
            sealed += [name, blob]
        return sealed

    def seal_head(self) -> tuple[bytes, bytes]:
        """Seal the list of the variables' chunks and the head. Either is empty if it is unchanged."""
        chunk_list = b""
        if self._chunks != self._chunks_before:
            chunk_list = self._seal(codec.encode_chunk_list(self._chunks), "variables", self.generation)
            self._head = replace(self._head, variables=tag_of(chunk_list))
        if self._head == self._before:
            return b"", b""
        return chunk_list, self._seal(codec.encode_head(self._head), "head")

    def _set_chunk(self, name: str, blob: bytes) -> None:
        self._chunks.pop(name, None)
        if blob:
            self._chunks[name] = tag_of(blob)

    def _seal(self, data: bytes, *place: str | int) -> bytes:
        return self._partition.sealer.seal(data, self._scope, *place)

    def _open_step(self, blob: bytes, index: int) -> StoredStep:
        opened = self._partition.sealer.open(blob, self._scope, "step", self.generation, index)
        return codec.decode_step(opened, index)

    def _open_chunk(self, name: str, blob: bytes) -> bytes:
        return self._partition.sealer.open(blob, self._scope, "variable", self.generation, name)

    def _open_effect(self, key: str, blob: bytes) -> bytes:
        return self._partition.sealer.open(blob, self._scope, "effect", self._turn.number, key)

    async def _open_events(self, entries: list[bytes]) -> tuple[Event, ...]:
        events: list[Event] = []
        turn_log = self._partition.log
        for entry in entries:
            name, _, blob = entry.partition(b"\n")
            with suppress(ValueError):  # an event of a newer release: this one does not repeat it
                events.append(turn_log.decode(self._turn.ref, self._turn.number, 0, codec.text(name), blob).event)
            if len(events) % EVENTS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return tuple(events)

    async def _load_attempts(self, fence: str) -> tuple[list[bytes], list[bytes], list[bytes], int]:
        state, *found = await self._partition.scripts.call(
            "replay_state",
            ref=self._scope,
            turn=self._turn.number,
            fence=fence,
            generation=self.generation,
            first=self._start.count,
        )
        if state == b"lost":
            raise LeaseLostError
        journal, log, tail, effects = found
        return journal, log, tail, codec.number(effects)

    async def _load_chunks(self) -> tuple[dict[str, bytes], dict[str, bytes]]:
        """Load the chunks of the turn's start, and those of earlier attempts."""
        kept, fresh = await self._partition.scripts.call("variables", ref=self._scope, generation=self.generation)
        found = {codec.text(name): blob for name, blob in zip(kept[::2], kept[1::2], strict=True) if name}
        return found, {codec.text(name): blob for name, blob in zip(fresh[::2], fresh[1::2], strict=True)}

    async def _load_steps(self, first: int, end: int) -> list[bytes]:
        if end <= first:
            return []
        found = await self._partition.scripts.call("steps", ref=self._scope, first=first, last=end - 1)
        if not found:
            raise LeaseLostError
        blobs: list[bytes] = found[3]
        return blobs
