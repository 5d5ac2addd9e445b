"""What finished steps are as messages, each built once, and what they weigh."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from smolagents.memory import ActionStep, TaskStep

from app.agents.own_steps import NoteStep, SummaryStep
from app.agents.shown import messages_of
from app.agents.tokens import estimate_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from smolagents.memory import MemoryStep
    from smolagents.models import ChatMessage

ROOM = 100  # steps that may be kept although no memory holds them any more
NEAR = 2  # how much more, or less, than the estimate a reported count may be to be one of this step alone


@dataclass(slots=True)
class _Built:
    step: MemoryStep
    mark: tuple[object, ...]
    messages: list[ChatMessage]
    tokens: int | None = None
    characters: int | None = None
    copies: dict[Hashable, MemoryStep] = field(default_factory=dict)


class Weights:
    """Keeps what is made of steps. A step that a callback changed since is built again.

    The messages are shared between model calls: a model must not change those that it is given (smolagents' own copy).
    """

    def __init__(self, system: Callable[[], list[ChatMessage]]) -> None:
        """`system` gives the system prompt's messages."""
        self._system = system
        self._built: dict[int, _Built] = {}
        self._origins: dict[int, MemoryStep] = {}  # of the copies, which `_built` keeps alive
        self._known_system: tuple[str, int] = ("", 0)
        self.changes = 0
        """Counts the steps that were found changed."""

    def messages(self, step: MemoryStep) -> list[ChatMessage]:
        """Give a step's messages."""
        return self._at(step).messages

    def copy_of(self, step: MemoryStep, name: Hashable, make: Callable[[], MemoryStep]) -> MemoryStep:
        """Give what was made of a step once, under a name."""
        built = self._at(step)
        made = built.copies.get(name)
        if made is None:
            made = built.copies[name] = make()
            self._origins[id(made)] = self.origin(step)
        return made

    def origin(self, step: MemoryStep) -> MemoryStep:
        """Give the step that this one is a copy of, or itself."""
        return self._origins.get(id(step), step)

    def forget_copy(self, step: MemoryStep, name: Hashable) -> None:
        """Make a new one the next time."""
        self._origins.pop(id(self._at(step).copies.pop(name, None)), None)

    def base(self, steps: Sequence[MemoryStep]) -> int:
        """Give the tokens of what stands before the steps: as reported with the first call of all, else estimated.

        That is the system prompt and the descriptions of tools, which only the model's provider counts.
        """
        if len(steps) > 1 and isinstance(steps[0], TaskStep) and isinstance(steps[1], ActionStep):
            usage = steps[1].token_usage
            reported = int(usage.input_tokens) - self._estimate(steps[0]) if usage else 0
            if reported > self.system / NEAR:
                return reported
        return self.system

    @property
    def system(self) -> int:
        """The tokens of the system prompt, estimated."""
        messages = self._system()
        text = str(messages[0].content) if messages else ""
        if text != self._known_system[0]:
            self._known_system = (text, estimate_messages(messages))
        return self._known_system[1]

    def of(self, steps: Sequence[MemoryStep]) -> list[int]:
        """Give each step's tokens: reported where two calls of the model enclose the step, else estimated."""
        return [self.one(step, following) for step, following in zip_longest(steps, steps[1:])]

    def one(self, step: MemoryStep, following: MemoryStep | None) -> int:
        """Give a step's tokens, where it is followed by this one."""
        near = self._estimate(step)
        reported = _between(step, following) if following else 0
        return reported if near / NEAR <= reported <= near * NEAR else near

    def characters(self, step: MemoryStep) -> int:
        """Give the length of a step's texts."""
        built = self._at(step)
        if built.characters is None:
            built.characters = sum(len(text_in(message)) for message in built.messages)
        return built.characters

    def is_reported(self, steps: Sequence[MemoryStep]) -> bool:
        """Tell whether the model reports tokens."""
        return any(_between(step, following) for step, following in pairwise(steps))

    def forget_but(self, steps: Sequence[MemoryStep]) -> None:
        """Let go of what no memory holds any more, now and then."""
        if len(self._built) > NEAR * len(steps) + ROOM:
            kept = {id(step) for step in steps}
            kept |= {copy for copy, step in self._origins.items() if id(step) in kept}
            self._built = {key: built for key, built in self._built.items() if key in kept}
            self._origins = {key: step for key, step in self._origins.items() if key in kept}

    def _estimate(self, step: MemoryStep) -> int:
        built = self._at(step)
        if built.tokens is None:
            built.tokens = estimate_messages(built.messages)
        return built.tokens

    def _at(self, step: MemoryStep) -> _Built:
        built, mark = self._built.get(id(step)), mark_of(step)
        if built is None or built.step is not step or built.mark != mark:
            if built:
                self.changes += 1
                for one in built.copies.values():
                    self._origins.pop(id(one), None)
            built = self._built[id(step)] = _Built(step, mark, messages_of(step))
        return built


def _between(step: MemoryStep, following: MemoryStep) -> int:
    """Give by how much the prompt grew from one action's model call to the next one's, where the model tells."""
    if not isinstance(step, ActionStep) or not isinstance(following, ActionStep):
        return 0
    if not step.token_usage or not following.token_usage:
        return 0
    return int(following.token_usage.input_tokens) - int(step.token_usage.input_tokens)


def mark_of(step: MemoryStep) -> tuple[object, ...]:
    """Give what a step's messages are made of; compared by identity first, so equal ones cost nothing.

    It is asked of each step that is shown at each model call.
    """
    parts = _PARTS.get(type(step))
    if parts is None:
        kind = next((kind for kind in type(step).__mro__ if kind in _PARTS), None)
        parts = _PARTS[kind] if kind else _plan
    mark: tuple[object, ...] = parts(step)
    images: Any = mark[-1]
    return (*mark, len(images)) if isinstance(images, list) else mark


def text_in(message: ChatMessage) -> str:
    """Give a message's texts as one."""
    content = message.content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return content or ""


def _plan(step: MemoryStep) -> tuple[object, ...]:
    return (getattr(step, "plan", None), None)


_text = attrgetter("text", "__class__")  # of two, so that it gives a tuple
_PARTS: dict[type, Callable[[Any], tuple[object, ...]]] = {
    ActionStep: attrgetter("model_output", "tool_calls", "observations", "error", "observations_images"),
    TaskStep: attrgetter("task", "task_images"),
    NoteStep: _text,
    SummaryStep: _text,
}
