"""Run of one agent within a turn: its steps, model calls and tool calls get numbers that a replay repeats."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from smolagents.memory import ActionStep, PlanningStep

from smolsessions.agents.memory.step_fields import repair_fields
from smolsessions.agents.run.effects import Effect, encode_raised
from smolsessions.agents.run.recorder import numbers_in
from smolsessions.agents.run.tool_calls import ToolCallInProgress
from smolsessions.agents.values import dumps
from smolsessions.agents.values.images import stored_images
from smolsessions.agents.values.json_forms import json_form, truncated, utf8_text
from smolsessions.core.events import StepError, StepFinished, StepStarted, Where
from smolsessions.core.records import ToolCall, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from smolagents.memory import MemoryStep

    from smolsessions.agents.run.recorder import Recorder
    from smolsessions.core.events import StepKind

INTERNAL_TOOLS = frozenset({"python_interpreter", "final_answer"})


class AgentRun:
    """Run of one agent within a turn. It numbers the agent's steps and calls. An agent has one run at a time."""

    def __init__(
        self, recorder: Recorder, path: str, parent: AgentRun | None = None, parent_call_id: str | None = None
    ) -> None:
        """`parent` is the run that started this one by its call `parent_call_id`."""
        self.recorder = recorder
        self.path = path
        self._parent = parent
        self._parent_call_id = parent_call_id
        self._parent_number = numbers_in(parent_call_id)[-1] if parent_call_id else 0
        self._where: Where | None = None
        self._kind: StepKind = "action"
        self._steps = self._models = self._tools = self._checks = 0
        self._expected: list[tuple[int, str, Any]] = []
        self._side_by_side: set[int] = set()
        self.before_model_call: Callable[[], None] = lambda: None
        """Writes finished steps: smolagents yields a plan before it is in the memory."""
        self._lock = threading.Lock()  # a ToolCallingAgent's parallel calls
        self._inside = threading.local()

    @property
    def in_step(self) -> bool:
        return self._where is not None

    def model_call(self, kind: StepKind) -> tuple[Where, str]:
        """Begin a model call, and a step if none is open. Return its place and its id."""
        self.recorder.check()
        if self._where is None:
            self._open(kind)
        assert self._where
        inside = getattr(self._inside, "call", None)
        if inside:  # a replay may skip the tool or check that asks, so its calls have numbers of their own
            inside[1] += 1
            return self._where, f"{inside[0]}.m{inside[1]}"
        self._models += 1
        return self._where, f"{self._where.step_id}.m{self._models}"

    @contextmanager
    def inside(self, place: str) -> Iterator[None]:
        """Number the model calls of this thread within a tool call or a check."""
        self._inside.call = [place, 0]
        try:
            yield
        finally:
            self._inside.call = None

    def expect_calls(self, calls: Iterable[tuple[str, Any]]) -> None:
        """Number the tool calls of a message, so that parallel ones keep the order of the model."""
        for name, arguments in calls:
            self._tools += 1
            self._expected.append((self._tools, name, arguments))
            self._side_by_side.add(self._tools)

    def explains(self, number: int, *, is_block: bool = False) -> Callable[[str], bool]:
        """Return a test of call ids: may an earlier attempt have made that call before this one, number `number`?

        True for calls that the model requested in parallel, and for the calls that a code block makes.
        """

        def may_be(call_id: str) -> bool:
            for (agent_run, at), place in zip(self._places(number), call_id.split("/"), strict=False):
                step, other = map(int, place.split("."))
                if step != agent_run._steps:  # noqa: SLF001 - of this class
                    return False
                if other != at:
                    return (is_block and agent_run is self) or {at, other} <= agent_run._side_by_side  # noqa: SLF001
            return True

        return may_be

    def run_check(self, check: Callable[[], bool]) -> bool:
        """Run a check of the final answer as an effect."""
        self._checks += 1
        step_id = self._where.step_id if self._where else str(self._steps)
        key, journal = f"check:{step_id}.c{self._checks}", self.recorder.journal
        if known := journal.take(key, lambda _: True):
            return bool(known.outcome(()))
        journal.begin(key)
        self.recorder.check()
        try:
            with self.inside(f"{step_id}.c{self._checks}"):
                effect = Effect(dumps(check()))
        except Exception as error:
            self.recorder.emit(None, (key, encode_raised(error).to_bytes()))
            raise
        self.recorder.emit(None, (key, effect.to_bytes()))
        return bool(effect.outcome(()))

    def tool_call(self, name: str, arguments: Any, *, is_block: bool = False) -> ToolCallInProgress:
        self.recorder.check()
        if self._where is None:  # an agent with its own loop
            self._open("action")
        assert self._where
        with self._lock:
            number = self._number_of(name, arguments)
        call = ToolCall(
            call_id=f"{self._where.step_id}.{number}",
            name=utf8_text(name),
            arguments=json_form(arguments),
            agent=self.path,
            step_id=self._where.step_id,
            internal=name in INTERNAL_TOOLS,
            ok=False,
            duration_ms=0.0,
        )
        return ToolCallInProgress(self.recorder, self._where, call, self.explains(number, is_block=is_block))

    def finish(self, step: MemoryStep) -> StepFinished | None:
        """Close the open step and return its event. None if the step did not begin in this run."""
        where, self._where = self._where, None
        self._expected.clear()
        if where is None or not isinstance(step, ActionStep | PlanningStep):
            return None
        repair_fields(step)  # of a managed agent: other steps are repaired before they are packed
        usage, duration = step.token_usage, step.timing.duration
        error = getattr(step, "error", None)
        observations = getattr(step, "observations", None)
        return StepFinished(
            where=where,
            kind=self._kind,
            error=StepError(type(error).__name__, truncated(str(error))) if error else None,
            observations=truncated(str(observations)) if observations is not None else None,
            images=stored_images(getattr(step, "observations_images", None)),
            is_final_answer=bool(getattr(step, "is_final_answer", False)),
            usage=Usage(usage.input_tokens, usage.output_tokens) if usage else None,
            duration_ms=round(duration * 1000, 3) if duration is not None else None,
        )

    def _places(self, number: int) -> list[tuple[AgentRun, int]]:
        outer = self._parent._places(self._parent_number) if self._parent else []  # noqa: SLF001 - of this class
        return [*outer, (self, number)]

    def _open(self, kind: StepKind) -> None:
        if self._parent is None:
            self.recorder.check_pause()
        self._steps += 1
        self._models = self._tools = self._checks = 0
        self._side_by_side = set()
        self._kind = kind
        step_id = f"{self._parent_call_id}/{self._steps}" if self._parent_call_id else str(self._steps)
        self._where = Where(step_id, self._steps, self.path, self._parent_call_id, self.recorder.attempt)
        self.recorder.emit(StepStarted(self._where, kind))

    def _number_of(self, name: str, arguments: Any) -> int:
        for exact in (True, False):  # an argument may have been replaced by the variable that it names
            for place, (number, expected_name, expected) in enumerate(self._expected):
                if expected_name == name and (not exact or _equal(expected, arguments)):
                    del self._expected[place]
                    return number
        self._tools += 1
        return self._tools


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - foreign values may fail to compare
        return False
