"""Incremental views of a growing memory: each step is examined once.

A finished step changes only if a callback of the agent's author changes it. With such callbacks, the contents of
steps are compared with those of the last call.
"""

from __future__ import annotations

from copy import copy
from itertools import islice, takewhile
from operator import eq, is_
from typing import TYPE_CHECKING, Any

from smolagents import CodeAgent, ToolCallingAgent

from smolsessions.agents.memory.step_cache import content_of
from smolsessions.agents.memory.step_types import NoteStep

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

    from smolagents import MultiStepAgent
    from smolagents.memory import MemoryStep
    from smolagents.models import ChatMessage

    from smolsessions.agents.memory.step_cache import StepCache

RECENT = 8  # newest known steps that are examined again at each call


class UnchangedPrefix:
    """Number of leading steps that stayed the same since the last call."""

    def __init__(self, agent: MultiStepAgent, *, compare_contents: bool = False) -> None:
        self._memory = agent.memory
        self._only_grows = not may_change_steps(agent)
        self._compares = compare_contents and not self._only_grows
        self._contents: list[tuple[object, ...]] = []
        self._steps: Sequence[MemoryStep] = ()
        self._end = 0
        self._last: MemoryStep | None = None

    def advance(self, steps: Sequence[MemoryStep], end: int) -> int:
        """Return how many of the first `end` steps are those of the last call, except the recent ones.

        The caller must not change the list later, unless it is the agent's memory.
        """
        before, count, last = self._steps, self._end, self._last
        is_memory = steps is self._memory.steps
        self._steps, self._end = list(steps) if is_memory and not self._only_grows else steps, end
        self._last = steps[end - 1] if end else None
        if before is steps and is_memory and self._only_grows:
            known = count if count <= end and (not count or steps[count - 1] is last) else 0
        else:
            known = _common_length(is_, islice(before, count), islice(steps, end))
        if self._compares:
            contents, self._contents = self._contents, [content_of(step) for step in islice(steps, end)]
            known = _common_length(eq, islice(contents, known), self._contents)
        return min(known, max(0, count - RECENT))


class RuleCache:
    """Results of policy rules that treat each step alone."""

    def __init__(self, agent: MultiStepAgent) -> None:
        self._prefixes = {compares: UnchangedPrefix(agent, compare_contents=compares) for compares in (False, True)}
        self._results: dict[Hashable, tuple[UnchangedPrefix, list[MemoryStep], list[int]]] = {}

    def apply(
        self,
        name: Hashable,
        steps: Sequence[MemoryStep],
        end: int,
        rule: Callable[[MemoryStep], MemoryStep | None],
        *,
        compare_contents: bool = False,
    ) -> list[Any]:
        """Return the results of a rule for the steps before `end`, without those that are None.

        The next call changes the list. `compare_contents` is for a rule whose result depends on a step's contents.
        """
        if name not in self._results:
            self._results[name] = (copy(self._prefixes[compare_contents]), [], [0])
        prefix, results, ends = self._results[name]
        known = prefix.advance(steps, end)
        del results[ends[known] :], ends[known + 1 :]
        for place in range(known, end):  # islice would step over the known ones
            result = rule(steps[place])
            if result is not None:
                results.append(result)
            ends.append(len(results))
        return results

    def notes(self, name: Hashable, steps: Sequence[MemoryStep], end: int) -> list[NoteStep]:
        """Return the notes before `end`, for the rule of this name."""
        return self.apply((NoteStep, name), steps, end, lambda step: step if isinstance(step, NoteStep) else None)


class CallIds:
    """Ids of all calls in an agent's memory."""

    def __init__(self, agent: MultiStepAgent) -> None:
        self._agent = agent
        self._prefix = UnchangedPrefix(agent)
        self._ids: set[str] = set()

    def ids(self) -> Collection[str]:
        steps = self._agent.memory.steps
        known = self._prefix.advance(steps, len(steps))
        if not known:
            self._ids = set()
        for step in islice(steps, known, None):
            self._ids.update(call.id for call in getattr(step, "tool_calls", None) or ())
        return self._ids


class StepMessages:
    """Concatenated messages of a list of steps."""

    def __init__(self, agent: MultiStepAgent, cache: StepCache) -> None:
        self._cache = cache
        self._prefix = UnchangedPrefix(agent, compare_contents=True)
        self._messages: list[ChatMessage] = []
        self._ends = [0]

    def of(self, steps: Sequence[MemoryStep]) -> list[ChatMessage]:
        """Return the messages. The next call changes the list."""
        known = self._prefix.advance(steps, len(steps))
        del self._messages[self._ends[known] :], self._ends[known + 1 :]
        for place in range(known, len(steps)):
            self._messages += self._cache.messages(steps[place])
            self._ends.append(len(self._messages))
        return self._messages


class StepTotals:
    """Running totals over a list of steps: tokens, characters and copies, with the origin of each step."""

    def __init__(self, agent: MultiStepAgent, cache: StepCache) -> None:
        self._cache = cache
        self._prefix = UnchangedPrefix(agent, compare_contents=True)
        self._estimates, self._characters, self._copies = [0], [0], [0]
        self.origins: list[int] = []
        """The `id` of each step's original, or of the step itself if it is no copy."""

    def of(self, steps: Sequence[MemoryStep], end: int | None = None) -> StepTotals:
        """Move to these steps, up to `end`."""
        end = len(steps) if end is None else end
        known = self._prefix.advance(steps, end)
        del self._estimates[known + 1 :], self._characters[known + 1 :], self._copies[known + 1 :], self.origins[known:]
        for place in range(known, end):
            step = steps[place]
            origin = self._cache.origin(step)
            self._estimates.append(self._estimates[-1] + self._cache.estimate(step))
            self._characters.append(self._characters[-1] + self._cache.characters(step))
            self._copies.append(self._copies[-1] + (origin is not step))
            self.origins.append(id(origin))
        return self

    @property
    def copies(self) -> int:
        return self._copies[-1]

    def estimate(self, places: Iterable[int] | None = None) -> int:
        """Return the estimated tokens of the steps at these places, or of all."""
        return _sum(self._estimates, places)

    def characters(self, places: Iterable[int] | None = None) -> int:
        return _sum(self._characters, places)


def may_change_steps(agent: MultiStepAgent) -> bool:
    """True if the author's code can access the memory, and so may change finished steps."""
    if type(agent) not in {CodeAgent, ToolCallingAgent} or agent.final_answer_checks:
        return True
    callbacks = vars(agent.step_callbacks).get("_callbacks", {})
    return any(call != agent.monitor.update_metrics for calls in callbacks.values() for call in calls)


def _common_length(same: Callable[[Any, Any], bool], some: Iterable[Any], others: Iterable[Any]) -> int:
    return len(list(takewhile(bool, map(same, some, others))))


def _sum(totals: Sequence[int], places: Iterable[int] | None) -> int:
    return totals[-1] if places is None else sum(totals[place + 1] - totals[place] for place in places)
