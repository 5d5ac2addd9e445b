"""Run of one agent within a turn: its steps, model calls and tool calls get numbers that a replay repeats."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any, Literal, NoReturn, Self

from smolagents.memory import ActionStep, MemoryStep, PlanningStep
from smolagents.monitoring import Timing, TokenUsage

from smolsessions.agents.models.token_usage import DetailedUsage, total_usage
from smolsessions.agents.run.effects import Effect, as_text, encode_raised
from smolsessions.agents.run.failures import TurnStopped, TurnSuspended
from smolsessions.agents.run.journal import digest_of
from smolsessions.agents.run.turn_run import TurnRun
from smolsessions.agents.values import dumps
from smolsessions.agents.values.images import stored_images
from smolsessions.agents.values.json_forms import json_form, truncate_json, truncated, utf8_text
from smolsessions.agents.values.results import error_text
from smolsessions.caller import CALLER
from smolsessions.core.events import StepError, StepFinished, StepKind, StepPlace, StepStarted, ToolCalled, ToolReturned
from smolsessions.core.journal_keys import CallKey
from smolsessions.core.records import ToolCall

INTERNAL_TOOLS = frozenset({"python_interpreter", "final_answer"})
MAX_KEY_BYTES = 1024 * 1024  # of the arguments that a key stands for


@dataclass(slots=True)
class _Nested:
    """A tool call or check in progress, and the numbers of model and tool calls that its own code made so far."""

    agent_run: AgentRun
    place: str
    models: int = 0
    tools: int = 0


_NESTED: ContextVar[_Nested] = ContextVar("nested")


class AgentRun:
    """Run of one agent within a turn. It numbers the agent's steps and calls. An agent has one run at a time."""

    def __init__(
        self, turn_run: TurnRun, path: str, parent_call_id: str | None = None, parent: AgentRun | None = None
    ) -> None:
        """For a managed agent: `parent_call_id` is the call that started this run, `parent` the run that made it."""
        self.waits = False
        """True once a call within this run waits for a person: the run makes no model call any more."""
        self.notes: list[str] = []
        """Sentences for the model about decisions of persons, for the observations of the open step."""
        self._parent = parent
        self.turn_run = turn_run
        self.path = path
        self._parent_call_id = parent_call_id
        self.where: StepPlace | None = None
        """The open step."""
        self._kind: StepKind = "action"
        self.steps = 0
        """Number of the steps that have begun."""
        self._models = self._tools = self._checks = 0
        self._replayed_s = 0.0
        """Duration of the calls of the open step that earlier attempts made."""
        self.replays_block = False
        """True while a known block of code calls its tools again."""
        self._step_id = ""
        self._expected: dict[int, tuple[str, Any]] = {}
        """Names and arguments of the tool calls that the model requested, by their numbers."""
        self.plan_usage: TokenUsage | None = None
        """Tokens of the last plan, of which smolagents keeps two numbers."""
        self.before_model_call: Callable[[], None] = lambda: None
        """Writes finished steps: smolagents yields a plan before it is in the memory."""
        self._lock = threading.Lock()  # a ToolCallingAgent's parallel calls

    def model_call(self, kind: StepKind) -> tuple[StepPlace, str]:
        """Begin a model call, and a step if none is open. Return its place and its id."""
        self.turn_run.check()
        self.check_waits()
        where = self.where or self._open(kind)
        if (nested := _NESTED.get(None)) and nested.agent_run is self:
            nested.models += 1
            return where, f"{nested.place}.m{nested.models}"
        self._models += 1
        return where, f"{where.step_id}.m{self._models}"

    def check_waits(self) -> None:
        """Raise `TurnSuspended` if a call within this run waits for a person."""
        if self.waits:
            raise TurnSuspended

    def wait(self) -> NoReturn:
        """Leave this run, and the runs that it is part of, to wait for a person."""
        run: AgentRun | None = self
        while run:
            run.waits, run = True, run._parent  # noqa: SLF001 - its own class
        raise TurnSuspended

    def count_replayed(self, call_id: str, effect: Effect) -> None:
        """Count the time of a call that an earlier attempt made, for the open steps of this run and of its callers.

        Times of parallel calls overlap, and those of a block's calls are part of its own.
        """
        run: AgentRun | None = self
        while run and call_id not in self.turn_run.parallel_calls and not run.replays_block:
            run._replayed_s += effect.duration_ms / 1000  # noqa: SLF001 - its own class
            call_id, run = run._parent_call_id or "", run._parent  # noqa: SLF001

    def complete(self, step: MemoryStep) -> None:
        """Add the details of a plan's tokens, and the time of the calls that a replay took from the journal."""
        if isinstance(step, PlanningStep) and isinstance(self.plan_usage, DetailedUsage):
            step.token_usage = self.plan_usage
        timing = getattr(step, "timing", None)
        if self._replayed_s and self.where and isinstance(timing, Timing):
            timing.start_time -= self._replayed_s

    @contextmanager
    def nested(self, place: str) -> Iterator[None]:
        """Number the calls that are made meanwhile within the tool call or check at this place.

        A replay takes the outer call from the journal and then makes none of them.
        """
        token = CALLER.set(self.turn_run.caller)
        nested_token = _NESTED.set(_Nested(self, place))  # threads and tasks of the tool inherit it
        try:
            yield
        finally:
            _NESTED.reset(nested_token)
            CALLER.reset(token)

    def expect_calls(self, calls: Collection[tuple[str, Any]]) -> None:
        """Number the tool calls of a message, so that parallel ones keep the order of the model."""
        for call in calls:
            self._tools += 1
            self._expected[self._tools] = call
            if len(calls) > 1:
                self.turn_run.parallel_calls.add(f"{self._step_id}.{self._tools}")

    def may_follow(self, call_id: str, other_id: str, *, is_block: bool = False) -> bool:
        """True if an earlier attempt may have made the other call before this one.

        Such calls are those that the model requested in parallel, and those that a code block makes.
        """
        for own, other in zip(_with_outer_calls(call_id), _with_outer_calls(other_id), strict=False):
            if own != other:
                is_same_step = own.rpartition(".")[0] == other.rpartition(".")[0]
                is_parallel = {own, other} <= self.turn_run.parallel_calls
                return is_same_step and ((is_block and own == call_id) or is_parallel)
        return True

    def run_check(self, check: Callable[[], bool]) -> bool:
        self._checks += 1
        place, journal = f"{self._step_id}.c{self._checks}", self.turn_run.journal
        key = CallKey("check", place)
        if known := journal.take(key, lambda _: True):
            return bool(known.outcome(()))
        journal.begin(key)
        self.turn_run.check()
        try:
            with self.nested(place):
                passed = check()
        except Exception as error:  # of an author's check
            journal.write(key, encode_raised(error))
            raise
        journal.write(key, Effect(dumps(passed)))
        return passed

    def tool_call(self, name: str, arguments: Any, kind: Literal["tool", "code"] | None = None) -> ToolCallInProgress:
        """Begin a call. An effect of this kind is looked up in the journal. None: the call is no effect."""
        self.turn_run.check()
        where = self.where or self._open("action")  # an agent with its own loop has no step yet
        if (nested := _NESTED.get(None)) and nested.agent_run is self:
            nested.tools += 1
            call_id = f"{nested.place}/0.{nested.tools}"  # the steps of an agent begin with 1
        else:
            with self._lock:
                number = 0
                for each, (expected, given) in self._expected.items():
                    if expected != name:
                        continue
                    number = number or each  # an argument may have been replaced by the variable that it names
                    with suppress(Exception):  # foreign values may fail to compare
                        if given == arguments:
                            number = each
                            break
                if number:
                    del self._expected[number]
                else:
                    self._tools += 1
                    number = self._tools
            call_id = f"{where.step_id}.{number}"
        record = ToolCall(
            call_id=call_id,
            name=utf8_text(name),
            arguments=json_form(arguments),
            agent=self.path,
            step_id=where.step_id,
            internal=name in INTERNAL_TOOLS,
            ok=False,
            duration_ms=0.0,
        )
        if kind is None:
            return ToolCallInProgress(self.turn_run, where, record)
        journal = self.turn_run.journal
        key = CallKey(kind, call_id, record.name, digest_of(record.name, arguments, max_bytes=MAX_KEY_BYTES)[:16])
        known = journal.take(key, partial(self.may_follow, call_id, is_block=kind == "code"))
        if known or journal.was_begun(key):
            is_repeated = known.repeated if known and not known.is_opaque else True
            record = replace(record, repeated=is_repeated)
        if known and known.is_opaque:
            known = None
        if known:
            self.count_replayed(call_id, known)
        return ToolCallInProgress(self.turn_run, where, record, key, known)

    def finish(self, step: MemoryStep) -> StepFinished | None:
        """Close the open step and return its event. None if the step did not begin in this run."""
        where, self.where = self.where, None
        self._expected.clear()
        if where is None or not isinstance(step, ActionStep | PlanningStep):
            return None
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
            usage=total_usage([usage]) if usage else None,
            duration_ms=round(duration * 1000, 3) if duration is not None else None,
        )

    def _open(self, kind: StepKind) -> StepPlace:
        if self._parent_call_id is None and self.turn_run.bridge.pause_requested:
            raise TurnStopped  # another worker continues from here
        self.steps += 1
        self._models = self._tools = self._checks = 0
        self._replayed_s = 0.0
        self._kind = kind
        self._step_id = f"{self._parent_call_id}/{self.steps}" if self._parent_call_id else str(self.steps)
        self.where = at = StepPlace(self._step_id, self.steps, self.path, self._parent_call_id, self.turn_run.attempt)
        self.turn_run.emit(StepStarted(at, kind))
        return at


