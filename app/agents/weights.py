"""What finished steps are as messages, each built once, and what they weigh."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from smolagents.memory import ActionStep, TaskStep
from smolagents.utils import AgentMaxStepsError

from app.agents.own_steps import NoteStep, SummaryStep
from app.agents.shown import messages_of
from app.agents.tokens import estimate_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from smolagents.memory import MemoryStep
    from smolagents.models import ChatMessage

ROOM = 100  # steps that may be kept although no memory holds them any more
NEAR = 2  # how much more, or less, than the estimate a reported count may be to be one of these steps alone
LEAST_SYSTEM = 0.8  # of the system prompt's estimate: what is before the steps is not much less


@dataclass(slots=True)
class _Built:
    step: MemoryStep
    mark: tuple[object, ...]
    messages: list[ChatMessage]
    summary: list[ChatMessage] | None = None
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
        self._origins: dict[int, tuple[MemoryStep, MemoryStep]] = {}
        """Copies, and what they are copies of, by the copy's id."""
        self._kept = 0
        self._known_system: tuple[str, int] = ("", 0)

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
        mark = mark_of(copied)
        if mark == built.mark:
            return step
        del built.copies[name]
        outdated = copied if known and mark_of(known) == mark else known
        if outdated:
            self._origins.pop(id(outdated), None)
        if outdated is copied and known:
            return known
        built.copies[name, "changed"] = copied
        return copied

    def origin(self, step: MemoryStep) -> MemoryStep:
        """Give the step of the memory that this one is a copy of, or itself."""
        while found := self._origins.get(id(step)):
            step = found[1]
        return step

    def base(self, steps: Sequence[MemoryStep], tokens: Sequence[int]) -> int:
        """Give the tokens of what stands before the steps: as reported with a turn's first call, else estimated.

        That is the system prompt and the descriptions of tools, which only the model's provider counts. What a call was
        shown that is not in the memory any more makes it seem more.
        """
        before, told = 0, []
        for (step, following), weight in zip(pairwise(steps), tokens, strict=False):
            before += weight
            if isinstance(step, TaskStep) and (reported := _input_of(following)):
                told.append(reported - before)
        return min((count for count in told if count > self.system * LEAST_SYSTEM), default=self.system)

    @property
    def system(self) -> int:
        """The tokens of the system prompt, estimated."""
        messages = self._system()
        text = str(messages[0].content) if messages else ""
        if text != self._known_system[0]:
            self._known_system = (text, estimate_messages(messages))
        return self._known_system[1]

    def of(self, steps: Sequence[MemoryStep]) -> list[int]:
        """Give each step's tokens: from one call of the model to the next as it reports them, else estimated."""
        return self._weighed(steps)[0]

    def is_reported(self, steps: Sequence[MemoryStep]) -> bool:
        """Tell whether most of the tokens are as the model reports them."""
        tokens, reported = self._weighed(steps)
        return reported > sum(tokens) / 2

    def forget_but(self, *kept_steps: Sequence[MemoryStep]) -> None:
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

    def _weighed(self, steps: Sequence[MemoryStep]) -> tuple[list[int], int]:
        """Give each step's tokens, and how many of them are as reported.

        By how much the prompt grew from one action's call to the next is shared out by the estimates.
        """
        tokens = [self.estimate(step) for step in steps]
        reported = start = last = 0
        for place, step in enumerate(steps):
            count = _input_of(step)
            if not count:
                continue
            between, grown = sum(tokens[start:place]), count - last
            if last and between / NEAR <= grown <= between * NEAR:
                shares = [each * grown // between for each in tokens[start:place]]
                shares[0] += grown - sum(shares)
                tokens[start:place] = shares
                reported += grown
            start, last = place, count
        return tokens, reported

    def _at(self, step: MemoryStep) -> _Built:
        built, mark = self._built.get(id(step)), mark_of(step)
        if built is None or built.step is not step or built.mark != mark:
            built = self._built[id(step)] = _Built(step, mark, messages_of(step))
        return built


def text_in(message: ChatMessage) -> str:
    """Give a message's texts."""
    content = message.content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return content or ""


def _input_of(step: MemoryStep) -> int:
    """Give the tokens of the prompt of an action's model call, as reported; 0 where they were not.

    An answer that was forced at the end of the steps came of a prompt of another kind.
    """
    if not isinstance(step, ActionStep) or isinstance(step.error, AgentMaxStepsError) or not step.token_usage:
        return 0
    return int(step.token_usage.input_tokens)


def mark_of(step: MemoryStep) -> tuple[object, ...]:
    """Give what a step's messages are made of; compared by identity first, so equal ones cost nothing."""
    if isinstance(step, ActionStep):
        images = step.observations_images
        return (step.model_output, step.tool_calls, step.observations, step.error, images, len(images or ()))
    if isinstance(step, TaskStep):
        return (step.task, step.task_images, len(step.task_images or ()))
    if isinstance(step, NoteStep | SummaryStep):
        return (step.text,)
    plan: Any = getattr(step, "plan", None)
    return (plan,)
