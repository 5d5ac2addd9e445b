"""Cache of values derived from single steps: messages, sizes and copies."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from smolagents.memory import ActionStep, TaskStep

from smolsessions.agents.memory.step_types import NoteStep, SummaryStep, messages_of, text_in
from smolsessions.agents.memory.tokens import estimate_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from smolagents.memory import MemoryStep
    from smolagents.models import ChatMessage

MIN_STALE = 100  # cached steps beyond those in use before an eviction
MAX_GROWTH = 2  # times the size after the last eviction


@dataclass(slots=True)
class _Entry:
    step: MemoryStep
    content: tuple[object, ...]
    messages: list[ChatMessage]
    summary: list[ChatMessage] | None = None
    tokens: int | None = None
    characters: int | None = None
    copies: dict[Hashable, MemoryStep] = field(default_factory=dict)


class StepCache:
    """Messages, sizes and copies by step. A step whose content changed is computed again.

    Model calls share the messages. smolagents itself copies them before it changes any.
    """

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._origins: dict[int, tuple[MemoryStep, MemoryStep]] = {}
        """Copies with their originals, by the id of the copy."""
        self._size = 0

    def messages(self, step: MemoryStep, *, summary_mode: bool = False) -> list[ChatMessage]:
        entry = self._entry(step)
        if not summary_mode:
            return entry.messages
        if entry.summary is None:
            entry.summary = messages_of(step, summary_mode=True)
        return entry.summary

    def characters(self, step: MemoryStep) -> int:
        entry = self._entry(step)
        if entry.characters is None:
            entry.characters = sum(len(text_in(message)) for message in entry.messages)
        return entry.characters

    def estimate(self, step: MemoryStep) -> int:
        """Return the estimated tokens of a step."""
        entry = self._entry(step)
        if entry.tokens is None:
            entry.tokens = estimate_messages(entry.messages)
        return entry.tokens

    def copy_of(self, step: MemoryStep, name: Hashable, make: Callable[[], MemoryStep]) -> MemoryStep:
        """Return the copy of a step under this name, made at the first call."""
        entry = self._entry(step)
        made = entry.copies.get(name)
        if made is None:
            made = entry.copies[name] = make()
            self.set_origin(made, step)
        return made

    def commit_copy(self, step: MemoryStep, name: Hashable) -> MemoryStep:
        """Return the copy of this name, or the step itself if a function left the copy unchanged.

        `copy_of` does not return a changed copy again. A copy that is changed like the one before resolves to that one.
        """
        entry = self._entry(step)
        copied, known = entry.copies[name], entry.copies.get((name, "changed"))
        content = content_of(copied)
        if content == entry.content:
            return step
        del entry.copies[name]
        if known and content_of(known) == content:
            self._origins.pop(id(copied), None)
            return known
        if known:
            self._origins.pop(id(known), None)
        entry.copies[name, "changed"] = copied
        return copied

    def set_origin(self, made: MemoryStep, step: MemoryStep) -> None:
        self._origins[id(made)] = made, step

    def origin(self, step: MemoryStep) -> MemoryStep:
        """Return the step of the memory of which this one is a copy, or the step itself."""
        while found := self._origins.get(id(step)):
            step = found[1]
        return step

    def evict(self, *used: Sequence[MemoryStep]) -> None:
        """Remove the entries of unused steps, if the cache has grown enough since the last eviction."""
        if len(self._entries) <= MAX_GROWTH * self._size + MIN_STALE:
            return
        left, kept = [step for steps in used for step in steps], set[int]()
        while left:
            step = left.pop()
            kept.add(id(step))
            if entry := self._entries.get(id(step)):
                left.extend(entry.copies.values())
        self._entries = {key: entry for key, entry in self._entries.items() if key in kept}
        self._origins = {key: pair for key, pair in self._origins.items() if key in kept}
        self._size = len(self._entries)

    def _entry(self, step: MemoryStep) -> _Entry:
        entry, content = self._entries.get(id(step)), content_of(step)
        if entry is None or entry.step is not step or entry.content != content:
            for one in entry.copies.values() if entry else ():
                self._origins.pop(id(one), None)
            entry = self._entries[id(step)] = _Entry(step, content, messages_of(step))
        return entry


def content_of(step: MemoryStep) -> tuple[object, ...]:
    """Return the values that determine a step's messages.

    Tuples compare by identity first, so unchanged values are cheap. Each model call asks this of each step.
    """
    parts = _PARTS.get(type(step))
    if parts is None:
        kind = next((kind for kind in type(step).__mro__ if kind in _PARTS), None)
        parts = _PARTS[kind] if kind else _plan
    content: tuple[object, ...] = parts(step)
    images: Any = content[-1]
    if isinstance(images, list):
        content = (*content, *images)
    calls: Any = getattr(step, "tool_calls", None)
    return (*content, tuple(map(_call, calls))) if calls else content


def _call(call: Any) -> tuple[object, ...]:
    arguments = call.arguments
    return (call.name, call.id, tuple(arguments.items()) if isinstance(arguments, dict) else arguments)


def _plan(step: MemoryStep) -> tuple[object, ...]:
    return (getattr(step, "plan", None), None)


_text = attrgetter("text", "__class__")  # two names, so that it returns a tuple
_PARTS: dict[type, Callable[[Any], tuple[object, ...]]] = {
    ActionStep: attrgetter("model_output", "tool_calls", "observations", "error", "observations_images"),
    TaskStep: attrgetter("task", "task_images"),
    NoteStep: _text,
    SummaryStep: _text,
}
