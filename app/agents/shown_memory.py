"""What the model is shown of an agent's memory: bounded by the policy of the conversation, built once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from app.agents.grown import CallIds, Messages, Older, Totals
from app.agents.memory import Function, Toolbox, bounded
from app.agents.own_steps import replaced_notes
from app.agents.shown import messages_of
from app.agents.weights import Weights, text_in
from app.policies import OwnRule, Summarize
from app.records import LeftOut, Weighed, Weight

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from smolagents import MultiStepAgent
    from smolagents.memory import MemoryStep
    from smolagents.models import ChatMessage

    from app.policies import Policy

    SumUp = Callable[[Sequence[MemoryStep], int], None]


class ShownMemory:
    """Stands for an agent's `write_memory_to_messages`."""

    def __init__(self, agent: MultiStepAgent) -> None:
        self._agent = agent
        self._weights = Weights(self._system)
        self._tools = Toolbox(self._weights, {}, Older(agent))
        self._calls = CallIds(agent)
        self._messages = Messages(agent, self._weights)
        self._whole, self._part = Totals(agent, self._weights), Totals(agent, self._weights)
        self.policy: Policy = ()
        self.sum_up: SumUp | None = None
        """Takes what is shown before a summary, and the tokens after which one is made; may add one to the memory."""
        self._last: tuple[Sequence[MemoryStep], int] = ((), 0)

    def own(self, functions: dict[str, Function]) -> None:
        """Take the agent's own policies, by their import strings."""
        self._tools = replace(self._tools, own=functions)

    def __call__(self, summary_mode: bool = False) -> list[ChatMessage]:
        if self.sum_up and not summary_mode:
            for place, rule in enumerate(self.policy):
                if isinstance(rule, Summarize):
                    self.sum_up(self._bounded(self.policy[: place + 1]), rule.after_tokens)
        shown = self._bounded(self.policy)
        self._last = (shown, len(self._agent.memory.steps))
        if summary_mode:
            system = self._agent.memory.system_prompt.to_messages(summary_mode=True)
            return [*system, *(message for step in shown for message in messages_of(step, summary_mode=True))]
        messages = [*self._system(), *self._messages.of(shown)]
        self._weights.forget_but(self._agent.memory.steps)
        return messages

    @property
    def call_ids(self) -> Collection[str]:
        """The ids of all calls in the memory, where a policy bounds it."""
        return self._calls.ids() if self.policy else ()

    def tokens(self, steps: Sequence[MemoryStep]) -> int:
        """Give what steps weigh."""
        return sum(self._weights.of(steps))

    def text_of(self, step: MemoryStep) -> str:
        """Give a step as the model is shown it, without images."""
        return "\n".join(text_in(message) for message in self._weights.messages(step))

    def left_out(self) -> LeftOut | None:
        """Say what the last call left out; nothing where there is no policy."""
        if not self.policy:
            return None
        shown, count = self._last
        steps = self._agent.memory.steps
        if shown is steps:
            return LeftOut(0, 0, 0, 0)
        before, after = self._whole.of(steps, count), self._part.of(shown, len(shown))
        left = count - len(shown)
        if any(isinstance(rule, OwnRule) for rule in self.policy):  # which may show steps of its own making
            left = len(self._difference(steps[:count], shown)[0])
        return LeftOut(left, after[2], before[0] - after[0], before[1] - after[1])

    def weigh(self, policy: Policy) -> Weighed:
        """Weigh the prompt as it is without a policy, and as it is after a prune with one."""
        memory = self._agent.memory.steps
        left, shortened = self._difference(memory, self._bounded(policy))
        out = set(left)
        kept = [step for place, step in enumerate(memory) if place not in out]
        return Weighed(self._prompt(memory), self._prompt(kept), tuple(left), shortened)

    def _difference(self, memory: Sequence[MemoryStep], shown: Sequence[MemoryStep]) -> tuple[list[int], int]:
        """Give the places of the steps that are not shown, and how many are shown shortened."""
        known = {id(self._weights.origin(step)) for step in shown}
        left = [place for place, step in enumerate(memory) if id(step) not in known]
        return left, sum(self._weights.origin(step) is not step for step in shown)

    def _prompt(self, steps: Sequence[MemoryStep]) -> Weight:
        weight = self._weight(steps)
        system = sum(len(text_in(message)) for message in self._system())
        return Weight(
            weight.steps,
            weight.characters + system,
            weight.tokens + self._weights.base(steps),
            is_estimate=not self._weights.is_reported(steps),
        )

    def _weight(self, steps: Sequence[MemoryStep]) -> Weight:
        return Weight(len(steps), sum(map(self._weights.characters, steps)), self.tokens(steps))

    def _bounded(self, policy: Policy) -> Sequence[MemoryStep]:
        steps: Sequence[MemoryStep] = self._agent.memory.steps
        replaced = replaced_notes(self._tools.older.notes("all", steps, len(steps)))
        if replaced:
            steps = [step for step in steps if id(step) not in replaced]
        return bounded(steps, policy, self._tools)

    def _system(self) -> list[ChatMessage]:
        messages: list[ChatMessage] = self._agent.memory.system_prompt.to_messages()
        return messages
