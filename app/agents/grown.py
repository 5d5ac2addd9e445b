"""What is known of a memory that grows: found once of each step, since a long one is asked for at every model call.

Steps that are over do not change, but where a callback of the agent's author changes them: with such an agent they are
compared with what they held the last time, where that matters.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from itertools import islice, takewhile
from operator import eq, is_
from typing import TYPE_CHECKING, Any

from smolagents import CodeAgent, ToolCallingAgent
from smolagents.memory import ActionStep, TaskStep
from smolagents.utils import AgentMaxStepsError

from app.agents.own_steps import NoteStep
from app.agents.weights import mark_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Sequence

    from smolagents import MultiStepAgent
    from smolagents.memory import MemoryStep
    from smolagents.models import ChatMessage

    from app.agents.weights import Weights

NEAR = 2  # how much more, or less, than the estimate a reported count may be to be one of these steps alone,
NEARER = 1.3  # and where other counts have corrected the estimate
LEAST_SYSTEM = 0.8  # of the system prompt's estimate: what is before the steps is not much less
RECENT = 8  # steps that are looked at again, whatever was known of them


class Looked:
    """The steps that were looked at the last time."""

    def __init__(self, agent: MultiStepAgent, *, at_contents: bool = False) -> None:
        """`at_contents`: what is known of them is of what they hold, and not only of which they are."""
        self._memory = agent.memory
        self._compares = at_contents and _may_change_steps(agent)
        self._marks: list[tuple[object, ...]] = []
        self._steps: Sequence[MemoryStep] = ()
        self._end = 0
        self._last: MemoryStep | None = None

    def again(self, steps: Sequence[MemoryStep], end: int) -> int:
        """Give how many of the steps before `end` are those of the last time, from the first on, but for recent ones.

        From now on these are those of the last time; a list that is given here is not changed, but for the agent's
        memory, which only grows.
        """
        before, count, last = self._steps, self._end, self._last
        self._steps, self._end = steps, end
        self._last = steps[end - 1] if end else None
        if before is steps is self._memory.steps:
            known = count if count <= end and (not count or steps[count - 1] is last) else 0
        else:
            known = len(list(takewhile(bool, map(is_, islice(before, count), islice(steps, end)))))
        if self._compares:
            marks, self._marks = self._marks, [mark_of(step) for step in islice(steps, end)]
            known = len(list(takewhile(bool, map(eq, islice(marks, known), self._marks))))
        return min(known, max(0, count - RECENT))


class Older:
    """What rules make of older steps, each one alone."""

    def __init__(self, agent: MultiStepAgent, weights: Weights) -> None:
        self._agent = agent
        self._weights = weights
        self._new = {at_contents: Looked(agent, at_contents=at_contents) for at_contents in (False, True)}
        self._made: dict[Hashable, tuple[Looked, list[MemoryStep], list[int]]] = {}
        self._weighings: dict[Hashable, Weighing] = {}

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
        return made[:]

    def weighed(self, name: Hashable, steps: Sequence[MemoryStep]) -> Weighing:
        """Give what the steps weigh, for the rule of this name."""
        if name not in self._weighings:
            self._weighings[name] = Weighing(self._agent, self._weights)
        return self._weighings[name].of(steps)

    def notes(self, name: Hashable, steps: Sequence[MemoryStep], end: int) -> list[NoteStep]:
        """Give the notes before `end`, for the rule of this name."""
        return self.made((NoteStep, name), steps, end, lambda step: step if isinstance(step, NoteStep) else None)


class CallIds:
    """The ids of all calls in an agent's memory."""

    def __init__(self, agent: MultiStepAgent) -> None:
        self._agent = agent
        self._looked = Looked(agent)
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


class Messages:
    """The messages of the steps that are shown, one after the other."""

    def __init__(self, agent: MultiStepAgent, weights: Weights) -> None:
        self._weights = weights
        self._looked = Looked(agent, at_contents=True)
        self._messages: list[ChatMessage] = []
        self._ends = [0]

    def of(self, steps: Sequence[MemoryStep]) -> list[ChatMessage]:
        """Give them in a list of their own."""
        known = self._looked.again(steps, len(steps))
        del self._messages[self._ends[known] :], self._ends[known + 1 :]
        for place in range(known, len(steps)):
            self._messages += self._weights.messages(steps[place])
            self._ends.append(len(self._messages))
        return self._messages[:]


