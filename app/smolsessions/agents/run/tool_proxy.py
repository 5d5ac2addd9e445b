"""Tools, managed agents and interpreters, seen: every real call is recorded, and is where a stop lands."""

from __future__ import annotations

import functools
import threading
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from smolagents.agent_types import handle_agent_output_types
from smolagents.default_tools import FinalAnswerTool
from smolagents.local_python_executor import LocalPythonExecutor
from smolagents.memory import ActionStep, FinalAnswerStep
from smolagents.remote_executors import RemotePythonExecutor

from smolsessions.agents.run.effects import Effect, Shown, returned, without_text
from smolsessions.agents.run.recorder import Track
from smolsessions.agents.sandbox.guard import stub
from smolsessions.agents.values.truncation import as_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from smolagents import MultiStepAgent, Tool
    from smolagents.local_python_executor import PythonExecutor
    from smolagents.memory import CallbackRegistry, MemoryStep

    from smolsessions.agents.run.tool_calls import CallInProgress

WAIT_S = 0.1
_DATA_OF_A_TOOL = ("description", "inputs", "output_type", "output_schema")
UNKNOWN_SENTENCE = (
    "it is not known whether this call of {name} had its effect: the process that made it ended before the tool "
    "returned. It is not made again. Find out before you call it once more, or tell the user."
)


class UnknownOutcomeError(RuntimeError):
    """A call of a tool that is unsafe to repeat was in flight when its process ended."""


class Keeper(Protocol):
    """Knows what a call changed beside its result: `agent.state`, and what a tool keeps for itself."""

    def before(self, tool: Any) -> object:
        """Look at a tool before its call."""
        ...

    def changed(self, tool: Any, before: object) -> dict[str, bytes]:
        """Give what changed since, by name."""
        ...

    def change(self, kept: dict[str, bytes]) -> None:
        """Make these changes, in a replay."""
        ...


class Seat:
    """Where an agent's proxies find the run that is on, set when it begins; `busy` is held by a managed agent's."""

    def __init__(self, carries: tuple[type, ...] = (), *, code_runs_in: str | None = None) -> None:
        """`code_runs_in` tells what an agent's tools are called by: code in a process of its own, in a thread, …."""
        self.track: Track | None = None
        self.busy = threading.Lock()
        self.carries = carries
        self.code_runs_in = code_runs_in
        self.author_streams = False
        """True if the author asked smolagents to stream, which joins an answer without text to an empty one."""
        self.unsafe: frozenset[str] = frozenset()
        self.keeper: Keeper | None = None

    def check(self) -> None:
        """Raise `Halt` if the turn is to stop."""
        if self.track:
            self.track.recorder.check()


class Proxy:
    """Passes for what it stands for, but for its class's identity; prompts are rendered from the real one.

    Outside a turn that it knows of (somebody runs a managed agent by himself) it only passes on.
    """

    __slots__ = ("_real", "_seat")
    _real: Any
    _seat: Seat

    def __init__(self, real: Any, seat: Seat) -> None:
        object.__setattr__(self, "_real", real)
        object.__setattr__(self, "_seat", seat)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_real"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._real)

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        return vars(self._real)


class ToolProxy(Proxy):
    """A tool. Its call is an effect: made once, and in a replay given back."""

    __slots__ = ()
    _real: Tool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        track = self._seat.track
        if track is None:
            return self._real(*args, **kwargs)
        arguments = _named(self._real, args, kwargs)
        call = track.tool_call(self._real.name, arguments)
        if type(self._real) is FinalAnswerTool:  # gives what it is given
            with call:
                call.result = self._real(*args, **kwargs)
            return call.result
        known = call.recall("tool", arguments)
        with call:
            if known:
                call.result = self._again(known)
            else:
                call.result = self._live(call, functools.partial(self._real, *args, **kwargs))
        return call.result

    def _again(self, known: Effect) -> Any:
        if self._seat.keeper and known.kept:
            self._seat.keeper.change(known.kept)
        return known.outcome(self._seat.carries)

    def _live(self, call: CallInProgress, act: Callable[[], Any]) -> Any:
        keeper = self._seat.keeper
        if call.repeated and self._is_unsafe:
            call.is_of_unknown_outcome()
            act = self._refuse
        before = keeper.before(self._real) if keeper else None
        track = self._seat.track
        assert track, "a turn is on"
        try:
            with track.inside(call.call_id):
                return call.live(act, self._kept)
        finally:
            if keeper and call.effect:
                call.effect = replace(call.effect, kept=keeper.changed(self._real, before))

    def _kept(self, value: Any) -> tuple[Effect, Any]:
        seat = self._seat
        if seat.code_runs_in == "process":
            return returned(value, seat.carries, as_plain=True)
        effect, again = returned(value, seat.carries, as_plain=False)
        if seat.code_runs_in is None:
            return effect, again
        return (effect if type(again) is type(value) else Effect()), value  # code in this process wants the live object

    @property
    def _is_unsafe(self) -> bool:
        return bool(getattr(self._real, "unsafe_to_repeat", False)) or self._real.name in self._seat.unsafe

    def _refuse(self) -> Any:
        raise UnknownOutcomeError(UNKNOWN_SENTENCE.format(name=self._real.name))


