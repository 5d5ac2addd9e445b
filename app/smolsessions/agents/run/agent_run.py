"""Run of one agent within a turn: its steps, model calls and tool calls get numbers that a replay repeats."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, NoReturn, Self, TypeVar

from smolagents.memory import ActionStep, MemoryStep, PlanningStep
from smolagents.monitoring import Timing

from smolsessions.agents.run.effects import Effect, as_text, encode_raised, error_text
from smolsessions.agents.run.failures import TurnStopped, TurnWaiting
from smolsessions.agents.run.recorder import RECORDER, Recorder, digest_of, whole_digest_of
from smolsessions.agents.values import dumps
from smolsessions.agents.values.images import stored_images
from smolsessions.agents.values.json_forms import flat_form, json_form, truncate_json, truncated, utf8_text
from smolsessions.caller import CALLER
from smolsessions.core.events import StepError, StepFinished, StepKind, StepStarted, ToolCalled, ToolReturned, Where
from smolsessions.core.records import ToolCall, Usage

T = TypeVar("T")
INTERNAL_TOOLS = frozenset({"python_interpreter", "final_answer"})


class AgentRun:
    """Run of one agent within a turn. It numbers the agent's steps and calls. An agent has one run at a time."""

    def __init__(
        self, recorder: Recorder, path: str, parent_call_id: str | None = None, parent: AgentRun | None = None
    ) -> None:
        """For a managed agent: `parent_call_id` is the call that started this run, `parent` the run that made it."""
        self.waits = False
        """True once a call within this run waits for a person: the run makes no model call any more."""
        self.notes: list[str] = []
        """Sentences for the model about decisions of persons, for the observations of the open step."""
        self._parent = parent
        self.recorder = recorder
        self.path = path
        self._parent_call_id = parent_call_id
        self.where: Where | None = None
        """The open step."""
        self._kind: StepKind = "action"
        self._steps = self._models = self._tools = self._checks = 0
        self._replayed_s = 0.0
        """Duration of the calls of the open step that earlier attempts made."""
        self.replays_block = False
        """True while a known block of code calls its tools again."""
        self._step_id = ""
        self._expected: list[tuple[int, str, Any]] = []
        self.before_model_call: Callable[[], None] = lambda: None
        """Writes finished steps: smolagents yields a plan before it is in the memory."""
        self._lock = threading.Lock()  # a ToolCallingAgent's parallel calls
        self._inside: dict[int, list[Any]] = {}
        """Of each thread that runs a tool call or a check: its place, and the numbers of model and tool calls in it."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the managed agents from the root down to this run's agent. The root has none."""
        outer = self._parent
        return (*outer.names, self.path.removeprefix(f"{outer.path}/")) if outer else ()

    def model_call(self, kind: StepKind) -> tuple[Where, str]:
        """Begin a model call, and a step if none is open. Return its place and its id."""
        self.recorder.check()
        self.check_waits()
        where = self.where or self._open(kind)
        inside = self._inside.get(threading.get_ident())
        if inside:
            inside[1] += 1
            return where, f"{inside[0]}.m{inside[1]}"
        self._models += 1
        return where, f"{where.step_id}.m{self._models}"

    def check_waits(self) -> None:
        """Raise `TurnWaiting` if a call within this run waits for a person."""
        if self.waits:
            raise TurnWaiting

    def wait(self) -> NoReturn:
        """Leave this run, and the runs that it is part of, to wait for a person."""
        run: AgentRun | None = self
        while run:
            run.waits, run = True, run._parent  # noqa: SLF001 - its own class
        raise TurnWaiting

    def count_replayed(self, call_id: str, effect: Effect) -> None:
        """Count the time of a call that an earlier attempt made, for the open steps of this run and of its callers.

        Times of parallel calls overlap, and those of a block's calls are part of its own.
        """
        run: AgentRun | None = self
        while run and call_id not in self.recorder.parallel_calls and not run.replays_block:
            run._replayed_s += effect.duration_ms / 1000  # noqa: SLF001 - its own class
            call_id, run = run._parent_call_id or "", run._parent  # noqa: SLF001

    def add_replayed_time(self, step: MemoryStep) -> None:
        """Let a finished step begin earlier by the time of the calls that a replay took from the journal."""
        timing = getattr(step, "timing", None)
        if self._replayed_s and self.where and isinstance(timing, Timing):
            timing.start_time -= self._replayed_s

    def run_inside(self, place: str, act: Callable[[], T]) -> T:
        """Run a tool call or a check. Calls that this thread makes meanwhile are numbered within it.

        A replay takes the outer call from the journal and then makes none of them.
        """
        thread = threading.get_ident()
        outer = self._inside.get(thread)  # a tool may call another tool of its agent
        self._inside[thread] = [place, 0, 0]
        token, recorder_token = CALLER.set(self.recorder.caller), RECORDER.set(self.recorder)
        try:
            return act()
        finally:
            RECORDER.reset(recorder_token)
            CALLER.reset(token)
            if outer:
                self._inside[thread] = outer
            else:
                del self._inside[thread]

    def expect_calls(self, calls: Collection[tuple[str, Any]]) -> None:
        """Number the tool calls of a message, so that parallel ones keep the order of the model."""
        for name, arguments in calls:
            self._tools += 1
            self._expected.append((self._tools, name, arguments))
            if len(calls) > 1:
                self.recorder.parallel_calls.add(f"{self._step_id}.{self._tools}")

    def explains(self, call_id: str, other_id: str, *, is_block: bool = False) -> bool:
        """True if an earlier attempt may have made the other call before this one.

        Such calls are those that the model requested in parallel, and those that a code block makes.
        """
        for own, other in zip(_with_outer_calls(call_id), _with_outer_calls(other_id), strict=False):
            if own != other:
                is_same_step = own.rpartition(".")[0] == other.rpartition(".")[0]
                is_parallel = {own, other} <= self.recorder.parallel_calls
                return is_same_step and ((is_block and own == call_id) or is_parallel)
        return True

    def run_check(self, check: Callable[[], bool]) -> bool:
        """Run a check of the final answer as an effect."""
        self._checks += 1
        place, journal = f"{self._step_id}.c{self._checks}", self.recorder.journal
        key = f"check:{place}"
        if known := journal.take(key, lambda _: True):
            return bool(known.outcome(()))
        journal.begin(key)
        self.recorder.check()
        try:
            passed = self.run_inside(place, check)
        except Exception as error:
            journal.write(key, encode_raised(error))
            raise
        journal.write(key, Effect(dumps(passed)))
        return passed

    def tool_call(self, name: str, arguments: Any, kind: str = "") -> ToolCallInProgress:
        """Begin a call. An effect of this kind, `tool` or `code`, is looked up in the journal."""
        self.recorder.check()
        where = self.where or self._open("action")  # an agent with its own loop has no step yet
        if inside := self._inside.get(threading.get_ident()):
            inside[2] += 1
            call_id = f"{inside[0]}/0.{inside[2]}"  # the steps of an agent begin with 1
        else:
            with self._lock:
                call_id = f"{where.step_id}.{self._number_of(name, arguments)}"
        flat = flat_form(arguments)
        record = ToolCall(
            call_id=call_id,
            name=utf8_text(name),
            arguments=json_form(arguments) if flat is None else flat,
            agent=self.path,
            step_id=where.step_id,
            internal=name in INTERNAL_TOOLS,
            ok=False,
            duration_ms=0.0,
        )
        call = ToolCallInProgress(self.recorder, where, record, flat)
        if kind:
            call.look_up(kind, arguments, partial(self.explains, record.call_id, is_block=kind == "code"))
            if call.known:
                self.count_replayed(record.call_id, call.known)
        return call

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
            usage=Usage(usage.input_tokens, usage.output_tokens) if usage else None,
            duration_ms=round(duration * 1000, 3) if duration is not None else None,
        )

    def _open(self, kind: StepKind) -> Where:
        if self._parent_call_id is None and self.recorder.bridge.pause_requested:
            raise TurnStopped  # another worker continues from here
        self._steps += 1
        self._models = self._tools = self._checks = 0
        self._replayed_s = 0.0
        self._kind = kind
        self._step_id = f"{self._parent_call_id}/{self._steps}" if self._parent_call_id else str(self._steps)
        self.where = where = Where(self._step_id, self._steps, self.path, self._parent_call_id, self.recorder.attempt)
        self.recorder.emit(StepStarted(where, kind))
        return where

    def _number_of(self, name: str, arguments: Any) -> int:
        for exact in (True, False):  # an argument may have been replaced by the variable that it names
            for place, (number, expected_name, expected) in enumerate(self._expected):
                if expected_name == name and (not exact or _equal(expected, arguments)):
                    del self._expected[place]
                    return number
        self._tools += 1
        return self._tools


