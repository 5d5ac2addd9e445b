"""What a turn does, as events: every agent's steps, model calls and tool calls, from whatever thread they come."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smolagents.memory import ActionStep, PlanningStep

from smolsessions.agents.memory.step_fields import repair_fields
from smolsessions.agents.run.cancellation import TurnStopped
from smolsessions.agents.run.effects import Effect, raised
from smolsessions.agents.run.journal import Journal
from smolsessions.agents.run.model_connections import ModelCall
from smolsessions.agents.run.replay_filter import ReplayFilter
from smolsessions.agents.run.tool_calls import CallInProgress
from smolsessions.agents.values import dumps
from smolsessions.agents.values.images import stored_images
from smolsessions.agents.values.json_forms import json_form, truncate_json, truncated, utf8_text
from smolsessions.core.events import MessageRestarted, StepError, StepFinished, StepStarted, Where
from smolsessions.core.records import ToolCall, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from smolagents.memory import MemoryStep
    from smolagents.monitoring import TokenUsage

    from smolsessions.core.agent_ports import EventBridge
    from smolsessions.core.events import StepEvent, StepKind
    from smolsessions.core.replay_state import ReplayState

INTERNAL_TOOLS = frozenset({"python_interpreter", "final_answer"})
MOST_HALTS = 100
MOST_WHOLE_CALLS = 200  # of a turn, recorded with long texts in their arguments
_NUMBER = re.compile(r"\d+")


class Recorder:
    """The record of one turn. What it is told goes to the stage as events, and what calls gave into the journal."""

    def __init__(self, bridge: EventBridge, attempt: int, replay: ReplayState | None = None) -> None:
        """`replay` is what earlier attempts left: it is not done again, and not told again."""
        self.attempt = attempt
        self.journal = Journal(bridge, replay)
        self._filter = ReplayFilter(replay.events) if replay else None
        self._bridge = bridge
        self._calls: dict[str, ToolCall] = {}
        self._used: list[TokenUsage] = []
        self._halts = self._side_calls = 0
        self._model_calls: set[ModelCall] = set()
        self._thread = threading.get_ident()

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """All tool calls, in the order of their places: that is how the models asked for them."""
        return tuple(sorted(self._calls.copy().values(), key=lambda call: _place(call.call_id)))

    @property
    def usage(self) -> Usage:
        """The tokens of all model calls, as the models report them."""
        used = list(self._used)
        return Usage(sum(each.input_tokens for each in used), sum(each.output_tokens for each in used))

    def check(self) -> None:
        """Raise `TurnStopped` if the turn is to stop. Code that swallows it again and again is held here for good."""
        if self._bridge.stop_requested or self.journal.diverged:
            if threading.get_ident() == self._thread:  # others are an agent's own, one for each parallel call
                self._halts += 1
                if self._halts > MOST_HALTS:
                    threading.Event().wait()  # the worker gives this thread up
            raise TurnStopped

    @contextmanager
    def model_call(self) -> Iterator[ModelCall]:
        """Begin a model call that `cut_model_calls` ends. Raises `TurnStopped` if the turn is to stop."""
        call = ModelCall()
        self._model_calls.add(call)
        try:
            self.check()
            yield call
        finally:
            self._model_calls.discard(call)

    def cut_model_calls(self) -> None:
        """End the connections of all model calls in progress, from any thread."""
        for call in self._model_calls.copy():
            call.cut()

    def check_pause(self) -> None:
        """Raise `TurnStopped` if another worker is to go on from here."""
        if self._bridge.pause_requested:
            raise TurnStopped

    @property
    def hands_over(self) -> bool:
        """What is broken off goes on elsewhere, and is shown there."""
        return self._bridge.hands_over

    def tell(self, event: StepEvent | None, effect: tuple[str, bytes] | None = None) -> None:
        told = self.unseen(event)
        if told or effect:
            self._bridge.emit(told, None, effect)

    def unseen(self, event: StepEvent | None) -> StepEvent | None:
        """Give of an event what earlier attempts have not shown."""
        return self._filter.unseen(event) if self._filter and event else event

    def restart(self, where: Where, call_id: str, *, is_retry: bool = False) -> None:
        """Tell readers that a model call is made again: before a retry, and if an earlier attempt showed its text."""
        was_shown = self._filter is not None and self._filter.forget(call_id)
        if is_retry or was_shown:
            self._bridge.emit(MessageRestarted(where, call_id))

    def seed(self, call_id: str) -> bytes:
        """Give what a block of code draws its random numbers from: the same in a replay."""
        return hashlib.sha256(self.journal.once("seed", lambda: os.urandom(16)) + call_id.encode()).digest()

    def next_side_call(self) -> str:
        """Name a model call beside the steps; asked for in the agent's own thread alone."""
        self._side_calls += 1
        return f"side{self._side_calls}"

    def note_call(self, call: ToolCall) -> None:
        if len(self._calls) > MOST_WHOLE_CALLS:
            call = replace(call, arguments=truncate_json(call.arguments))
        self._calls[call.call_id] = call

    def note_usage(self, usage: TokenUsage | None) -> None:
        if usage:
            self._used.append(usage)


