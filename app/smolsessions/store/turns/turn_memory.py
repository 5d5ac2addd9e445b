"""What a claimed turn finds and keeps: steps under a sealed head, variables in pieces, the past of earlier attempts."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from smolsessions.core.errors import LeaseLostError, SealBrokenError
from smolsessions.core.replay_state import ReplayState
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
MOST_AT_ONCE = 200  # events of a log that are opened in one go


class TurnMemory:
    """A conversation's memory while one turn plays: as it was at the turn's start, and as it is now."""

    def __init__(self, partition: Partition, turn: Turn, head: Head, pieces: dict[str, bytes]) -> None:
        """`pieces` are the tags of the variables' pieces by name, as the head was sealed over them."""
        self._partition = partition
        self._turn = turn
        self._scope = str(turn.ref)
        self._before = head
        self._start = self._head = hidden_so_far(head) if turn.options.reset else head
        self._knows_tail = turn.attempts <= 1
        self._pieces_before = pieces
        self._pieces = dict(pieces)

    @property
    def generation(self) -> int:
        return self._head.generation

    @property
    def count(self) -> int:
        """How many steps there are now."""
        return self._head.count

    @property
    def count_before(self) -> int:
        return self._before.count

    @property
    def new_steps(self) -> int:
        """How many of them are this turn's, without its task."""
        before, now = self._before.step_counts, self._head.step_counts
        return sum(now.get(kind, 0) - before.get(kind, 0) for kind in ("planning", "action"))

    @property
    def lacks_task(self) -> bool:
        """True while no step of this turn is kept. False where the tail of an earlier attempt cannot be read."""
        return self._knows_tail and self._head.count == self._start.count

    async def steps(self) -> tuple[list[bytes], dict[str, bytes]]:
        """Load the entries that make the memory at the turn's start; a gap, a swap or a cut is a `SealBrokenError`.

        The bytes of one that is out of the memory are empty.
        """
        head = self._start
        blobs = await self._load(head.shown_from, head.count)
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
        """Load the pieces of the turn's start; one that is missing or not in the sealed list is a SealBrokenError."""
        if not self._pieces_before:
            return {}
        kept, _ = await self._load_variables()
        if {name: tag_of(blob) for name, blob in kept.items()} != self._pieces_before:
            raise SealBrokenError(VARIABLES_SENTENCE)
        return {name: self._open_piece(name, blob) for name, blob in kept.items()}

    async def past(self, fence: str) -> ReplayState:
        """Load what earlier attempts left; their finished steps, and variables, are taken over with it.

        They are kept also where the rest cannot be read.
        """
        journal, log, tail, effects = await self._load_past(fence)
        _, fresh = await self._load_variables()
        head, steps = self._start, []
        for index, blob in enumerate(tail, head.count):
            steps.append(self._open_step(blob, index))
            head = extended(head, steps[-1].type, blob)
        for name, blob in fresh.items():
            if blob:
                self._open_piece(name, blob)
        self._head, self._pieces, self._knows_tail = head, dict(self._pieces_before), True
        for name, blob in fresh.items():
            self._note_piece(name, blob)
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
        """Take a step under the head; give it and what belongs to it as a script takes it."""
        index = self._head.count
        blob = self._seal(codec.step_to_bytes(step), "step", self.generation, index)
        self._head = extended(self._head, step.type, blob)
        sealed: list[Argument] = [index, blob, len(step.attachments)]
        for name, data in step.attachments.items():
            sealed += [name, self._seal(data, "image", name)]
        sealed.append(len(step.variables))
        for name, piece in step.variables.items():
            blob = b"" if piece is None else self._seal(piece, "variable", self.generation, name)
            self._note_piece(name, blob)
            sealed += [name, blob]
        return sealed

    def seal_head(self) -> tuple[bytes, bytes]:
        """Seal the list of the variables' pieces and the head, each if it changed."""
        variables = b""
        if self._pieces != self._pieces_before:
            variables = self._seal(codec.pieces_to_bytes(self._pieces), "variables", self.generation)
            self._head = replace(self._head, variables=tag_of(variables))
        if self._head == self._before:
            return b"", b""
        return variables, self._seal(codec.head_to_bytes(self._head), "head")

    def _note_piece(self, name: str, blob: bytes) -> None:
        self._pieces.pop(name, None)
        if blob:
            self._pieces[name] = tag_of(blob)

    def _seal(self, data: bytes, *place: str | int) -> bytes:
        return self._partition.sealer.seal(data, self._scope, *place)

    def _open_step(self, blob: bytes, index: int) -> StoredStep:
        opened = self._partition.sealer.open(blob, self._scope, "step", self.generation, index)
        return codec.step_from_bytes(opened, index)

    def _open_piece(self, name: str, blob: bytes) -> bytes:
        return self._partition.sealer.open(blob, self._scope, "variable", self.generation, name)

    def _open_effect(self, key: str, blob: bytes) -> bytes:
        return self._partition.sealer.open(blob, self._scope, "effect", self._turn.number, key)

    async def _open_events(self, log: list[bytes]) -> tuple[Event, ...]:
        events = []
        for entry in log:
            name, _, blob = entry.partition(b"\n")
            with suppress(ValueError):  # of a newer release: nothing that this one would tell again
                events.append(
                    self._partition.log.decode(self._turn.ref, self._turn.number, 0, codec.text(name), blob).event
                )
            if len(events) % MOST_AT_ONCE == 0:
                await asyncio.sleep(0)  # others want the loop, too
        return tuple(events)

    async def _load_past(self, fence: str) -> tuple[list[bytes], list[bytes], list[bytes], int]:
        state, *found = await self._partition.scripts.call(
            "past",
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

    async def _load_variables(self) -> tuple[dict[str, bytes], dict[str, bytes]]:
        kept, fresh = await self._partition.scripts.call("variables", ref=self._scope, generation=self.generation)
        found = {codec.text(name): blob for name, blob in zip(kept[::2], kept[1::2], strict=True) if name}
        return found, {codec.text(name): blob for name, blob in zip(fresh[::2], fresh[1::2], strict=True)}

    async def _load(self, first: int, end: int) -> list[bytes]:
        if end <= first:
            return []
        found = await self._partition.scripts.call("steps", ref=self._scope, first=first, last=end - 1)
        if not found:
            raise LeaseLostError
        blobs: list[bytes] = found[3]
        return blobs
