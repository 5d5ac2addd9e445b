"""What the model is shown of an agent's memory: apply_policy by the policy of the conversation, built once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

from smolagents.memory import TaskStep

from smolsessions.agents.memory.policies import PolicyFunction, RuleContext, apply_policy
from smolsessions.agents.memory.prompt_cache import CallIds, RuleCache, StepMessages, StepTotals
from smolsessions.agents.memory.step_types import replaced_notes
from smolsessions.agents.memory.step_weights import StepCache, text_in
from smolsessions.agents.memory.token_scale import PromptTokens, set_shown_estimate
from smolsessions.core.policies import OwnRule, Summarize
from smolsessions.core.records import LeftOut, PromptSize, PrunePreview

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from smolagents import MultiStepAgent
    from smolagents.memory import MemoryStep
    from smolagents.models import ChatMessage

    from smolsessions.core.policies import Policy

    Steps = Sequence[MemoryStep]
    Summarizing = Callable[[Steps, int], None]


@dataclass(frozen=True, slots=True)
class _Without:
    """What a policy leaves out."""

    places: tuple[int, ...]
    """Of the steps that are not shown."""
    shortened: int
    """How many are shown, but not as they are."""
    characters: int
    estimate: int


class PromptBuilder:
    """Stands for an agent's `write_memory_to_messages`."""

    def __init__(self, agent: MultiStepAgent, own_policies: Mapping[str, PolicyFunction]) -> None:
        self._agent = agent
        self._weights = StepCache()
        self._prompts = PromptTokens(agent, self._weights)
        self._tools = RuleContext(self._weights, own_policies, RuleCache(agent), self._prompts)
        self._calls = CallIds(agent)
        self._messages = StepMessages(agent, self._weights)
        self._shown = StepTotals(agent, self._weights)
        self.policy: Policy = ()
        self.summarize: Summarizing | None = None
        """Takes what is shown before a summary, and the tokens after which one is made; may add one to the memory."""
        self._last: tuple[Steps, Steps, int] = ((), (), 0)
        """What was shown the last time, and of what: the steps of a memory up to a place."""

    def begin_turn(self, policy: Policy) -> None:
        """Bound by this from now on; nothing was left out yet."""
        self.policy = policy
        self._last = ((), (), 0)

    def __call__(self, summary_mode: bool = False) -> list[ChatMessage]:
        if self.summarize and not summary_mode:
            for place, rule in enumerate(self.policy):
                if isinstance(rule, Summarize):
                    self.summarize(self._bounded(self.policy[: place + 1]), rule.after_tokens)
        shown = self._bounded(self.policy)
        self._last = (shown, self._agent.memory.steps, len(self._agent.memory.steps))
        if summary_mode:
            built = (self._weights.messages(step, summary_mode=True) for step in shown)
            return [*self._system(summary_mode=True), *chain.from_iterable(built)]
        messages = [*self._system(), *self._messages.of(shown)]
        self._weights.evict(shown, self._agent.memory.steps)
        return messages

    def preview(self, *, summary_mode: bool) -> list[ChatMessage]:
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

    def record_estimate(self, step: MemoryStep) -> None:
        """Have a step that is over say what its prompt showed: what the model counted is of that."""
        if self.policy:
            set_shown_estimate(step, self._messages.estimate())

    def tokens(self, steps: Steps) -> int:
        """Give what steps weigh."""
        return self._prompts.scale().tokens(sum(map(self._weights.estimate, steps)))

    def step_text(self, step: MemoryStep) -> str:
        """Give a step as the model is shown it, without images."""
        return "\n".join(map(text_in, self._weights.messages(step)))

    def left_out(self) -> LeftOut | None:
        """Say what the last call left out; nothing where there is no policy."""
        if not self.policy:
            return None
        shown, steps, count = self._last
        if shown is steps:
            return LeftOut(0, 0, 0, 0)
        if any(isinstance(rule, OwnRule) for rule in self.policy):
            without = self._difference(steps[:count], shown)
            left, characters, estimate = len(without.places), without.characters, without.estimate
        else:  # each step is shown once or not at all: what is missing is what the whole weighs more
            whole, part = self._prompts.weighed(steps, count), self._shown.of(shown)
            replaced = self._replaced_in(steps, count)
            left = count - len(replaced) - len(shown)
            characters = whole.characters() - whole.characters(replaced) - part.characters()
            estimate = whole.estimate() - whole.estimate(replaced) - part.estimate()
        return LeftOut(left, self._shown.copies, characters, self._prompts.scale().tokens(estimate))

    def weigh(self, policy: Policy) -> PrunePreview:
        """Weigh the prompt as it is without a policy, and as it is after a prune with one."""
        memory = self._agent.memory.steps
        without = self._difference(memory, self._bounded(policy))
        weighed, scale = self._prompts.weighed(memory), self._prompts.scale()
        replaced, out = self._replaced(memory, len(memory)), set(without.places)
        before = [place for place, step in enumerate(memory) if id(step) not in replaced]
        system = sum(len(text_in(message)) for message in self._system())

        def weight(places: Sequence[int]) -> PromptSize:
            tokens = scale.tokens(self._prompts.before + weighed.estimate(places))
            characters = system + weighed.characters(places)
            return PromptSize(len(places), characters, tokens, is_estimate=not scale.is_reported)

        after = [place for place in before if place not in out]
        return PrunePreview(weight(before), weight(after), without.places, without.shortened)

    def _difference(self, memory: Steps, shown: Steps) -> _Without:
        """Compare what is shown with the memory; notes that another one replaced are left out of it anyway."""
        whole, part = self._prompts.weighed(memory), self._shown.of(shown)
        there, known, replaced = set(whole.origins), set(part.origins), self._replaced_in(memory, len(memory))
        added = _places(known - there, part.origins)  # by a policy of one's own
        missing = there - known - {whole.origins[place] for place in replaced}
        return _Without(
            _places(missing, whole.origins),
            part.copies,
            whole.characters() - whole.characters(replaced) - part.characters() + part.characters(added),
            whole.estimate() - whole.estimate(replaced) - part.estimate() + part.estimate(added),
        )

    def _replaced_in(self, steps: Steps, end: int) -> Sequence[int]:
        """Give the places of the notes that another one replaced, of those before `end`."""
        return _places(set(self._replaced(steps, end)), map(id, islice(steps, end)))

    def _replaced(self, steps: Steps, end: int) -> Collection[int]:
        return replaced_notes(self._tools.older.notes("all", steps, end))

    def _bounded(self, policy: Policy) -> Steps:
        """Give what a policy shows: not the list of the memory itself, which grows."""
        steps: Steps = self._agent.memory.steps
        if replaced := self._replaced(steps, len(steps)):
            steps = [step for step in steps if id(step) not in replaced]
        return apply_policy(steps, policy, self._tools)

    def _system(self, *, summary_mode: bool = False) -> list[ChatMessage]:
        messages: list[ChatMessage] = self._agent.memory.system_prompt.to_messages(summary_mode=summary_mode)
        return messages


def _places(wanted: Collection[int], ids: Iterable[int]) -> tuple[int, ...]:
    return tuple(place for place, one in enumerate(ids) if one in wanted) if wanted else ()
