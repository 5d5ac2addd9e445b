"""Imported conversation, sealed as the arguments of import.lua."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smolsessions.core.records import Head
from smolsessions.store import codec
from smolsessions.store.conversations.head import counted, extended
from smolsessions.store.seal import tag_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smolsessions.core.records import ImportedConversation, ImportedMemory
    from smolsessions.store.partition import Partition
    from smolsessions.store.scripts.loader import Argument


def seal_import(partition: Partition, scope: str, brought: ImportedConversation) -> tuple[list[Argument], bytes]:
    """Return the arguments of import.lua, and the sealed head (empty without steps and variables)."""
    seal, memory = partition.sealer.seal, brought.memory
    turns = [seal(codec.encode_turn(turn), scope, "turn", turn.number) for turn in brought.turns]
    steps, moments, head = _seal_steps(partition, scope, memory)
    chunks = {name: seal(chunk, scope, "variable", 0, name) for name, chunk in memory.variables.items()}
    if chunks:
        tags = {name: tag_of(blob) for name, blob in chunks.items()}
        chunks[""] = seal(codec.encode_chunk_list(tags), scope, "variables", 0)
        head = replace(head, variables=tag_of(chunks[""]))
        moments = []  # the variables after an earlier turn are unknown
    images = {name: data for step in memory.steps for name, data in step.attachments.items()}
    sealed_images = [(name, seal(data, scope, "image", name)) for name, data in images.items()]
    arguments: list[Argument] = [len(turns), *turns, len(steps), *steps]
    for pairs in (sealed_images, list(chunks.items()), moments):
        arguments.append(len(pairs))
        for pair in pairs:
            arguments += pair
    return arguments, _seal_head(partition, scope, head, _archived(memory)) if steps or chunks else b""


def _seal_steps(
    partition: Partition, scope: str, memory: ImportedMemory
) -> tuple[list[bytes], list[tuple[int, bytes]], Head]:
    """Seal the steps. Also return the sealed head after each turn, and the head after all steps."""
    archived, shown_from = _archived(memory), _shown_from(memory)
    head, steps, moments = Head(), list[bytes](), list[tuple[int, bytes]]()
    for index, step in enumerate(memory.steps):
        if index and step.turn > memory.steps[index - 1].turn:
            moments.append((memory.steps[index - 1].turn, _seal_head(partition, scope, head, archived)))
        steps.append(partition.sealer.seal(codec.encode_step(step), scope, "step", 0, index))
        head = extended(head, step.type, steps[-1])
        if index in archived:
            head = replace(head, step_counts=counted(head.step_counts, step.type, -1))
        if index < shown_from:
            head = replace(head, shown_from=index + 1, shown_hash=head.hash)
    return steps, moments, head


def _shown_from(memory: ImportedMemory) -> int:
    return next((place for place in range(len(memory.steps)) if place not in memory.hidden), len(memory.steps))


def _archived(memory: ImportedMemory) -> set[int]:
    """Return the archived steps, and those that are hidden behind a shown one, as by a prune."""
    shown_from = _shown_from(memory)
    return {*memory.archived, *(place for place in memory.hidden if place > shown_from)}


def _seal_head(partition: Partition, scope: str, head: Head, archived: Iterable[int]) -> bytes:
    out = sum(1 << place for place in archived if place < head.count)
    return partition.sealer.seal(codec.encode_head(replace(head, archived=out)), scope, "head")
