"""Steps of the memory as a prompt shows them, with their messages and sizes, each computed once."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable
from itertools import takewhile
from operator import attrgetter, is_
from typing import Any

from smolagents import CodeAgent, MultiStepAgent, ToolCallingAgent
from smolagents.memory import ActionStep, MemoryStep, TaskStep
from smolagents.models import ChatMessage

from smolsessions.agents.memory.step_types import NoteStep, SummaryStep, messages_of, replaced_notes, text_in
from smolsessions.agents.memory.tokens import estimate_messages
from smolsessions.agents.values.media import holds_media

_OWN_MODULES = ("smolsessions.agents.memory.", "smolsessions.agents.run.")
NEWEST = 8  # known steps whose identity is checked at each call: a replay replaces the last ones


class PromptStep:
    """A step with one content. Model calls share the messages: smolagents itself copies them before it changes any.

    Slots without a value are computed by `_LAZY` at their first access.
    """

    __slots__ = ("_copied", "_copies", "_lent", "content", "estimate", "messages", "step")
    step: MemoryStep
    _copied: PromptStep | None
    _copies: dict[Hashable, PromptStep]
    _lent: dict[str, MemoryStep]
    content: tuple[object, ...]
    messages: list[ChatMessage]
    estimate: int
    """Estimated tokens."""

    def __init__(self, step: MemoryStep, copy_of: PromptStep | None = None) -> None:
        self.step = step
        self._copied = copy_of.origin if copy_of else None

    def __getattr__(self, name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(name)
        value = _LAZY[name](self)
        setattr(self, name, value)
        return value

    @property
    def origin(self) -> PromptStep:
        """The step of the memory of which this one is a copy, or this one."""
        return self._copied or self

    @property
    def is_copy(self) -> bool:
        return self._copied is not None

    @property
    def summary_messages(self) -> list[ChatMessage]:
        return messages_of(self.step, summary_mode=True)

    @property
    def text(self) -> str:
        """The step as the model sees it, without images."""
        return "\n".join(map(text_in, self.messages))

    @property
    def characters(self) -> int:
        return sum(len(text_in(message)) for message in self.messages)

    @property
    def call_ids(self) -> tuple[str, ...]:
        return tuple(call.id for call in getattr(self.step, "tool_calls", None) or ())

    @property
    def observed(self) -> float:
        """Characters of an action's observations, infinite if it observed images."""
        if not isinstance(self.step, ActionStep):
            return 0
        return float("inf") if self.step.observations_images else len(self.step.observations or "")

    @property
    def is_always_shown(self) -> bool:
        return isinstance(self.step, TaskStep | NoteStep)

    def copy(self, name: Hashable, make: Callable[[], MemoryStep]) -> PromptStep:
        """Return the copy under this name, made at the first call."""
        if name not in self._copies:
            self._copies[name] = PromptStep(make(), self)
        return self._copies[name]

    def lend(self, function: str, make: Callable[[], MemoryStep]) -> MemoryStep:
        """Return a copy that an author's function may change."""
        if function not in self._lent:
            self._lent[function] = make()
        return self._lent[function]

    def take_back(self, function: str) -> PromptStep:
        """Return the copy of `lend` as the function left it, or this step if it is unchanged."""
        content = content_of(self._lent[function])
        if content == self.content:
            return self
        changed, known = self._lent.pop(function), self._copies.get(function)
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
        self._newest: list[Any] = []
        self._call_ids = Parts()
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
        if self._only_grows and self._has_grown(memory):
            new = memory[len(steps) :]
            if not new:
                return steps
            steps = [*steps, *map(PromptStep, new)]
        else:
            new, steps, self._illustrated = memory, self._examined(memory), []
        self._has_notes = self._has_notes or NoteStep in set(map(type, new))
        self._illustrated += filter(holds_media, new)
        self._memory, self._steps, self._newest = memory, steps, memory[-NEWEST:]
        return steps

    def visible(self) -> list[PromptStep]:
        """Return the steps without replaced notes."""
        steps = self.steps()
        if not self._has_notes:
            return steps
        replaced = replaced_notes([one.step for one in steps if isinstance(one.step, NoteStep)])
        return [one for one in steps if id(one.step) not in replaced] if replaced else steps

    def illustrated(self) -> list[MemoryStep]:
        """Return the steps that may hold images. The next call changes the list."""
        self.steps()
        return self._illustrated if self._only_grows else list(self._agent.memory.steps)

    def call_ids(self) -> list[str]:
        """Return the ids of all calls. The next call changes the list."""
        self.steps()
        return self.known_call_ids()

    def known_call_ids(self) -> list[str]:
        """Return the ids of all calls at the last prompt."""
        return self._call_ids.of(self._steps, attrgetter("call_ids"))

    def _has_grown(self, memory: list[Any]) -> bool:
        """True if the memory begins with the known steps."""
        end, newest = len(self._steps), self._newest
        is_longer = memory is self._memory and end <= len(memory)
        return is_longer and all(map(is_, newest, memory[end - len(newest) : end]))

    def _examined(self, memory: list[Any]) -> list[PromptStep]:
        """Return the steps with their present contents, which are kept if they may change."""
        known, steps = {id(one.step): one for one in self._steps}, []
        if self._only_grows:
            return [known.get(id(step)) or PromptStep(step) for step in memory]
        for step in memory:
            content, one = content_of(step), known.get(id(step))
            if one is None or one.content != content:
                one = PromptStep(step)
                one.content = content
            steps.append(one)
        return steps


class Parts:
    """Joined results of a function of each step. Behind the unchanged steps they are computed again."""

    def __init__(self) -> None:
        self._steps: list[PromptStep] = []
        self._parts: list[Any] = []
        self._ends = array("I", [0])  # a list would hold an object for each number

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
    known = agent.monitor.update_metrics
    return any(call != known and not _is_own(call) for calls in callbacks.values() for call in calls)


def _is_own(callback: Any) -> bool:
    return str(getattr(callback, "__module__", "")).startswith(_OWN_MODULES)


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
_LAZY: dict[str, Callable[[PromptStep], Any]] = {
    "_copies": lambda _: {},
    "_lent": lambda _: {},
    "content": lambda one: content_of(one.step),
    "messages": lambda one: messages_of(one.step),
    "estimate": lambda one: estimate_messages(one.messages),
}
