"""Step classes of the service beside smolagents' own, with the types, marks, errors and messages of all steps."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import smolagents.utils
from smolagents.memory import ActionStep, MemoryStep, PlanningStep, TaskStep
from smolagents.models import ChatMessage, MessageRole
from smolagents.utils import AgentError

from smolsessions.agents.values.json_forms import joined_text
from smolsessions.core.records import EntryType

ESTIMATE = "shown_estimate"
"""Attribute of an action step: the estimated tokens of the steps in its prompt."""
STEERED = "steered"
"""Attribute of a task that joined a running turn: the number of the turn that its message was."""
LABELS = "smolsessions_labels"
"""Attribute of an imported step with pointers to texts and data that replaced other values at its export."""


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
    """One change of the memory. It names earlier entries of the record by their distance.

    The entries `removed` leave the memory. `step` replaces the entry `of`. If that one is not in the memory, or without
    `of`, the step comes last.
    """

    step: Step | None = None
    of: int | None = None
    removed: list[int] | None = None


Step = TaskStep | PlanningStep | ActionStep | NoteStep | SummaryStep | EditStep
_TYPES: dict[type, EntryType] = {
    TaskStep: "task",
    PlanningStep: "planning",
    NoteStep: "note",
    SummaryStep: "summary",
    EditStep: "edit",
    ActionStep: "action",
}


ERRORS = {
    name: kind
    for name, kind in vars(smolagents.utils).items()
    if isinstance(kind, type) and issubclass(kind, AgentError)
}
"""smolagents' own errors by name."""


def step_type(step: MemoryStep) -> EntryType:
    if type(step) in _TYPES:
        return _TYPES[type(step)]
    return next((name for kind, name in _TYPES.items() if isinstance(step, kind)), "action")


def agent_error(name: str, message: str) -> AgentError:
    """Return an error of smolagents without `AgentError.__init__`, which needs a logger."""
    kind = ERRORS[name]
    error = kind.__new__(kind, message)
    error.message = message
    return error


def begins_turn(step: MemoryStep) -> bool:
    return isinstance(step, TaskStep) and not hasattr(step, STEERED)


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
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content or ""


def text_message(role: MessageRole, text: str) -> ChatMessage:
    return ChatMessage(role=role, content=[{"type": "text", "text": text}])
