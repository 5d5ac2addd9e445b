"""Steps of the memory as a prompt shows them, with their messages and sizes, each computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import is_
from typing import Any

from smolagents import CodeAgent, MultiStepAgent, ToolCallingAgent
from smolagents.memory import ActionStep, MemoryStep, TaskStep
from smolagents.models import ChatMessage
from smolagents.utils import AgentMaxStepsError

from smolsessions.agents.memory import step_types
from smolsessions.agents.memory.tokens import estimate, estimate_messages
from smolsessions.agents.values.media import holds_media

NEWEST = 8  # known steps whose identity is checked at each call: a replay replaces the last ones
MAX_AGE = 20  # steps back to the newest count of the model
MIN_FACTOR = 0.35  # a smaller count is not one of the whole prompt: some models leave out cached tokens
MAX_FACTOR = 8
MAX_UNRECORDED_FACTOR = 2  # if the step does not record its prompt


class PromptStep:
    """A step with one content. Model calls share the messages: smolagents itself copies them before it changes any."""

    def __init__(self, step: MemoryStep, copy_of: PromptStep | None = None) -> None:
        self.step = step
        self._copied = copy_of.origin if copy_of else None

    @property
    def origin(self) -> PromptStep:
        """The step of the memory of which this one is a copy, or this one."""
        return self._copied or self

    @property
    def is_copy(self) -> bool:
        return self._copied is not None

    @cached_property
    def _copies(self) -> dict[Hashable, PromptStep]:
        return {}

    @cached_property
    def content(self) -> tuple[object, ...]:
        return content_of(self.step)

    @cached_property
    def messages(self) -> list[ChatMessage]:
        return step_types.messages_of(self.step)

    @cached_property
    def estimate(self) -> int:
        return estimate_messages(self.messages)

    @property
    def summary_messages(self) -> list[ChatMessage]:
        return step_types.messages_of(self.step, summary_mode=True)

    @property
    def text(self) -> str:
        """The step as the model sees it, without images."""
        return "\n".join(map(step_types.text_in, self.messages))

    @cached_property
    def characters(self) -> int:
        return sum(len(step_types.text_in(message)) for message in self.messages)

    @cached_property
    def call_ids(self) -> tuple[str, ...]:
        return tuple(call.id for call in getattr(self.step, "tool_calls", None) or ())

    @property
    def is_always_shown(self) -> bool:
        return isinstance(self.step, TaskStep | step_types.NoteStep)

    def copy(self, name: Hashable, make: Callable[[], MemoryStep]) -> PromptStep:
        if name not in self._copies:
            self._copies[name] = PromptStep(make(), self)
        return self._copies[name]

    def as_changed(self, name: str, step: MemoryStep) -> PromptStep:
        """Return the prompt's view of a copy that an author's function may have changed."""
        content, known = content_of(step), self._copies.get(name)
        if content == self.content:
            return self
        if known is None or known.content != content:
            known = self._copies[name] = PromptStep(step, self)
        return known


class PromptMemory:
    """The steps of an agent's memory. Each is examined once.

    A finished step changes only if a callback of the agent's author changes it. With such callbacks, the contents of
    all steps are compared with those of the last call.
    """

    def __init__(self, agent: MultiStepAgent) -> None:
        self._agent = agent
        self._only_grows = not may_change_steps(agent)
        self._memory: list[Any] = []
        self._steps: list[PromptStep] = []
        self._newest: list[Any] = []
        self._illustrated: list[MemoryStep] = []
        self._has_notes = False

    def begin_turn(self) -> None:
        """Examine all steps from now on if the author's code was given access to them since the last turn."""
        if self._only_grows and may_change_steps(self._agent):
            self._only_grows = False
            self._steps = []  # their contents were not kept

    def steps(self) -> list[PromptStep]:
        """Return all steps. The caller must not change the list."""
        memory, steps = self._agent.memory.steps, self._steps
        end, newest = len(steps), self._newest
        begins_as_known = memory is self._memory and end <= len(memory)
        if self._only_grows and begins_as_known and all(map(is_, newest, memory[end - len(newest) : end])):
            new = memory[end:]
            if not new:
                return steps
            steps = [*steps, *map(PromptStep, new)]
        else:
            known = {id(one.step): one for one in steps}
            new, self._illustrated = memory, []
            steps = []
            for step in memory:
                one, content = known.get(id(step)), () if self._only_grows else content_of(step)
                if one is None or (content and one.content != content):
                    one = PromptStep(step)
                    if content:
                        one.content = content  # as it is now: a callback may change the step
                steps.append(one)
        self._has_notes = self._has_notes or step_types.NoteStep in set(map(type, new))
        self._illustrated += filter(holds_media, new)
        self._memory, self._steps, self._newest = memory, steps, memory[-NEWEST:]
        return steps

    def visible(self) -> list[PromptStep]:
        """Return the steps without replaced notes."""
        steps = self.steps()
        if not self._has_notes:
            return steps
        replaced = step_types.replaced_notes([one.step for one in steps if isinstance(one.step, step_types.NoteStep)])
        return [one for one in steps if id(one.step) not in replaced] if replaced else steps

    def illustrated(self) -> list[MemoryStep]:
        """Return the steps that may hold images. The next call changes the list."""
        self.steps()
        return self._illustrated if self._only_grows else list(self._agent.memory.steps)

    def call_ids(self) -> list[str]:
        """Return the ids of all calls."""
        return [call_id for one in self.steps() for call_id in one.call_ids]