@dataclass(frozen=True, slots=True)
class _Call:
    """The fold of the steps before a place, up to the last model call of those that was reported."""

    place: int = 0
    count: int = 0
    """The tokens of that call's prompt."""
    weight: int = 0
    """Those of the steps before it."""
    reported: int = 0
    """How many of these are as reported."""
    estimated: int = 0
    """What those were estimated at."""

    @property
    def factor(self) -> float:
        """How much more the model counts than is estimated, as far as it told."""
        return self.reported / self.estimated if self.estimated else 1.0


class Weighing:
    """What steps weigh: from one call of the model to the next as it reports them, else estimated.

    By how much the prompt grew from one action's call to the next is shared out by the estimates. Where it did not grow
    by these steps alone (others were left out for them), and after the last call, the estimate is corrected by what the
    model has told of others.
    """

    def __init__(self, agent: MultiStepAgent, weights: Weights) -> None:
        self._weights = weights
        self._looked = Looked(agent, at_contents=True)
        self._calls = [_Call()]
        self._told: list[tuple[int, int]] = []
        """Places of turns' first calls, and what stands before the steps by their count."""
        self.tokens: list[int] = []
        """Of each step; not to be changed."""
        self.characters: list[int] = []

    def of(self, steps: Sequence[MemoryStep]) -> Weighing:
        """Weigh these steps, and give what was found."""
        known = self._looked.again(steps, len(steps))
        while self._calls and self._calls[-1].place >= known:  # a call's own step must be known, too
            self._calls.pop()
        self._calls = self._calls or [_Call()]
        while self._told and self._told[-1][0] >= known:
            self._told.pop()
        call = self._calls[-1]
        del self.tokens[call.place :], self.characters[call.place :]
        for place in range(call.place, len(steps)):
            step = steps[place]
            count = _input_of(step)
            if count and place > call.place:
                call = self._reported(call, steps, place, count)
                self._calls.append(call)
            elif count and not place:
                call = self._calls[0] = _Call(count=count)
            self.tokens.append(round(self._weights.estimate(step) * call.factor))
            self.characters.append(self._weights.characters(step))
        return self

    @property
    def base(self) -> int:
        """The tokens of what stands before the steps: as reported with a turn's first call, else estimated.

        That is the system prompt and the descriptions of tools, which only the model's provider counts. What a call was
        shown that is not among these steps makes it seem more, so the least counts.
        """
        return min((count for _, count in self._told), default=self._weights.system)

    @property
    def is_reported(self) -> bool:
        """Most of the tokens are as the model reports them."""
        return self._calls[-1].reported > sum(self.tokens) / 2

    def _reported(self, before: _Call, steps: Sequence[MemoryStep], place: int, count: int) -> _Call:
        tokens = self.tokens[before.place : place]
        between, grown = sum(tokens), count - before.count
        reported, estimated = before.reported, before.estimated
        near = NEARER if before.estimated else NEAR
        if before.count and between / near <= grown <= between * near:
            shares = [each * grown // between for each in tokens]
            shares[0] += grown - sum(shares)
            self.tokens[before.place : place] = shares
            between, reported = grown, reported + grown
            estimated += sum(map(self._weights.estimate, steps[before.place : place]))
        weight = before.weight + between
        if isinstance(steps[place - 1], TaskStep) and count - weight > self._weights.system * LEAST_SYSTEM:
            self._told.append((place, count - weight))
        return _Call(place, count, weight, reported, estimated)


def _input_of(step: MemoryStep) -> int:
    """Give the tokens of the prompt of an action's model call, as reported; 0 where they were not.

    An answer that was forced at the end of the steps came of a prompt of another kind.
    """
    if not isinstance(step, ActionStep) or isinstance(step.error, AgentMaxStepsError) or not step.token_usage:
        return 0
    return int(step.token_usage.input_tokens)


def _may_change_steps(agent: MultiStepAgent) -> bool:
    """Tell whether the agent's author gave it what is handed its memory, and may change steps that are over."""
    if type(agent) not in {CodeAgent, ToolCallingAgent} or agent.final_answer_checks:
        return True
    callbacks = vars(agent.step_callbacks).get("_callbacks", {})
    return any(call != agent.monitor.update_metrics for calls in callbacks.values() for call in calls)
