"""Imported conversation, sealed as the arguments of import.lua."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smolsessions.core.records import Head
from smolsessions.store import codec
from smolsessions.store.conversations.head import counted, extended
from smolsessions.store.scripts.loader import flattened
from smolsessions.store.seal import tag_of

if TYPE_CHECKING:
    from smolsessions.core.records import ImportedConversation, ImportedMemory
    from smolsessions.store.partition import Scope
    from smolsessions.store.scripts.loader import Argument


def seal_import(scope: Scope, brought: ImportedConversation) -> tuple[list[Argument], bytes]:
    """Return the arguments of import.lua, and the sealed head (empty without steps and variables)."""
    memory = brought.memory
    turns = [scope.seal(codec.encode_turn(turn), "turn", turn.number) for turn in brought.turns]
    steps, heads, head = _seal_steps(scope, memory)
    chunks = {name: scope.seal(chunk, "variable", 0, name) for name, chunk in memory.variables.items()}
    if chunks:
        tags = {name: tag_of(blob) for name, blob in chunks.items()}
        chunks[""] = scope.seal(codec.encode_chunk_list(tags), "variables", 0)
        head = replace(head, variables=tag_of(chunks[""]))
        heads = {}  # the variables after an earlier turn are unknown
    images = {name: data for step in memory.steps for name, data in step.attachments.items()}
    sealed_images = {name: scope.seal(data, "image", name) for name, data in images.items()}
    sealed_heads = {turn: scope.seal(codec.encode_head(head_then), "head") for turn, head_then in heads.items()}
    arguments: list[Argument] = [len(turns), *turns, len(steps), *steps]
    for pairs in (list(sealed_images.items()), list(chunks.items()), list(sealed_heads.items())):
        arguments += [len(pairs), *flattened(pairs)]
    return arguments, scope.seal(codec.encode_head(head), "head") if steps or chunks else b""


def _seal_steps(scope: Scope, memory: ImportedMemory) -> tuple[list[bytes], dict[int, Head], Head]:
    """Seal the steps. Also return the head after each turn except the last, and the head after all steps."""
    places = range(len(memory.steps))
    shown_from = next((place for place in places if place not in memory.hidden), len(memory.steps))
    # A step that is hidden behind a shown one was archived by a prune.
    archived = {*memory.archived, *(place for place in memory.hidden if place > shown_from)}
    head, steps, heads = Head(), list[bytes](), dict[int, Head]()
    for index, step in enumerate(memory.steps):
        if index and step.turn > memory.steps[index - 1].turn:
            heads[memory.steps[index - 1].turn] = head
        steps.append(scope.seal(codec.encode_step(step), "step", 0, index))
        head = extended(head, step.type, steps[-1])
        if index in archived:
            counts = counted(head.step_counts, step.type, -1)
            head = replace(head, step_counts=counts, archived=head.archived | 1 << index)
        if index < shown_from:
            head = replace(head, shown_from=index + 1, shown_hash=head.hash)
    return steps, heads, head