class AgentRun:
    """The run of one agent within a turn: numbers its steps and calls. An agent runs once at a time."""

    def __init__(
        self, recorder: Recorder, path: str, parent: AgentRun | None = None, parent_call_id: str | None = None
    ) -> None:
        """`parent` is the run whose call `parent_call_id` this one is of."""
        self.recorder = recorder
        self.path = path
        self._parent = parent
        self._parent_call_id = parent_call_id
        self._parent_number = _place(parent_call_id)[-1] if parent_call_id else 0
        self._where: Where | None = None
        self._kind: StepKind = "action"
        self._steps = self._models = self._tools = self._checks = 0
        self._asked: list[tuple[int, str, Any]] = []
        self._side_by_side: set[int] = set()
        self.before_model_call: Callable[[], None] = lambda: None
        """Keeps what was finished meanwhile: a plan is shown by smolagents before it is in the memory."""
        self._lock = threading.Lock()  # a ToolCallingAgent's parallel calls
        self._inside = threading.local()

    @property
    def in_step(self) -> bool:
        """A step has begun and not ended."""
        return self._where is not None

    def model_call(self, kind: StepKind) -> tuple[Where, str]:
        """Begin a model call, and with it a step where none is open; give its place and its id."""
        self.recorder.check()
        if self._where is None:
            self._open(kind)
        assert self._where
        inside = getattr(self._inside, "call", None)
        if inside:  # somebody's own question, in a tool or a check: numbered there, for a replay may not come there
            inside[1] += 1
            return self._where, f"{inside[0]}.m{inside[1]}"
        self._models += 1
        return self._where, f"{self._where.step_id}.m{self._models}"

    @contextmanager
    def inside(self, place: str) -> Iterator[None]:
        """Let model calls of this thread be numbered in a tool call, or a check."""
        self._inside.call = [place, 0]
        try:
            yield
        finally:
            self._inside.call = None

    def ask(self, calls: Iterable[tuple[str, Any]]) -> None:
        """Number the tool calls that the model asks for, so that parallel ones are told apart in its order."""
        for name, arguments in calls:
            self._tools += 1
            self._asked.append((self._tools, name, arguments))
            self._side_by_side.add(self._tools)

    def explains(self, number: int, *, is_block: bool = False) -> Callable[[str], bool]:
        """Tell of a call whether an earlier attempt may have made it although this run is at its call `number` (or 0).

        So it is with what the model asked for side by side, and with what a block calls before it is over.
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

    def checked(self, check: Callable[[], bool]) -> bool:
        """Ask a check of the final answer, once."""
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
            self.recorder.tell(None, (key, raised(error).to_bytes()))
            raise
        self.recorder.tell(None, (key, effect.to_bytes()))
        return bool(effect.outcome(()))

    def tool_call(self, name: str, arguments: Any, *, is_block: bool = False) -> CallInProgress:
        """Begin a tool call."""
        self.recorder.check()
        if self._where is None:  # an agent with a loop of its own
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
        return CallInProgress(self.recorder, self._where, call, self.explains(number, is_block=is_block))

    def finish(self, step: MemoryStep) -> StepFinished | None:
        """Close the open step and describe how it ended; nothing for a step that never began here."""
        where, self._where = self._where, None
        self._asked.clear()
        if where is None or not isinstance(step, ActionStep | PlanningStep):
            return None
        repair_fields(step)  # of a managed agent; the others are restored before they are packed
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
        self.recorder.tell(StepStarted(self._where, kind))

    def _number_of(self, name: str, arguments: Any) -> int:
        for exact in (True, False):  # arguments may be changed on the way: a name that stands for a variable
            for place, (number, asked_name, asked) in enumerate(self._asked):
                if asked_name == name and (not exact or _same(asked, arguments)):
                    del self._asked[place]
                    return number
        self._tools += 1
        return self._tools


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - foreign values may fail to compare
        return False


def _place(call_id: str) -> list[int]:
    return [int(number) for number in _NUMBER.findall(call_id)]