@dataclass(frozen=True, slots=True)
class Scale:
    """Factor from estimated tokens to the model's own count."""

    factor: float = 1.0
    is_reported: bool = False

    def tokens(self, estimated: int) -> int:
        return round(estimated * self.factor)


class PromptTokens:
    """Tokens of an agent's prompts. They depend on its memory alone, so a replay in another process gets the same."""

    def __init__(self, agent: MultiStepAgent, memory: PromptMemory) -> None:
        self._agent = agent
        self._memory = memory
        self._before: tuple[object, int] = (None, 0)

    @property
    def before(self) -> int:
        """Estimated tokens in front of the steps: the system prompt and the descriptions of tools."""
        agent: Any = self._agent
        tools = agent.tools_and_managed_agents if isinstance(agent, ToolCallingAgent) else []
        system = agent.memory.system_prompt
        key = (system.system_prompt, tuple(map(id, tools)))
        if self._before[0] != key:
            described = sum(estimate(f"{tool.name}: {tool.description} {tool.inputs}") for tool in tools)
            self._before = key, estimate_messages(system.to_messages()) + described
        return self._before[1]

    def scale(self) -> Scale:
        """Return the model's count of its last prompt relative to the estimate.

        The prompt of an answer that the step limit forced is of another kind, so it does not count. A step without a
        recorded estimate is of a turn without a policy, or of another service: it saw all steps.
        """
        steps = self._agent.memory.steps
        for place in islice(reversed(range(len(steps))), MAX_AGE):
            step = steps[place]
            if not isinstance(step, ActionStep) or isinstance(step.error, AgentMaxStepsError) or not step.token_usage:
                continue
            if counted := int(step.token_usage.input_tokens):
                shown: int | None = getattr(step, step_types.ESTIMATE, None)
                most = MAX_FACTOR if shown is not None else MAX_UNRECORDED_FACTOR
                if shown is None:
                    shown = sum(one.estimate for one in islice(self._memory.steps(), place))
                factor = counted / max(1, self.before + shown)
                return Scale(min(factor, most), is_reported=True) if factor >= MIN_FACTOR else Scale()
        return Scale()


def may_change_steps(agent: MultiStepAgent) -> bool:
    """True if the author's code can access the memory, and so may change finished steps."""
    if type(agent) not in {CodeAgent, ToolCallingAgent} or agent.final_answer_checks:
        return True
    own_modules = ("smolsessions.agents.memory.", "smolsessions.agents.run.")
    return any(
        call != agent.monitor.update_metrics and not str(getattr(call, "__module__", "")).startswith(own_modules)
        for calls in vars(agent.step_callbacks).get("_callbacks", {}).values()
        for call in calls
    )


def content_of(step: MemoryStep) -> tuple[object, ...]:
    """Return the values that determine a step's messages.

    Tuples compare by identity first, so unchanged values are cheap.
    """
    match step:
        case ActionStep():
            calls: Any = step.tool_calls
            content = (step.model_output, calls, step.observations, step.error, *_listed(step.observations_images))
            return (*content, *[_call(call) for call in calls or ()])
        case TaskStep():
            return (step.task, *_listed(step.task_images))
        case step_types.NoteStep() | step_types.SummaryStep():
            return (type(step), step.text)
        case _:
            return (getattr(step, "plan", None),)


def _listed(images: object) -> list[object]:
    return images if isinstance(images, list) else []


def _call(call: Any) -> tuple[object, ...]:
    arguments = call.arguments
    return (call.name, call.id, tuple(arguments.items()) if isinstance(arguments, dict) else arguments)