class AgentProxy(Proxy):
    """A managed agent, whose own proxies sit on `inner`. It runs once at a time: two runs at once would corrupt it."""

    __slots__ = ("_inner",)
    _real: MultiStepAgent
    _inner: Seat

    def __init__(self, real: MultiStepAgent, seat: Seat, inner: Seat) -> None:
        super().__init__(real, seat)
        object.__setattr__(self, "_inner", inner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(self._real, *args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run it as code of the user's own does that is not content with calling it."""
        if kwargs.get("stream"):
            return self._real.run(*args, **kwargs)
        return self._run(self._real.run, *args, **kwargs)

    def _run(self, way: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        track, inner = self._seat.track, self._inner
        if track is None:
            return way(*args, **kwargs)
        arguments = kwargs if not args else {"task": args[0], **kwargs}
        with track.tool_call(self._real.name or "", arguments) as call:
            while not inner.busy.acquire(timeout=WAIT_S):
                track.recorder.check()
            try:
                inner.track = Track(track.recorder, f"{track.path}/{self._real.name}", track, call.call_id)
                call.result = way(*args, **kwargs)
            finally:
                inner.track = None
                inner.busy.release()
        return call.result


class InterpreterProxy(Proxy):
    """A CodeAgent's interpreter: a code block is an internal tool call.

    One that ran in a process of its own is an effect as a whole: in a replay its tools are called again, from the
    journal, and its output and variables are those that it had. In a thread it runs again, its tools do not.
    """

    __slots__ = ()
    _real: PythonExecutor

    def __call__(self, code_action: str) -> Any:
        track = self._seat.track
        if track is None:
            return self._real(code_action)
        call = track.tool_call("python_interpreter", code_action, is_block=True)
        known = call.recall("code", code_action)
        with call:
            output = self._again(known) if known else self._live(call, track, code_action)
            call.result = output.logs if output.output is None else output.logs + as_text(output.output)
        return output

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Send functions in place of tools to an interpreter of this process: code could follow a tool's attributes."""
        if isinstance(self._real, LocalPythonExecutor):
            tools = {name: stub(name, tool, _about(tool)) for name, tool in tools.items()}
        self._real.send_tools(tools)

    def _again(self, known: Effect) -> Any:
        real: Any = self._real
        return real.again(known.returned)

    def _live(self, call: CallInProgress, track: Track, code_action: str) -> Any:
        call.begin(does_nothing_itself=hasattr(self._real, "seed"))  # what it calls waits, and nothing else gets out
        if hasattr(self._real, "seed"):
            self._real.seed = track.recorder.seed(call.call_id)
        try:
            return self._real(code_action)
        finally:
            if effect := getattr(self._real, "effect", b""):
                call.effect = Effect(effect)


class CallbacksProxy(Proxy):
    """An agent's callbacks. A step's output reaches them as the value, never as the text that the model is shown."""

    __slots__ = ()
    _real: CallbackRegistry

    def callback(self, memory_step: MemoryStep, **kwargs: Any) -> None:
        if isinstance(memory_step, ActionStep):
            self._action(memory_step, **kwargs)
        elif isinstance(memory_step, FinalAnswerStep) and type(memory_step.output) is Shown:
            self._answer(memory_step, memory_step.output, **kwargs)
        else:
            self._real.callback(memory_step, **kwargs)

    def _action(self, step: ActionStep, **kwargs: Any) -> None:
        output = step.action_output
        value = step.action_output = without_text(output)
        self._real.callback(step, **kwargs)
        is_answer = step.is_final_answer or step.error  # an output with an error is an answer that a check refused
        if type(output) is Shown and step.action_output is value and not is_answer:
            step.action_output = str(output)  # the record keeps values of answers alone

    def _answer(self, step: FinalAnswerStep, output: Shown, **kwargs: Any) -> None:
        value = step.output = handle_agent_output_types(output.value)
        self._real.callback(step, **kwargs)
        if step.output is value:
            step.output = output  # a manager's model is shown the text that the answer had in its process


def seen_check(check: Callable[..., Any], seat: Seat) -> Callable[..., Any]:
    """Make a check of the final answer an effect. It gets the answer itself, never the text that the model is shown."""

    @functools.wraps(check)
    def asked(answer: Any, *args: Any, **kwargs: Any) -> Any:
        answer = without_text(answer)
        if seat.track is None:
            return check(answer, *args, **kwargs)
        return seat.track.checked(lambda: bool(check(answer, *args, **kwargs)))

    return asked


def see_tools(agent: MultiStepAgent, seat: Seat) -> None:
    """Put proxies before tools that have none: also those that were added since.

    A remote executor takes the source of the tools, which a proxy has not.
    """
    if isinstance(getattr(agent, "python_executor", None), RemotePythonExecutor):
        return
    for name, tool in agent.tools.items():
        if type(tool) is not ToolProxy:
            agent.tools[name] = ToolProxy(tool, seat)


def unproxied(thing: Any) -> Any:
    """Give what a proxy stands for, and anything else as it is."""
    return object.__getattribute__(thing, "_real") if type(thing) in _KINDS else thing


def _about(tool: Any) -> dict[str, Any]:
    return {name: deepcopy(getattr(tool, name)) for name in _DATA_OF_A_TOOL if hasattr(tool, name)}


def _named(tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Give a call's arguments by name, as a tool takes them: also as one dictionary."""
    named = {name: value for name, value in kwargs.items() if name != "sanitize_inputs_outputs"}
    if len(args) == 1 and not named and isinstance(args[0], dict) and set(args[0]) <= set(tool.inputs):
        return args[0]
    names = [*tool.inputs, *(str(number) for number in range(len(tool.inputs), len(args)))]
    return {**dict(zip(names, args, strict=False)), **named}


_KINDS = frozenset({ToolProxy, AgentProxy, InterpreterProxy})
