"""Prompt builder: the messages for an agent's next model call, bounded by the conversation's policy."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from smolagents.memory import TaskStep

from smolsessions.agents.memory.policies import RuleContext, apply_policy
from smolsessions.agents.memory.prompt_cache import CallIds, RuleCache, StepMessages, StepTotals
from smolsessions.agents.memory.step_cache import StepCache
from smolsessions.agents.memory.step_types import replaced_notes, text_in
from smolsessions.agents.memory.tokens import PromptTokens, set_shown_estimate
from smolsessions.core.policies import OwnRule, Summarize
from smolsessions.core.records import LeftOut, PromptSize, PrunePreview

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from smolagents import MultiStepAgent
    from smolagents.memory import MemoryStep
    from smolagents.models import ChatMessage

    from smolsessions.agents.memory.policies import PolicyFunction
    from smolsessions.core.policies import Policy

    Steps = Sequence[MemoryStep]
    Summarizing = Callable[[Steps, int], None]


class _Prompt(NamedTuple):
    """Steps of a prompt, and the memory before `end` that it was made of."""

    shown: Steps = ()
    memory: Steps = ()
    end: int = 0


class _Omission(NamedTuple):
    """Difference between a memory and the steps of its prompt."""

    places: tuple[int, ...]
    shortened: int
    characters: int
    estimate: int


class PromptBuilder:
    """Builder of an agent's messages, installed as `agent.write_memory_to_messages`.

    Its inputs are the memory, with its notes and summaries, and `policy`. Without a policy the messages are
    smolagents' own. The messages of finished steps are cached.
    """

    def __init__(self, agent: MultiStepAgent, own_policies: Mapping[str, PolicyFunction]) -> None:
        self.policy: Policy = ()
        self.summarize: Summarizing | None = None
        """Function of the steps in front of a summary and the token limit. It may append a summary to the memory."""
        self._agent = agent
        self._cache = StepCache()
        self._messages = StepMessages(agent, self._cache)
        self._shown_totals = StepTotals(agent, self._cache)
        self._memory_totals = StepTotals(agent, self._cache)
        self._tokens = PromptTokens(agent, self._memory_totals)
        self._context = RuleContext(self._cache, own_policies, RuleCache(agent), self._tokens)
        self._calls = CallIds(agent)
        self._last = _Prompt()

    def begin_turn(self, policy: Policy) -> None:
        self.policy = policy
        self._last = _Prompt()

    def __call__(self, summary_mode: bool = False) -> list[ChatMessage]:
        memory = self._agent.memory.steps
        if self.summarize and not summary_mode:
            for place, rule in enumerate(self.policy):
                if isinstance(rule, Summarize):
                    self.summarize(self._select(self.policy[: place + 1]), rule.after_tokens)
        shown = self._select(self.policy)
        self._last = _Prompt(shown, memory, len(memory))
        if summary_mode:
            built = (self._cache.messages(step, summary_mode=True) for step in shown)
            return [*self._system(summary_mode=True), *chain.from_iterable(built)]
        messages = [*self._system(), *self._messages.of(shown)]
        self._cache.evict(shown, memory)
        return messages

    def preview(self, *, summary_mode: bool) -> list[ChatMessage]:
        """Return the messages in front of the next task, which counts as the current turn."""
        memory, task = self._agent.memory.steps, TaskStep("")
        memory.append(task)
        try:
            shown = tuple(self._select(self.policy))  # a copy: the result may be the memory itself
        finally:
            memory.pop()
        self._last = _Prompt(shown, (*memory, task), len(memory) + 1)
        messages = self._system(summary_mode=summary_mode)
        for step in shown:
            if self._cache.origin(step) is not task:
                messages += self._cache.messages(step, summary_mode=summary_mode)
        return messages

    @property
    def call_ids(self) -> Collection[str]:
        """Ids of all calls in the memory, empty without a policy."""
        return self._calls.ids() if self.policy else ()

    def record_estimate(self, step: MemoryStep) -> None:
        """Record the size of a finished step's prompt in the step, for comparison with the model's count."""
        if self.policy:
            shown, memory, end = self._last
            estimated = self._shown_totals.of(shown, end if shown is memory else len(shown)).estimate()
            set_shown_estimate(step, estimated)

    def tokens(self, steps: Steps) -> int:
        return self._tokens.scale().tokens(sum(map(self._cache.estimate, steps)))

    def step_text(self, step: MemoryStep) -> str:
        """Return a step as the model sees it, without images."""
        return "\n".join(map(text_in, self._cache.messages(step)))

    def left_out(self) -> LeftOut | None:
        """Return the omissions of the last prompt, or None without a policy."""
        if not self.policy:
            return None
        shown, memory, end = self._last
        if shown is memory:
            return LeftOut(0, 0, 0, 0)
        if any(isinstance(rule, OwnRule) for rule in self.policy):
            places, shortened, characters, estimate = self._difference(memory, end, shown)
            return LeftOut(len(places), shortened, characters, self._tokens.scale().tokens(estimate))
        # Each step is shown at most once, so the totals are enough. In long memories they are faster than sets.
        whole, part = self._memory_totals.of(memory, end), self._shown_totals.of(shown)
        replaced = _places(self._replaced(memory, end), map(id, islice(memory, end)))
        characters = whole.characters() - whole.characters(replaced) - part.characters()
        estimate = whole.estimate() - whole.estimate(replaced) - part.estimate()
        left = end - len(replaced) - len(shown)
        return LeftOut(left, part.copies, characters, self._tokens.scale().tokens(estimate))

    def weigh(self, policy: Policy) -> PrunePreview:
        """Return the size of the prompt without a policy, and after a prune with this one."""
        memory = self._agent.memory.steps
        omission = self._difference(memory, len(memory), self._select(policy))
        totals, scale = self._memory_totals.of(memory), self._tokens.scale()
        replaced, pruned = self._replaced(memory, len(memory)), set(omission.places)
        before = [place for place, step in enumerate(memory) if id(step) not in replaced]
        system = sum(len(text_in(message)) for message in self._system())

        def weight(places: Sequence[int]) -> PromptSize:
            tokens = scale.tokens(self._tokens.before + totals.estimate(places))
            return PromptSize(
                len(places), system + totals.characters(places), tokens, is_estimate=not scale.is_reported
            )

        after = [place for place in before if place not in pruned]
        return PrunePreview(weight(before), weight(after), omission.places, omission.shortened)

    def _difference(self, memory: Steps, end: int, shown: Steps) -> _Omission:
        """Compare the memory before `end`, without its replaced notes, with the steps of a prompt."""
        whole, part = self._memory_totals.of(memory, end), self._shown_totals.of(shown)
        replaced = _places(self._replaced(memory, end), map(id, islice(memory, end)))
        there, known = set(whole.origins), set(part.origins)
        added = _places(known - there, part.origins)  # by the author's function
        missing = there - known - {whole.origins[place] for place in replaced}
        return _Omission(
            _places(missing, whole.origins),
            part.copies,
            whole.characters() - whole.characters(replaced) - part.characters() + part.characters(added),
            whole.estimate() - whole.estimate(replaced) - part.estimate() + part.estimate(added),
        )

    def _replaced(self, steps: Steps, end: int) -> set[int]:
        return replaced_notes(self._context.results.notes("all", steps, end))

    def _select(self, policy: Policy) -> Steps:
        """Return the steps that a policy shows of the memory, without replaced notes."""
        steps: Steps = self._agent.memory.steps
        if replaced := self._replaced(steps, len(steps)):
            steps = [step for step in steps if id(step) not in replaced]
        return apply_policy(steps, policy, self._context)

    def _system(self, *, summary_mode: bool = False) -> list[ChatMessage]:
        messages: list[ChatMessage] = self._agent.memory.system_prompt.to_messages(summary_mode=summary_mode)
        return messages


def _places(wanted: Collection[int], ids: Iterable[int]) -> tuple[int, ...]:
    return tuple(place for place, one in enumerate(ids) if one in wanted) if wanted else ()
