"""What the model is shown of an agent's memory: bounded by the policy of the conversation, built once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smolagents.memory import TaskStep

from app.agents.memory import Function, Toolbox, bounded
from app.agents.own_steps import without_replaced
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
        self._tools = Toolbox(self._weights, {})
        self.policy: Policy = ()
        self.sum_up: SumUp | None = None
        """Takes what is shown before a summary, and the tokens after which one is made; may add one to the memory."""
        self._last: tuple[Steps, Steps] = ((), ())

    def own(self, functions: dict[str, Function]) -> None:
        """Take the agent's own policies, by their import strings."""
        self._tools = Toolbox(self._weights, functions)

    def __call__(self, summary_mode: bool = False) -> list[ChatMessage]:
        if self.sum_up and not summary_mode:
            for place, rule in enumerate(self.policy):
                if isinstance(rule, Summarize):
                    self.sum_up(self._bounded(self.policy[: place + 1]), rule.after_tokens)
        shown = self._bounded(self.policy)
        self._last = (shown, tuple(self._agent.memory.steps))
        messages = self._system(summary_mode=summary_mode)
        for step in shown:
            messages.extend(self._weights.messages(step, summary_mode=summary_mode))
        self._weights.forget_but(shown, self._agent.memory.steps)
        return messages

    def before_next(self, *, summary_mode: bool) -> list[ChatMessage]:
        """Give what is shown before the next task, which counts as the turn that is played."""
        memory, task = self._agent.memory.steps, TaskStep("")
        memory.append(task)
        try:
            shown = self._bounded(self.policy)
        finally:
            memory.pop()
        self._last = (shown, (*memory, task))
        before = [step for step in shown if self._weights.origin(step) is not task]
        messages = self._system(summary_mode=summary_mode)
        return messages + [
            message for step in before for message in self._weights.messages(step, summary_mode=summary_mode)
        ]

    @property
    def call_ids(self) -> Collection[str]:
        """The ids of all calls in the memory, where a policy bounds it."""
        if not self.policy:
            return ()
        steps: list[Any] = self._agent.memory.steps
        return {call.id for step in steps for call in getattr(step, "tool_calls", None) or ()}

    def tokens(self, steps: Steps) -> int:
        """Give what steps weigh."""
        return sum(self._weights.of(steps))

    def text_of(self, step: MemoryStep) -> str:
        """Give a step as the model is shown it, without images."""
        return "\n".join(map(text_in, self._weights.messages(step)))

    def left_out(self) -> LeftOut | None:
        """Say what the last call left out; nothing where there is no policy."""
        if not self.policy:
            return None
        shown, memory = self._last
        left, cut = self._difference(memory, shown)
        tokens, count = self._weights.of(memory), self._weights.characters
        short = [(self._weights.origin(step), step) for step in cut]
        return LeftOut(
            len(left),
            len(cut),
            sum(count(memory[place]) for place in left) + sum(count(whole) - count(step) for whole, step in short),
            sum(tokens[place] for place in left)
            + sum(self._weights.estimate(whole) - self._weights.estimate(step) for whole, step in short),
        )

    def weigh(self, policy: Policy) -> Weighed:
        """Weigh the prompt as it is without a policy, and as it is after a prune with one."""
        memory = self._agent.memory.steps
        left, cut = self._difference(memory, self._bounded(policy))
        places = {id(step): place for place, step in enumerate(memory)}
        tokens = self._weights.of(memory)
        base = self._weights.base(memory, tokens)
        out, before = set(left), without_replaced(memory)
        after = [step for step in before if places[id(step)] not in out]
        is_estimate = not self._weights.is_reported(memory)

        def weight(steps: Steps) -> Weight:
            characters = sum(len(text_in(message)) for message in self._system())
            characters += sum(map(self._weights.characters, steps))
            return Weight(len(steps), characters, base + sum(tokens[places[id(step)]] for step in steps), is_estimate)

        return Weighed(weight(before), weight(after), tuple(left), len(cut))

    def _difference(self, memory: Steps, shown: Steps) -> tuple[list[int], list[MemoryStep]]:
        """Give the places of the steps that a policy does not show, and what it shows of others that it changes."""
        known = {id(self._weights.origin(step)) for step in shown}
        known |= {id(step) for step in memory} - {id(step) for step in without_replaced(memory)}
        left = [place for place, step in enumerate(memory) if id(step) not in known]
        return left, [step for step in shown if self._weights.origin(step) is not step]

    def _bounded(self, policy: Policy) -> Steps:
        """Give what a policy shows: not the list of the memory itself, which grows."""
        return tuple(bounded(without_replaced(self._agent.memory.steps), policy, self._tools))

    def _system(self, *, summary_mode: bool = False) -> list[ChatMessage]:
        messages: list[ChatMessage] = self._agent.memory.system_prompt.to_messages(summary_mode=summary_mode)
        return messages
