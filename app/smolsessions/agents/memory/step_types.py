"""Step classes of the service beside smolagents' own, and the messages of any finished step."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from smolagents.memory import ActionStep, MemoryStep
from smolagents.models import ChatMessage, MessageRole

from smolsessions.agents.values.json_forms import joined_text

if TYPE_CHECKING:
    from smolsessions.agents.memory.steps import Step

Runs = list[tuple[int, int]]
"""First and last distance of consecutive entries."""


@dataclass
class NoteStep(MemoryStep):  # type: ignore[misc, unused-ignore]
    """Note that the agent wrote for itself. `number` counts 1, 2, 3 … in the conversation.

    `replaces` is the number of an earlier note that is no longer shown.
    """

    number: int
    text: str
    replaces: int | None = None

    def to_messages(self, summary_mode: bool = False) -> list[ChatMessage]:  # noqa: ARG002 - smolagents' signature
        return [text_message(MessageRole.USER, f"Note {self.number}:\n{self.text}")]


@dataclass
class SummaryStep(MemoryStep):  # type: ignore[misc, unused-ignore]
    """Summary by a model of all earlier steps, except the `recent` last ones, which stay in the prompt."""

    text: str
    recent: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None

    def to_messages(self, summary_mode: bool = False) -> list[ChatMessage]:  # noqa: ARG002 - smolagents' signature
        return [text_message(MessageRole.USER, f"Summary of the conversation so far:\n{self.text}")]


@dataclass
class EditStep(MemoryStep):  # type: ignore[misc, unused-ignore]
    """One change of the memory.

    `step` replaces the entry `of` places earlier. Without `of` it is a new last step.
    `gone` names the entries that leave the memory, `order` all that stay in it.
    """

    step: Step | None = None
    of: int | None = None
    gone: Runs | None = None
    order: Runs | None = None


def replaced_notes(notes: Collection[NoteStep]) -> set[int]:
    """Return the `id` of each note that a later note replaces."""
    replaced = {note.replaces for note in notes if note.replaces is not None}
    return {id(note) for note in notes if note.number in replaced}


def messages_of(step: MemoryStep, *, summary_mode: bool = False) -> list[ChatMessage]:
    """Return a step's messages for the next model call: smolagents', which fails on model output in parts."""
    if isinstance(step, ActionStep) and isinstance(step.model_output, list):
        step = replace(step, model_output=joined_text(step.model_output))
    return step.to_messages(summary_mode=summary_mode)


def text_in(message: ChatMessage) -> str:
    content = message.content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return content or ""


def text_message(role: MessageRole, text: str) -> ChatMessage:
    return ChatMessage(role=role, content=[{"type": "text", "text": text}])
