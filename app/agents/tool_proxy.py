"""Tools, managed agents and interpreters, seen: every real call is recorded, and is where a stop lands."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from smolagents.remote_executors import RemotePythonExecutor

from app.agents.recorder import Track, as_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from smolagents import MultiStepAgent, Tool
    from smolagents.local_python_executor import PythonExecutor

WAIT_S = 0.1


class Seat:
    """Where an agent's proxies find the run that is on, set when it begins; `busy` is held by a managed agent's."""

    def __init__(self) -> None:
        self.track: Track | None = None
        self.busy = threading.Lock()

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
    """A tool."""

    __slots__ = ()
    _real: Tool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._seat.track is None:
            return self._real(*args, **kwargs)
        arguments = _named(self._real, args, kwargs)
        with self._seat.track.tool_call(self._real.name, arguments) as call:
            call.result = self._real(*args, **kwargs)
        return call.result


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
                inner.track = Track(track.recorder, f"{track.path}/{self._real.name}", call.call_id)
                call.result = way(*args, **kwargs)
            finally:
                inner.track = None
                inner.busy.release()
        return call.result


class InterpreterProxy(Proxy):
    """A CodeAgent's interpreter: a code block is an internal tool call."""

    __slots__ = ()
    _real: PythonExecutor

    def __call__(self, code_action: str) -> Any:
        if self._seat.track is None:
            return self._real(code_action)
        with self._seat.track.tool_call("python_interpreter", code_action) as call:
            try:
                output = self._real(code_action)
            finally:
                call.effect = getattr(self._real, "effect", b"")
            call.result = output.logs if output.output is None else output.logs + as_text(output.output)
        return output


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


def _named(tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Give a call's arguments by name, as a tool takes them: also as one dictionary."""
    named = {name: value for name, value in kwargs.items() if name != "sanitize_inputs_outputs"}
    if len(args) == 1 and not named and isinstance(args[0], dict) and set(args[0]) <= set(tool.inputs):
        return args[0]
    names = [*tool.inputs, *(str(number) for number in range(len(tool.inputs), len(args)))]
    return {**dict(zip(names, args, strict=False)), **named}


_KINDS = frozenset({ToolProxy, AgentProxy, InterpreterProxy})
