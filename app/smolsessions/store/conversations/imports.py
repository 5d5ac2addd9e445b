"""Sealing of an imported conversation, as values of staged keys."""

from __future__ import annotations

from dataclasses import replace
from itertools import count, groupby
from operator import attrgetter

from smolsessions.core.memories import Head, ImportedConversation
from smolsessions.store import codec
from smolsessions.store.conversations.head import counted, extended
from smolsessions.store.partition import Scope
from smolsessions.store.scripts.loader import Argument, flattened
from smolsessions.store.seal import tag_of


def seal_import(scope: Scope, imported: ImportedConversation) -> tuple[dict[str, list[Argument]], bytes]:
    """Return the values of staged keys by kind, and the sealed head (empty without steps and variables)."""
    memory, head, heads = imported.memory, Head(), dict[int, Head]()
    shown_from = next(place for place in count() if place not in memory.hidden)
    # A step that is hidden behind a shown one was archived by a prune.
    archived = {*memory.archived, *(place for place in memory.hidden if place > shown_from)}
    steps = [scope.seal(codec.encode_step(step), "step", 0, index) for index, step in enumerate(memory.steps)]
    sealed = [(step.type, blob) for step, blob in zip(memory.steps, steps, strict=True)]
    for turn, group in groupby(memory.steps, attrgetter("turn")):  # the head after each turn
        first, end = head.count, head.count + len([*group])
        if first < shown_from:
            hidden = extended(head, sealed[first : min(end, shown_from)])
            head = replace(head, shown_from=hidden.count, shown_hash=hidden.hash)
        head = extended(head, sealed[first:end])
        for index in archived.intersection(range(first, end)):
            counts = counted(head.step_counts, memory.steps[index].type, -1)
            head = replace(head, step_counts=counts, archived=head.archived | 1 << index)
        heads[turn] = head
    chunks = {name: scope.seal(chunk, "variable", 0, name) for name, chunk in memory.variables.items()}
    if chunks:
        tags = {name: tag_of(blob) for name, blob in chunks.items()}
        chunks[""] = scope.seal(codec.encode_chunk_list(tags), "variables", 0)
        head = replace(head, variables=tag_of(chunks[""]))
        heads = {}  # the variables after an earlier turn are unknown
    images = {name: data for step in memory.steps for name, data in step.attachments.items()}
    earlier = [*heads.items()][:-1]  # the last one is the conversation's own
    staged: dict[str, list[Argument]] = {
        "turns": [scope.seal(turn, "turn", number) for number, turn in enumerate(imported.turns, 1)],
        "steps": [*steps],
        "images": flattened((name, scope.seal(data, "image", name)) for name, data in images.items()),
        "variables": flattened(chunks.items()),
        "heads": flattened((turn, scope.seal(codec.encode_head(head_then), "head")) for turn, head_then in earlier),
    }
    return staged, scope.seal(codec.encode_head(head), "head") if steps or chunks else b""
