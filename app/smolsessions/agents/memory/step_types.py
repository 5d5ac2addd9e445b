"""Entries of the service's own, beside smolagents' steps: notes of the scratchpad, summaries, and edits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smolagents.memory import MemoryStep
from smolagents.models import ChatMessage, MessageRole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smolsessions.agents.memory.steps import Step


Runs = list[tuple[int, int]]
"""First and last distance of entries that follow each other."""


@dataclass
class NoteStep(MemoryStep):  # type: ignore[misc, unused-ignore]
    """A note that the agent wrote for itself. `number` counts 1, 2, 3 … in the conversation.

    `replaces` is the number of an earlier note that this one takes the place of; that one is no longer shown.
    """

    number: int
    text: str
    replaces: int | None = None

    def to_messages(self, summary_mode: bool = False) -> list[ChatMessage]:  # noqa: ARG002 - smolagents' signature
        """Show it to the model, in any mode."""
        return [_from_user(f"Note {self.number}:\n{self.text}")]


@dataclass
class SummaryStep(MemoryStep):  # type: ignore[misc, unused-ignore]
    """What a model made of earlier steps: all before it but the `recent` last ones, which are shown as they are."""

    text: str
    recent: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None

    def to_messages(self, summary_mode: bool = False) -> list[ChatMessage]:  # noqa: ARG002 - smolagents' signature
        """Show it to the model, in any mode."""
        return [_from_user(f"Summary of the conversation so far:\n{self.text}")]


@dataclass
class EditStep(MemoryStep):  # type: ignore[misc, unused-ignore]
    """One change of the memory.

    `step` takes the place of the entry `of` steps before this one; without `of` it is a new last step. `gone` names
    entries that leave the memory, `order` all that stay in it.
    """

    step: Step | None = None
    of: int | None = None
    gone: Runs | None = None
    order: Runs | None = None


def replaced_notes(notes: Iterable[NoteStep]) -> dict[int, NoteStep]:
    """Find the notes that a later one takes the place of, by their identity."""
    notes = list(notes)
    replaced = {note.replaces for note in notes if note.replaces is not None}
    return {id(note): note for note in notes if note.number in replaced}


def _from_user(text: str) -> ChatMessage:
    return ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": text}])
