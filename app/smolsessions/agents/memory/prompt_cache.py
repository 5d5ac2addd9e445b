"""What is known of a memory that grows: found once of each step, since a long one is asked for at every model call.

Steps that are over do not change, but where a callback of the agent's author changes them: with such an agent they are
compared with what they held the last time, where that matters.
"""

from __future__ import annotations

from copy import copy
from itertools import islice, takewhile
from operator import eq, is_
from typing import TYPE_CHECKING, Any

from smolagents import CodeAgent, ToolCallingAgent

from smolsessions.agents.memory.step_types import NoteStep
from smolsessions.agents.memory.step_weights import content_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

    from smolagents import MultiStepAgent
    from smolagents.memory import MemoryStep
    from smolagents.models import ChatMessage

    from smolsessions.agents.memory.step_weights import StepCache

RECENT = 8  # steps that are looked at again, whatever was known of them


class UnchangedPrefix:
    """The steps that were looked at the last time."""

    def __init__(self, agent: MultiStepAgent, *, at_contents: bool = False) -> None:
        """`at_contents`: what is known of them is of what they hold, and not only of which they are."""
        self._memory = agent.memory
        self._only_grows = not may_change_steps(agent)
        self._compares = at_contents and not self._only_grows
        self._marks: list[tuple[object, ...]] = []
        self._steps: Sequence[MemoryStep] = ()
        self._end = 0
        self._last: MemoryStep | None = None

    def again(self, steps: Sequence[MemoryStep], end: int) -> int:
        """Give how many of the steps before `end` are those of the last time, from the first on, but for recent ones.

        From now on these are those of the last time; a list that is given here is not changed, but for the agent's
        memory.
        """
        before, count, last = self._steps, self._end, self._last
        is_growing = steps is self._memory.steps and self._only_grows
        self._steps, self._end = steps if is_growing or steps is not self._memory.steps else list(steps), end
        self._last = steps[end - 1] if end else None
        if before is steps and is_growing:
            known = count if count <= end and (not count or steps[count - 1] is last) else 0
        else:
            known = len(list(takewhile(bool, map(is_, islice(before, count), islice(steps, end)))))
        if self._compares:
            marks, self._marks = self._marks, [content_of(step) for step in islice(steps, end)]
            known = len(list(takewhile(bool, map(eq, islice(marks, known), self._marks))))
        return min(known, max(0, count - RECENT))


class RuleCache:
    """What rules make of older steps, each one alone."""

    def __init__(self, agent: MultiStepAgent) -> None:
        self._new = {at_contents: UnchangedPrefix(agent, at_contents=at_contents) for at_contents in (False, True)}
        self._made: dict[Hashable, tuple[UnchangedPrefix, list[MemoryStep], list[int]]] = {}

    def made(
        self,
        name: Hashable,
        steps: Sequence[MemoryStep],
        end: int,
        make: Callable[[MemoryStep], MemoryStep | None],
        *,
        at_contents: bool = False,
    ) -> list[Any]:
        """Give what a rule of this name makes of the steps before `end`, without those of which it makes nothing.

        The list is not to be changed, and changes with the next call.
        `at_contents`: what it makes of a step is made of what that holds.
        """
        if name not in self._made:
            self._made[name] = (copy(self._new[at_contents]), [], [0])
        looked, made, ends = self._made[name]
        known = looked.again(steps, end)
        del made[ends[known] :], ends[known + 1 :]
        for place in range(known, end):
            one = make(steps[place])
            if one is not None:
                made.append(one)
            ends.append(len(made))
        return made

    def notes(self, name: Hashable, steps: Sequence[MemoryStep], end: int) -> list[NoteStep]:
        """Give the notes before `end`, for the rule of this name."""
        return self.made((NoteStep, name), steps, end, lambda step: step if isinstance(step, NoteStep) else None)


class CallIds:
    """The ids of all calls in an agent's memory."""

    def __init__(self, agent: MultiStepAgent) -> None:
        self._agent = agent
        self._looked = UnchangedPrefix(agent)
        self._ids: set[str] = set()

    def ids(self) -> Collection[str]:
        """Give them; not to be changed."""
        steps = self._agent.memory.steps
        known = self._looked.again(steps, len(steps))
        if not known:
            self._ids = set()
        for step in islice(steps, known, None):
            self._ids.update(call.id for call in getattr(step, "tool_calls", None) or ())
        return self._ids


class StepMessages:
    """The messages of the steps that are shown, one after the other."""

    def __init__(self, agent: MultiStepAgent, weights: StepCache) -> None:
        self._weights = weights
        self._looked = UnchangedPrefix(agent, at_contents=True)
        self._steps: Sequence[MemoryStep] = ()
        self._messages: list[ChatMessage] = []
        self._ends = [0]
        self._sums = [0]

    def of(self, steps: Sequence[MemoryStep]) -> list[ChatMessage]:
        """Give them, in a list that is not to be changed."""
        known = self._looked.again(steps, len(steps))
        self._steps = steps
        del self._messages[self._ends[known] :], self._ends[known + 1 :], self._sums[known + 1 :]
        for place in range(known, len(steps)):
            self._messages += self._weights.messages(steps[place])
            self._ends.append(len(self._messages))
        return self._messages

    def estimate(self) -> int:
        """Estimate the tokens of the steps whose messages were given last."""
        for place in range(len(self._sums) - 1, len(self._ends) - 1):
            self._sums.append(self._sums[-1] + self._weights.estimate(self._steps[place]))
        return self._sums[-1]


class StepTotals:
    """What steps weigh, and what they are copies of."""

    def __init__(self, agent: MultiStepAgent, weights: StepCache) -> None:
        self._weights = weights
        self._looked = UnchangedPrefix(agent, at_contents=True)
        # Up to each place, so that the whole is at hand:
        self._estimates, self._characters, self._copies = [0], [0], [0]
        self.origins: list[int] = []
        """The `id` of the step that each one was made of; of those that are no copy, their own. Not to be changed."""

    def of(self, steps: Sequence[MemoryStep], end: int | None = None) -> StepTotals:
        """Weigh these, up to `end`."""
        end = len(steps) if end is None else end
        known = self._looked.again(steps, end)
        del self._estimates[known + 1 :], self._characters[known + 1 :], self._copies[known + 1 :], self.origins[known:]
        for step in islice(steps, known, end):
            origin = self._weights.origin(step)
            self._estimates.append(self._estimates[-1] + self._weights.estimate(step))
            self._characters.append(self._characters[-1] + self._weights.characters(step))
            self._copies.append(self._copies[-1] + (origin is not step))
            self.origins.append(id(origin))
        return self

    @property
    def copies(self) -> int:
        """How many of the steps are copies."""
        return self._copies[-1]

    def estimate(self, places: Iterable[int] | None = None) -> int:
        """Estimate the tokens of the steps at these places, or of all."""
        return _sum(self._estimates, places)

    def characters(self, places: Iterable[int] | None = None) -> int:
        """Count their characters."""
        return _sum(self._characters, places)


def _sum(up_to: Sequence[int], places: Iterable[int] | None) -> int:
    return up_to[-1] if places is None else sum(up_to[place + 1] - up_to[place] for place in places)


def may_change_steps(agent: MultiStepAgent) -> bool:
    """Tell whether the agent's author gave it what is handed its memory, and may change steps that are over."""
    if type(agent) not in {CodeAgent, ToolCallingAgent} or agent.final_answer_checks:
        return True
    callbacks = vars(agent.step_callbacks).get("_callbacks", {})
    return any(call != agent.monitor.update_metrics for calls in callbacks.values() for call in calls)