class ToolCallInProgress:
    """A tool call that has begun: `with call: call.result = …`. Its effect is journaled with the event of its end."""

    def __init__(self, recorder: Recorder, where: Where, record: ToolCall, flat: dict[str, str] | None) -> None:
        self.record = record
        self.result: Any = None
        self.known: Effect | None = None
        """The effect that an earlier attempt journaled. None: the call is to be made."""
        self.effect: Effect | None = None
        self.refusal: str | None = None
        """Sentence in place of a result: a person rejected the call."""
        self._key = ""
        self._recorder = recorder
        self._where = where
        self._flat = flat
        self._since = time.perf_counter()

    def look_up(self, kind: str, arguments: Any, explains: Callable[[str], bool]) -> None:
        """Look for this call in the journal. `explains` is True for calls that may have been made before this one."""
        journal, record = self._recorder.journal, self.record
        self._key = f"{kind}:{record.call_id}:{record.name}:{digest_of(record.name, arguments, self._flat)}"
        if not self._recorder.is_replay:
            return
        known = journal.take(self._key, explains)
        if known and not known.is_opaque:
            self.known = known
        if known or journal.was_begun(self._key):
            self.record = replace(record, repeated=self.known.repeated if self.known else True)

    def digest(self, arguments: Any, stored_classes: Collection[type]) -> str:
        """Return the whole hash of this call's arguments, large ones too. The journal's key has less."""
        return whole_digest_of(self.record.name, arguments, self._flat, stored_classes)

    def refuse(self, sentence: str) -> None:
        """End this call without making it. The model gets the sentence for its result."""
        self.refusal = self.result = sentence
        if self._key and not self.known:
            self.effect = Effect(sentence.encode(), "text")

    def answer(self, text: str) -> None:
        """End this call with a person's answer."""
        self.result = text
        if not self.known:
            self.effect = Effect(text.encode(), "text")

    def begin(self, *, is_harmless: bool = False) -> None:
        """Journal the start of this call. Unless it is harmless, wait until this and all earlier writes are stored."""
        self._recorder.journal.begin(self._key, is_harmless=is_harmless)
        self._recorder.check()
        self._since = time.perf_counter()

    def run(self, act: Callable[[], Any], encode: Callable[[Any], tuple[Effect, Any]]) -> Any:
        """Make the call. Return or raise its result as it comes out of the journal."""
        self.begin()
        try:
            value = act()
        except Exception as error:
            self.effect = encode_raised(error)
            raise self.effect.error from error
        self.effect, value = encode(value)
        return value

    def __enter__(self) -> Self:
        call = self.record
        self._recorder.note_call(call)
        arguments = truncate_json(call.arguments) if self._flat is None else self._flat
        self._recorder.emit(
            ToolCalled(self._where, call.call_id, call.name, arguments, call.internal, repeated=call.repeated)
        )
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, TurnWaiting):
            return  # it ends in a later attempt
        took_ms = round((time.perf_counter() - self._since) * 1000, 3)
        duration_ms = self.known.duration_ms if self.known else took_ms
        call = self.record
        made = (call.call_id, call.name, call.arguments, call.agent, call.step_id, call.internal)
        ok = error is None and self.refusal is None
        self._recorder.note_call(ToolCall(*made, ok, duration_ms, call.repeated, call.approval))
        if isinstance(error, TurnStopped) and self._recorder.bridge.hands_over:
            return
        result = words = None
        if self.refusal:
            words = truncated(self.refusal)
        elif error is None:
            result = truncated(as_text(self.result))
        else:
            words = f"{type(error).__name__}: {error_text(error)}"
            words = "stopped" if isinstance(error, TurnStopped) else truncated(words)
        event = ToolReturned(
            self._where,
            call.call_id,
            call.name,
            call.internal,
            ok=ok,
            result=result,
            error=words,
            duration_ms=duration_ms,
            repeated=call.repeated,
        )
        if self.effect:
            self.effect.duration_ms, self.effect.repeated = duration_ms, call.repeated
        self._recorder.emit(event, (self._key, self._recorder.journal.bytes_of(self.effect)) if self.effect else None)


def _with_outer_calls(call_id: str) -> Iterator[str]:
    """Yield the outermost call that a call is part of, and so on down to the call itself."""
    return accumulate(call_id.split("/"), "{}/{}".format)


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - foreign values may fail to compare
        return False
