"""What a turn does, as events: every agent's steps, model calls and tool calls, from whatever thread they come."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from smolagents.memory import ActionStep, PlanningStep

from app.agents.pictures import stored_images
from app.agents.plain import plain, text_of
from app.events import StepError, StepFinished, StepStarted, ToolCalled, ToolReturned, Where
from app.records import ToolCall, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from smolagents.memory import MemoryStep
    from smolagents.monitoring import TokenUsage

    from app.events import StepEvent, StepKind
    from app.ports import Stage

INTERNAL_TOOLS = frozenset({"python_interpreter", "final_answer"})
MAX_SHOWN_CHARS = 2000  # of a text in an event; the whole is in the steps
MOST_HALTS = 100
MOST_WHOLE_CALLS = 200  # of a turn, recorded with long texts in their arguments
_NUMBER = re.compile(r"\d+")


class Halt(BaseException):
    """The turn is to stop. No agent and no tool means to catch it; where one does, the next call raises it again."""


class Recorder:
    """The record of one turn. What it is told goes to the stage as events."""

    def __init__(self, stage: Stage, attempt: int) -> None:
        self.attempt = attempt
        self._stage = stage
        self._calls: dict[str, ToolCall] = {}
        self._used: list[TokenUsage] = []
        self._halts = 0
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
        """Raise `Halt` if the turn is to stop. Code that swallows it again and again is held here for good."""
        if self._stage.halted:
            if threading.get_ident() == self._thread:  # others are an agent's own, one for each parallel call
                self._halts += 1
                if self._halts > MOST_HALTS:
                    threading.Event().wait()  # the worker gives this thread up
            raise Halt

    def tell(self, event: StepEvent, effect: tuple[str, bytes] | None = None) -> None:
        self._stage.tell(event, None, effect)

    def note_call(self, call: ToolCall) -> None:
        if len(self._calls) > MOST_WHOLE_CALLS:
            call = replace(call, arguments=shortened(call.arguments))
        self._calls[call.call_id] = call

    def note_usage(self, usage: TokenUsage | None) -> None:
        if usage:
            self._used.append(usage)


class Track:
    """The run of one agent within a turn: numbers its steps and calls. An agent runs once at a time."""

    def __init__(self, recorder: Recorder, path: str, parent_call_id: str | None = None) -> None:
        self.recorder = recorder
        self.path = path
        self._parent_call_id = parent_call_id
        self._where: Where | None = None
        self._kind: StepKind = "action"
        self._steps = self._models = self._tools = 0
        self._asked: list[tuple[int, str, Any]] = []
        self.before_model_call: Callable[[], None] = lambda: None
        """Keeps what was finished meanwhile: a plan is shown by smolagents before it is in the memory."""
        self._lock = threading.Lock()  # a ToolCallingAgent's parallel calls

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
        self._models += 1
        return self._where, f"{self._where.step_id}.m{self._models}"

    def ask(self, calls: Iterable[tuple[str, Any]]) -> None:
        """Number the tool calls that the model asks for, so that parallel ones are told apart in its order."""
        for name, arguments in calls:
            self._tools += 1
            self._asked.append((self._tools, name, arguments))

    def tool_call(self, name: str, arguments: Any) -> CallInProgress:
        """Begin a tool call."""
        self.recorder.check()
        if self._where is None:  # an agent with a loop of its own
            self._open("action")
        assert self._where
        with self._lock:
            number = self._number_of(name, arguments)
        call = ToolCall(
            call_id=f"{self._where.step_id}.{number}",
            name=text_of(name),
            arguments=plain(arguments),
            agent=self.path,
            step_id=self._where.step_id,
            internal=name in INTERNAL_TOOLS,
            ok=False,
            duration_ms=0.0,
        )
        return CallInProgress(self.recorder, self._where, call)

    def finish(self, step: MemoryStep) -> StepFinished | None:
        """Close the open step and describe how it ended; nothing for a step that never began here."""
        where, self._where = self._where, None
        self._asked.clear()
        if where is None or not isinstance(step, ActionStep | PlanningStep):
            return None
        usage, duration = step.token_usage, step.timing.duration
        error = getattr(step, "error", None)
        observations = getattr(step, "observations", None)
        return StepFinished(
            where=where,
            kind=self._kind,
            error=StepError(type(error).__name__, shown(str(error))) if error else None,
            observations=shown(str(observations)) if observations is not None else None,
            images=stored_images(getattr(step, "observations_images", None)),
            is_final_answer=bool(getattr(step, "is_final_answer", False)),
            usage=Usage(usage.input_tokens, usage.output_tokens) if usage else None,
            duration_ms=round(duration * 1000, 3) if duration is not None else None,
        )

    def _open(self, kind: StepKind) -> None:
        self._steps += 1
        self._models = self._tools = 0
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


class CallInProgress:
    """A tool call that has begun: `with call: call.result = tool(…)`. A journal keeps `effect` of it."""

    def __init__(self, recorder: Recorder, where: Where, call: ToolCall) -> None:
        self.result: Any = None
        self.effect = b""
        self._recorder = recorder
        self._where = where
        self._call = call
        self._since = time.perf_counter()

    @property
    def call_id(self) -> str:
        return self._call.call_id

    def __enter__(self) -> Self:
        call = self._call
        self._recorder.note_call(call)
        arguments = shortened(call.arguments)
        self._recorder.tell(ToolCalled(self._where, call.call_id, call.name, arguments, call.internal))
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        duration_ms = round((time.perf_counter() - self._since) * 1000, 3)
        call = replace(self._call, ok=error is None, duration_ms=duration_ms)
        self._recorder.note_call(call)
        self._recorder.tell(
            ToolReturned(
                self._where,
                call.call_id,
                call.name,
                call.internal,
                ok=error is None,
                result=None if error else shown(as_text(self.result)),
                error=shown(_words(error)) if error else None,
                duration_ms=duration_ms,
            ),
            (self._key, self.effect) if self.effect else None,
        )

    @property
    def _key(self) -> str:
        """Name the effect the same in every replay: by its place, and a digest of what was asked."""
        asked = json.dumps([self._call.name, self._call.arguments], sort_keys=True).encode()
        return f"effect:{self._call.call_id}:{hashlib.sha256(asked).hexdigest()[:16]}"


def shown(text: str) -> str:
    """Cut a text for an event, with a mark."""
    if len(text) > MAX_SHOWN_CHARS:
        text = f"{text[:MAX_SHOWN_CHARS]}… ({len(text)} characters)"
    return text_of(text)


def as_text(value: Any) -> str:
    """Give a value as text: a text as it is, all else as its JSON form."""
    value = plain(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def shortened(value: Any) -> Any:
    """Cut the texts in JSON data; what is large without long texts becomes one text."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, dict) and len(value) <= _MOST_MEMBERS:
        return {shown(name): shortened(member) for name, member in value.items()}
    if isinstance(value, list) and len(value) <= _MOST_MEMBERS:
        return [shortened(member) for member in value]
    return shown(json.dumps(value, ensure_ascii=False)) if isinstance(value, dict | list) else value


def _words(error: BaseException) -> str:
    if isinstance(error, Halt):
        return "stopped"
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - a foreign exception's text may be code that fails
        return type(error).__name__


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - foreign values may fail to compare
        return False


def _place(call_id: str) -> list[int]:
    return [int(number) for number in _NUMBER.findall(call_id)]


_MOST_MEMBERS = 100
