"""What finished steps are as messages, each built once, and what they weigh."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from smolagents.memory import ActionStep, TaskStep

from smolsessions.agents.memory.step_messages import messages_of
from smolsessions.agents.memory.step_types import NoteStep, SummaryStep
from smolsessions.agents.memory.tokens import estimate_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from smolagents.memory import MemoryStep
    from smolagents.models import ChatMessage

ROOM = 100  # steps that may be kept although no memory holds them any more
NEAR = 2  # times as many as were kept the last time


@dataclass(slots=True)
class _Built:
    step: MemoryStep
    mark: tuple[object, ...]
    messages: list[ChatMessage]
    summary: list[ChatMessage] | None = None
    tokens: int | None = None
    characters: int | None = None
    copies: dict[Hashable, MemoryStep] = field(default_factory=dict)


class StepCache:
    """Keeps what is made of steps. A step that a callback changed since is built again.

    The messages are shared between model calls: a model must not change those that it is given (smolagents' own copy).
    """

    def __init__(self) -> None:
        self._built: dict[int, _Built] = {}
        self._origins: dict[int, tuple[MemoryStep, MemoryStep]] = {}
        """Copies, and what they are copies of, by the copy's id."""
        self._kept = 0

    def messages(self, step: MemoryStep, *, summary_mode: bool = False) -> list[ChatMessage]:
        """Give a step's messages."""
        built = self._at(step)
        if not summary_mode:
            return built.messages
        if built.summary is None:
            built.summary = messages_of(step, summary_mode=True)
        return built.summary

    def characters(self, step: MemoryStep) -> int:
        """Count the characters of a step's texts."""
        built = self._at(step)
        if built.characters is None:
            built.characters = sum(len(text_in(message)) for message in built.messages)
        return built.characters

    def estimate(self, step: MemoryStep) -> int:
        """Estimate the tokens of a step."""
        built = self._at(step)
        if built.tokens is None:
            built.tokens = estimate_messages(built.messages)
        return built.tokens

    def copy_of(self, step: MemoryStep, name: Hashable, make: Callable[[], MemoryStep]) -> MemoryStep:
        """Give what was made of a step once, under a name."""
        built = self._at(step)
        made = built.copies.get(name)
        if made is None:
            made = built.copies[name] = make()
            self._origins[id(made)] = made, step
        return made

    def changed(self, step: MemoryStep, name: Hashable) -> MemoryStep:
        """Give what somebody made of the copy of this name: the step itself where it was left as it was.

        One that was changed is not given again by `copy_of`; changed as it was before, it is the same one as then.
        """
        built = self._at(step)
        copied, known = built.copies[name], built.copies.get((name, "changed"))
        mark = content_of(copied)
        if mark == built.mark:
            return step
        del built.copies[name]
        outdated = copied if known and content_of(known) == mark else known
        if outdated:
            self._origins.pop(id(outdated), None)
        if outdated is copied and known:
            return known
        built.copies[name, "changed"] = copied
        return copied

    def note_origin(self, made: MemoryStep, step: MemoryStep) -> None:
        """Remember what a step was made of that somebody else made."""
        self._origins[id(made)] = made, step

    def origin(self, step: MemoryStep) -> MemoryStep:
        """Give the step of the memory that this one is a copy of, or itself."""
        while found := self._origins.get(id(step)):
            step = found[1]
        return step

    def evict(self, *kept_steps: Sequence[MemoryStep]) -> None:
        """Let go of what no memory holds any more, now and then."""
        if len(self._built) <= NEAR * self._kept + ROOM:
            return
        left, kept = [step for steps in kept_steps for step in steps], set[int]()
        while left:
            step = left.pop()
            kept.add(id(step))
            if built := self._built.get(id(step)):
                left.extend(built.copies.values())
        self._built = {key: built for key, built in self._built.items() if key in kept}
        self._origins = {key: pair for key, pair in self._origins.items() if key in kept}
        self._kept = len(self._built)

    def _at(self, step: MemoryStep) -> _Built:
        built, mark = self._built.get(id(step)), content_of(step)
        if built is None or built.step is not step or built.mark != mark:
            for one in built.copies.values() if built else ():
                self._origins.pop(id(one), None)
            built = self._built[id(step)] = _Built(step, mark, messages_of(step))
        return built


def text_in(message: ChatMessage) -> str:
    """Give a message's texts."""
    content = message.content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return content or ""


def content_of(step: MemoryStep) -> tuple[object, ...]:
    """Give what a step's messages are made of; compared by identity first, so equal ones cost nothing.

    It is asked of each step that is shown at each model call.
    """
    parts = _PARTS.get(type(step))
    if parts is None:
        kind = next((kind for kind in type(step).__mro__ if kind in _PARTS), None)
        parts = _PARTS[kind] if kind else _plan
    mark: tuple[object, ...] = parts(step)
    images: Any = mark[-1]
    if isinstance(images, list):
        mark = (*mark, *images)
    calls: Any = getattr(step, "tool_calls", None)
    return (*mark, tuple(map(_call, calls))) if calls else mark


def _call(call: Any) -> tuple[object, ...]:
    arguments = call.arguments
    return (call.name, call.id, tuple(arguments.items()) if isinstance(arguments, dict) else arguments)


def _plan(step: MemoryStep) -> tuple[object, ...]:
    return (getattr(step, "plan", None), None)


_text = attrgetter("text", "__class__")  # of two, so that it gives a tuple
_PARTS: dict[type, Callable[[Any], tuple[object, ...]]] = {
    ActionStep: attrgetter("model_output", "tool_calls", "observations", "error", "observations_images"),
    TaskStep: attrgetter("task", "task_images"),
    NoteStep: _text,
    SummaryStep: _text,
}