@dataclass(slots=True)
class ToolCallInProgress:
    """A tool call that has begun: `with call: call.result = …`. Its effect is journaled with the event of its end."""

    turn_run: TurnRun
    where: StepPlace
    record: ToolCall
    key: CallKey | None = None
    """None: the call is no effect."""
    known: Effect | None = None
    """Effect that an earlier attempt journaled."""
    result: Any = None
    effect: Effect | None = None
    """Effect of this attempt."""
    is_over: bool = False
    """True if the call is not made, and `result` stands in its place."""
    is_refused: bool = False
    """True if a person refused it, or an answer is missing."""
    since: float = field(default_factory=time.perf_counter)

    def answer(self, text: str, *, is_refused: bool = False) -> None:
        """End this call without making it. The model gets the text as its result."""
        self.result, self.is_over, self.is_refused = text, True, is_refused
        if self.key and not self.known:
            self.effect = Effect(dumps(text))

    def begin(self, *, is_harmless: bool = False) -> None:
        """Journal the start of this call. Unless it is harmless, wait until this and all earlier writes are stored."""
        assert self.key, "the call is an effect"
        self.turn_run.journal.begin(self.key, is_harmless=is_harmless)
        self.turn_run.check()
        self.since = time.perf_counter()

    def __enter__(self) -> Self:
        call = self.record
        self.turn_run.note_call(call)
        arguments = truncate_json(call.arguments)
        self.turn_run.emit(
            ToolCalled(self.where, call.call_id, call.name, arguments, call.internal, repeated=call.repeated)
        )
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, TurnSuspended):
            return  # it ends in a later attempt
        took_ms = round((time.perf_counter() - self.since) * 1000, 3)
        duration_ms = self.known.duration_ms if self.known else took_ms
        ok = error is None and not self.is_refused
        self.record = call = replace(self.record, ok=ok, duration_ms=duration_ms)
        self.turn_run.note_call(call)
        if isinstance(error, TurnStopped) and self.turn_run.bridge.hands_over:
            return
        result = words = None
        if isinstance(error, TurnStopped):
            words = "stopped"
        elif error:
            words = truncated(f"{type(error).__name__}: {error_text(error)}")
        elif self.is_refused:
            words = truncated(self.result)
        else:
            result = truncated(as_text(self.result))
        event = ToolReturned(
            self.where,
            call.call_id,
            call.name,
            call.internal,
            ok=ok,
            result=result,
            error=words,
            duration_ms=duration_ms,
            repeated=call.repeated,
        )
        if self.effect and self.key:
            self.effect.duration_ms, self.effect.repeated = duration_ms, call.repeated
            self.turn_run.emit(event, self.turn_run.journal.entry(self.key, self.effect))
        else:
            self.turn_run.emit(event)


def stoppable(end: Callable[[], object]) -> AbstractContextManager[None]:
    """Wait within a tool call: a stop of its turn calls `end`. Outside a turn nothing does."""
    nested = _NESTED.get(None)
    return nested.agent_run.turn_run.stoppable(end) if nested else nullcontext()


def _with_outer_calls(call_id: str) -> Iterator[str]:
    """Yield the outermost call that a call is part of, and so on down to the call itself."""
    return accumulate(call_id.split("/"), "{}/{}".format)
