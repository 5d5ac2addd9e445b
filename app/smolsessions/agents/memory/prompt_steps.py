"""Steps of the memory as a prompt shows them, with their messages and sizes, each computed once."""

from __future__ import annotations

from functools import cached_property
from itertools import takewhile
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

from smolagents import CodeAgent, ToolCallingAgent
from smolagents.memory import ActionStep, TaskStep

from smolsessions.agents.memory.step_types import NoteStep, SummaryStep, messages_of, replaced_notes, text_in
from smolsessions.agents.memory.tokens import estimate_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from smolagents import MultiStepAgent
    from smolagents.memory import MemoryStep
    from smolagents.models import ChatMessage

RECENT = 8  # newest known steps that are examined again at each call


class PromptStep:
    """A step with one content. Model calls share the messages: smolagents itself copies them before it changes any."""

    def __init__(self, step: MemoryStep, copy_of: PromptStep | None = None) -> None:
        self.step = step
        self.content = content_of(step)
        self.origin: PromptStep = copy_of.origin if copy_of else self
        """The step of the memory of which this one is a copy, or this one."""
        self.is_copy = copy_of is not None
        self.is_always_shown = isinstance(step, TaskStep | NoteStep)
        self._copies: dict[Hashable, PromptStep] = {}
        self._untouched: dict[str, MemoryStep] = {}

    @cached_property
    def messages(self) -> list[ChatMessage]:
        return messages_of(self.step)

    @cached_property
    def summary_messages(self) -> list[ChatMessage]:
        return messages_of(self.step, summary_mode=True)

    @cached_property
    def text(self) -> str:
        """The step as the model sees it, without images."""
        return "\n".join(map(text_in, self.messages))

    @cached_property
    def characters(self) -> int:
        return sum(len(text_in(message)) for message in self.messages)

    @cached_property
    def estimate(self) -> int:
        """Estimated tokens."""
        return estimate_messages(self.messages)

    @cached_property
    def call_ids(self) -> tuple[str, ...]:
        return tuple(call.id for call in getattr(self.step, "tool_calls", None) or ())

    @cached_property
    def observed(self) -> float:
        """Characters of an action's observations, infinite if it observed images."""
        if not isinstance(self.step, ActionStep):
            return 0
        return float("inf") if self.step.observations_images else len(self.step.observations or "")

    def copy(self, name: Hashable, make: Callable[[], MemoryStep]) -> PromptStep:
        """Return the copy under this name, made at the first call."""
        if name not in self._copies:
            self._copies[name] = PromptStep(make(), self)
        return self._copies[name]

    def lend(self, function: str, make: Callable[[], MemoryStep]) -> MemoryStep:
        """Return a copy that an author's function may change."""
        if function not in self._untouched:
            self._untouched[function] = make()
        return self._untouched[function]

    def take_back(self, function: str) -> PromptStep:
        """Return the copy of `lend` as the function left it, or this step if it is unchanged."""
        content = content_of(self._untouched[function])
        if content == self.content:
            return self
        changed, known = self._untouched.pop(function), self._copies.get(function)
        if known is None or known.content != content:
            known = self._copies[function] = PromptStep(changed, self)
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
        self._call_ids = Parts()
        self._has_notes = False

    def steps(self) -> list[PromptStep]:
        """Return all steps."""
        is_replaced = self._memory is not self._agent.memory.steps
        self._memory = self._agent.memory.steps
        same = 0 if is_replaced else self._unchanged()
        known = {id(one.step): one for one in self._steps[same:]}
        new = [_examined(step, known.get(id(step))) for step in self._memory[same:]]
        self._has_notes = self._has_notes or any(isinstance(one.step, NoteStep) for one in new)
        self._steps = self._steps[:same] + new
        return self._steps

    def visible(self) -> list[PromptStep]:
        """Return the steps without replaced notes."""
        steps = self.steps()
        notes = [one.step for one in steps if isinstance(one.step, NoteStep)] if self._has_notes else []
        replaced = replaced_notes(notes)
        return [one for one in steps if id(one.step) not in replaced] if replaced else steps

    def call_ids(self) -> list[str]:
        """Return the ids of all calls. The next call changes the list."""
        self.steps()
        return self.known_call_ids()

    def known_call_ids(self) -> list[str]:
        """Return the ids of all calls at the last prompt."""
        return self._call_ids.of(self._steps, attrgetter("call_ids"))

    def _unchanged(self) -> int:
        """Return the number of leading steps that stayed the same, except the recent ones."""
        memory, steps, end = self._memory, self._steps, len(self._steps)
        if self._only_grows:
            is_same = end <= len(memory) and (not end or steps[-1].step is memory[end - 1])
            return max(0, end - RECENT) if is_same else 0
        pairs = enumerate(zip(steps, memory, strict=False))
        return next((place for place, (one, step) in pairs if not _is_of(one, step)), min(end, len(memory)))


class Parts:
    """Joined results of a function of each step. Behind the unchanged steps they are computed again."""

    def __init__(self) -> None:
        self._steps: list[PromptStep] = []
        self._parts: list[Any] = []
        self._ends = [0]

    def of(self, steps: list[PromptStep], make: Callable[[PromptStep], Iterable[Any]]) -> list[Any]:
        """Return the parts. The next call changes the list. The caller must not change `steps` later."""
        same = len(self._steps)
        if steps[:same] != self._steps:  # by identity
            same = len([*takewhile(bool, map(is_, self._steps, steps))])
        del self._ends[same + 1 :], self._parts[self._ends[same] :]
        self._steps = steps[:same]  # until all parts are made
        for one in steps[same:]:
            self._parts += make(one)
            self._ends.append(len(self._parts))
        self._steps = steps
        return self._parts


def may_change_steps(agent: MultiStepAgent) -> bool:
    """True if the author's code can access the memory, and so may change finished steps."""
    if type(agent) not in {CodeAgent, ToolCallingAgent} or agent.final_answer_checks:
        return True
    callbacks = vars(agent.step_callbacks).get("_callbacks", {})
    return any(call != agent.monitor.update_metrics for calls in callbacks.values() for call in calls)


def content_of(step: MemoryStep) -> tuple[object, ...]:
    """Return the values that determine a step's messages.

    Tuples compare by identity first, so unchanged values are cheap.
    """
    parts = _PARTS.get(type(step))
    if parts is None:
        kind = next((kind for kind in type(step).__mro__ if kind in _PARTS), None)
        parts = _PARTS[kind] if kind else _plan
    content: tuple[object, ...] = parts(step)
    images: Any = content[-1]
    if isinstance(images, list):
        content = (*content, *images)
    calls: Any = getattr(step, "tool_calls", None)
    return (*content, tuple(map(_call, calls))) if calls else content


def _examined(step: MemoryStep, known: PromptStep | None) -> PromptStep:
    return known if known and _is_of(known, step) else PromptStep(step)


def _is_of(one: PromptStep, step: MemoryStep) -> bool:
    return one.step is step and one.content == content_of(step)


def _call(call: Any) -> tuple[object, ...]:
    arguments = call.arguments
    return (call.name, call.id, tuple(arguments.items()) if isinstance(arguments, dict) else arguments)


def _plan(step: MemoryStep) -> tuple[object, ...]:
    return (getattr(step, "plan", None), None)


_text = attrgetter("text", "__class__")  # two names, so that it returns a tuple
_PARTS: dict[type, Callable[[Any], tuple[object, ...]]] = {
    ActionStep: attrgetter("model_output", "tool_calls", "observations", "error", "observations_images"),
    TaskStep: attrgetter("task", "task_images"),
    NoteStep: _text,
    SummaryStep: _text,
}
