"""What the model is shown of an agent's memory: bounded by the policy of the conversation, built once."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from smolagents.memory import TaskStep

from app.agents.grown import CallIds, Messages, Older, Weighing
from app.agents.memory import Function, Toolbox, bounded
from app.agents.own_steps import replaced_notes
from app.agents.weights import Weights, text_in
from app.policies import Summarize
from app.records import LeftOut, Weighed, Weight

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from smolagents import MultiStepAgent
    from smolagents.memory import MemoryStep
    from smolagents.models import ChatMessage

    from app.policies import Policy

    Steps = Sequence[MemoryStep]
    SumUp = Callable[[Steps, int], None]


class ShownMemory:
    """Stands for an agent's `write_memory_to_messages`."""

    def __init__(self, agent: MultiStepAgent) -> None:
        self._agent = agent
        self._weights = Weights(self._system)
        self._tools = Toolbox(self._weights, {}, Older(agent, self._weights))
        self._calls = CallIds(agent)
        self._messages = Messages(agent, self._weights)
        self.policy: Policy = ()
        self.sum_up: SumUp | None = None
        """Takes what is shown before a summary, and the tokens after which one is made; may add one to the memory."""
        self._last: tuple[Steps, Steps, int] = ((), (), 0)
        """What was shown the last time, and of what: the steps of a memory up to a place."""

    def own(self, functions: dict[str, Function]) -> None:
        """Take the agent's own policies, by their import strings."""
        self._tools = replace(self._tools, own=functions)

    def begin(self, policy: Policy) -> None:
        """Bound by this from now on; nothing was left out yet."""
        self.policy = policy
        self._last = ((), (), 0)

    def __call__(self, summary_mode: bool = False) -> list[ChatMessage]:
        if self.sum_up and not summary_mode:
            for place, rule in enumerate(self.policy):
                if isinstance(rule, Summarize):
                    self.sum_up(self._bounded(self.policy[: place + 1]), rule.after_tokens)
        shown = self._bounded(self.policy)
        self._last = (shown, self._agent.memory.steps, len(self._agent.memory.steps))
        if summary_mode:
            built = (self._weights.messages(step, summary_mode=True) for step in shown)
            return [*self._system(summary_mode=True), *chain.from_iterable(built)]
        messages = [*self._system(), *self._messages.of(shown)]
        self._weights.forget_but(shown, self._agent.memory.steps)
        return messages

    def before_next(self, *, summary_mode: bool) -> list[ChatMessage]:
        """Give what is shown before the next task, which counts as the turn that is played."""
        memory, task = self._agent.memory.steps, TaskStep("")
        memory.append(task)
        try:
            shown = tuple(self._bounded(self.policy))  # where it is the memory itself, that loses the task again
        finally:
            memory.pop()
        self._last = (shown, (*memory, task), len(memory) + 1)
        messages = self._system(summary_mode=summary_mode)
        for step in shown:
            if self._weights.origin(step) is not task:
                messages += self._weights.messages(step, summary_mode=summary_mode)
        return messages

    @property
    def call_ids(self) -> Collection[str]:
        """The ids of all calls in the memory, where a policy bounds it."""
        return self._calls.ids() if self.policy else ()

    def tokens(self, steps: Steps) -> int:
        """Give what steps weigh."""
        return sum(Weighing(self._agent, self._weights).of(steps).tokens)

    def text_of(self, step: MemoryStep) -> str:
        """Give a step as the model is shown it, without images."""
        return "\n".join(map(text_in, self._weights.messages(step)))

    def left_out(self) -> LeftOut | None:
        """Say what the last call left out; nothing where there is no policy."""
        if not self.policy:
            return None
        shown, steps, count = self._last
        memory = steps[:count]
        left, cut = self._difference(memory, shown)
        weighed, weights = self._tools.older.weighed("memory", memory), self._weights
        short = [(weights.origin(step), step) for step in cut]
        return LeftOut(
            len(left),
            len(cut),
            sum(map(weighed.characters.__getitem__, left))
            + sum(weights.characters(whole) - weights.characters(step) for whole, step in short),
            sum(map(weighed.tokens.__getitem__, left))
            + sum(weights.estimate(whole) - weights.estimate(step) for whole, step in short),
        )

    def weigh(self, policy: Policy) -> Weighed:
        """Weigh the prompt as it is without a policy, and as it is after a prune with one."""
        memory = self._agent.memory.steps
        left, cut = self._difference(memory, self._bounded(policy))
        weighed = self._tools.older.weighed("memory", memory)
        replaced, out = self._replaced(memory), set(left)
        before = [place for place, step in enumerate(memory) if id(step) not in replaced]
        system = sum(len(text_in(message)) for message in self._system())

        def weight(places: Sequence[int]) -> Weight:
            characters = system + sum(map(weighed.characters.__getitem__, places))
            tokens = weighed.base + sum(map(weighed.tokens.__getitem__, places))
            return Weight(len(places), characters, tokens, is_estimate=not weighed.is_reported)

        after = [place for place in before if place not in out]
        return Weighed(weight(before), weight(after), tuple(left), len(cut))

    def _difference(self, memory: Steps, shown: Steps) -> tuple[list[int], list[MemoryStep]]:
        """Give the places of the steps that a policy does not show, and what it shows of others that it changes."""
        known = set(map(id, memory))
        cut = [step for step in shown if id(step) not in known and self._weights.origin(step) is not step]
        known = {*map(id, shown), *(id(self._weights.origin(step)) for step in cut), *self._replaced(memory)}
        return [place for place, step in enumerate(memory) if id(step) not in known], cut

    def _replaced(self, steps: Steps) -> Collection[int]:
        return replaced_notes(self._tools.older.notes("all", steps, len(steps)))

    def _bounded(self, policy: Policy) -> Steps:
        """Give what a policy shows: not the list of the memory itself, which grows."""
        steps: Steps = self._agent.memory.steps
        if replaced := self._replaced(steps):
            steps = [step for step in steps if id(step) not in replaced]
        return bounded(steps, policy, self._tools)

    def _system(self, *, summary_mode: bool = False) -> list[ChatMessage]:
        messages: list[ChatMessage] = self._agent.memory.system_prompt.to_messages(summary_mode=summary_mode)
        return messages
