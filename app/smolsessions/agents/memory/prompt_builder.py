"""Prompt builder: the messages for an agent's next model call, bounded by the conversation's policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import chain
from operator import attrgetter

from smolagents import MultiStepAgent
from smolagents.memory import MemoryStep, TaskStep
from smolagents.models import ChatMessage

from smolsessions.agents.memory.policies import PolicyFunction, RuleContext, Steps, apply_policy
from smolsessions.agents.memory.prompt_steps import PromptMemory, PromptTokens
from smolsessions.agents.memory.step_types import ESTIMATE, text_in
from smolsessions.core.memories import PrunePreview
from smolsessions.core.policies import OwnRule, Policy, Summarize
from smolsessions.core.records import LeftOut, PromptSize

Summarizing = Callable[[Steps, int], None]


class PromptBuilder:
    """Builder of an agent's messages, installed as `agent.write_memory_to_messages`.

    Its inputs are the memory, with its notes and summaries, and `policy`. Without a policy the messages are
    smolagents' own. The messages of finished steps are cached.
    """

    def __init__(self, agent: MultiStepAgent, own_policies: Mapping[str, PolicyFunction]) -> None:
        self.policy: Policy = ()
        self.summarize: Summarizing | None = None
        """Function of the steps in front of a summary and the token limit. It may append a summary to the memory."""
        self.before: Callable[[], None] | None = None
        """Called first for each prompt. It may append to the memory."""
        self._agent = agent
        self.memory = PromptMemory(agent)
        self._tokens = PromptTokens(agent, self.memory)
        self._context = RuleContext(own_policies, self._tokens)
        self._last: tuple[Steps, Steps] = [], []
        """Visible steps at the last prompt, and those that it showed."""

    def begin_turn(self, policy: Policy) -> None:
        self.policy = policy
        self._last = [], []
        self.memory.begin_turn()

    def __call__(self, summary_mode: bool = False) -> list[ChatMessage]:
        if self.before:
            self.before()
        if self.summarize and not summary_mode:
            for place, rule in enumerate(self.policy):
                if isinstance(rule, Summarize):
                    steps = apply_policy(self.memory.visible(), self.policy[: place + 1], self._context)
                    self.summarize(steps, rule.after_tokens)
        return self._messages(self._select(self.memory.visible()), summary_mode=summary_mode)

    def preview(self, *, summary_mode: bool) -> list[ChatMessage]:
        """Return the messages in front of the next task, which counts as the current turn."""
        memory, task = self._agent.memory.steps, TaskStep("")
        memory.append(task)
        try:
            shown = self._select(self.memory.visible())
        finally:
            memory.pop()
        return self._messages([one for one in shown if one.origin.step is not task], summary_mode=summary_mode)

    @property
    def call_ids(self) -> Collection[str]:
        """Ids of all calls at the last prompt, empty without a policy."""
        return self.memory.call_ids() if self.policy else ()

    def record_estimate(self, step: MemoryStep) -> None:
        """Record the size of a finished step's prompt in the step, for comparison with the model's count."""
        if self.policy:
            setattr(step, ESTIMATE, sum(one.estimate for one in self._last[1]))

    def tokens(self, steps: Steps) -> int:
        return self._tokens.scale().tokens(sum(one.estimate for one in steps))

    def left_out(self) -> LeftOut | None:
        """Return the omissions of the last prompt, or None without a policy."""
        if not self.policy:
            return None
        visible, shown = self._last
        count = len(visible) - len(shown)
        if any(isinstance(rule, OwnRule) for rule in self.policy):  # it may add steps, and show one twice
            known = set(visible)
            shown = [one for one in shown if one.origin in known]
            count = len(known.difference(one.origin for one in shown))
        characters, estimate = (
            sum(map(attrgetter(name), visible)) - sum(map(attrgetter(name), shown))
            for name in ("characters", "estimate")
        )
        return LeftOut(count, sum(one.is_copy for one in shown), characters, self._tokens.scale().tokens(estimate))

    def weigh(self, policy: Policy) -> PrunePreview:
        """Return the size of the prompt without a policy, and after a prune with this one."""
        before = self.memory.visible()
        shown = apply_policy(before, policy, self._context)
        missing = set(before).difference(one.origin for one in shown)
        after = [one for one in before if one not in missing]
        places = tuple(place for place, one in enumerate(self.memory.steps()) if one in missing)
        return PrunePreview(self._size(before), self._size(after), places, sum(one.is_copy for one in shown))

    def _size(self, steps: Steps) -> PromptSize:
        system = sum(len(text_in(message)) for message in self._messages([]))
        characters, scale = system + sum(one.characters for one in steps), self._tokens.scale()
        tokens = scale.tokens(self._tokens.before + sum(one.estimate for one in steps))
        return PromptSize(len(steps), characters, tokens, is_estimate=not scale.is_reported)

    def _select(self, visible: Steps) -> Steps:
        shown = apply_policy(visible, self.policy, self._context) if self.policy else visible
        self._last = visible, shown
        return shown

    def _messages(self, steps: Steps, *, summary_mode: bool = False) -> list[ChatMessage]:
        of_step = attrgetter("summary_messages" if summary_mode else "messages")
        system = self._agent.memory.system_prompt.to_messages(summary_mode=summary_mode)
        return [*system, *chain.from_iterable(map(of_step, steps))]
