"""How many tokens a prompt is for an agent's model: an estimate, put right by what that counted of the last one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from smolagents import ToolCallingAgent
from smolagents.memory import ActionStep
from smolagents.utils import AgentMaxStepsError

from smolsessions.agents.memory.prompt_cache import StepTotals
from smolsessions.agents.memory.tokens import estimate, estimate_messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smolagents import MultiStepAgent
    from smolagents.memory import MemoryStep

    from smolsessions.agents.memory.step_weights import StepCache

NEWEST = 20  # steps among which a count is looked for
LEAST = 0.5  # of the estimate: a count of less is not one of the whole prompt (some leave out what they had cached)
MOST = 8  # times the estimate that a count is believed to be
MOST_SUPPOSED = 2  # where what the prompt showed is only supposed
_SHOWN = "shown_estimate"
"""What an action's step says, on record, of the prompt that it is the answer to: the tokens of its steps, estimated."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much more the model counts than is estimated."""

    factor: float = 1.0
    is_reported: bool = False

    def tokens(self, estimated: int) -> int:
        """Give an estimate as the model would count it."""
        return round(estimated * self.factor)


class PromptTokens:
    """What the prompts of an agent weigh, by its memory alone: a replay in another process finds the same."""

    def __init__(self, agent: MultiStepAgent, weights: StepCache) -> None:
        self._agent = agent
        self._known: tuple[object, int] = (None, 0)
        self._weighing = StepTotals(agent, weights)

    def weighed(self, steps: Sequence[MemoryStep], end: int | None = None) -> StepTotals:
        """Give what the steps of the memory weigh, up to `end`."""
        return self._weighing.of(steps, end)

    @property
    def before(self) -> int:
        """The tokens of what stands before the steps, estimated: the system prompt, and the descriptions of tools."""
        agent: Any = self._agent
        tools = agent.tools_and_managed_agents if isinstance(agent, ToolCallingAgent) else []
        system = agent.memory.system_prompt
        key = (system.system_prompt, tuple(map(id, tools)))
        if self._known[0] != key:
            described = sum(estimate(f"{tool.name}: {tool.description} {tool.inputs}") for tool in tools)
            self._known = key, estimate_messages(system.to_messages()) + described
        return self._known[1]

    def scale(self) -> Scale:
        """Compare what the model counted of its last prompt with the estimate of that.

        A step that does not say what was shown with it is of a turn without a policy (or of another service): all was.
        """
        steps = self._agent.memory.steps
        for place in islice(reversed(range(len(steps))), NEWEST):
            if counted := _counted(steps[place]):
                shown = shown_estimate(steps[place])
                most = MOST if shown is not None else MOST_SUPPOSED
                if shown is None:
                    shown = self.weighed(steps).estimate(range(place))
                factor = counted / max(1, self.before + shown)
                return Scale(min(factor, most), is_reported=True) if factor >= LEAST else Scale()
        return Scale()


def set_shown_estimate(step: MemoryStep, estimated: int) -> None:
    """Note with an action's step how many tokens of steps its prompt showed, as estimated."""
    vars(step)[_SHOWN] = estimated


def shown_estimate(step: MemoryStep) -> int | None:
    """Give what was noted with a step."""
    shown: int | None = vars(step).get(_SHOWN)
    return shown


def _counted(step: MemoryStep) -> int:
    """Give the tokens of the prompt of an action's model call, as reported; 0 where they were not.

    An answer that was forced at the end of the steps came of a prompt of another kind.
    """
    if not isinstance(step, ActionStep) or isinstance(step.error, AgentMaxStepsError) or not step.token_usage:
        return 0
    return int(step.token_usage.input_tokens)
