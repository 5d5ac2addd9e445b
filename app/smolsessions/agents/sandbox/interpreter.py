"""A CodeAgent's interpreter in a process of its own: stops end it, limits bind it, its variables are just bytes."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from smolagents.local_python_executor import CodeOutput, ExecutionTimeoutError, InterpreterError, PythonExecutor

from smolsessions.agents.run.effects import ValueWithText, raised, without_text
from smolsessions.agents.sandbox.channel import Channel, ClosedError, MisbehavedError
from smolsessions.agents.values import CodecError, dumps, dumps_lossy, loads
from smolsessions.agents.values.json_forms import utf8_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from smolagents.local_python_executor import LocalPythonExecutor

    from smolsessions.agents.sandbox.fork_client import ChildProcess, ForkClient
    from smolsessions.agents.sandbox.limits import CodeLimits

T = TypeVar("T")

MB = 1024 * 1024
MOST_BYTES = 2**31  # of what this process itself makes
MOST_EFFECT_BYTES = 64 * MB  # of a block's calls, and twice that of all that is kept of it
MOST_CALLS = 100_000
MAX_CHUNKS, MOST_GONE, MAX_NAME_CHARS = 10_000, 1000, 200
_CHUNK_ID = re.compile(r"[0-9a-f]{8,64}")
NONE_SENTENCE = "No process could be started for the code; try again."
DIED_SENTENCE = (
    "The process that ran the code ended: it used too much memory, or was killed. What it had changed is lost."
)


class ChildInterpreter(PythonExecutor):
    """Runs code blocks as `original` would, in a process that is forked for the first one and ended by `stop`."""

    def __init__(
        self,
        original: LocalPythonExecutor,
        fork_client: ForkClient,
        limits: CodeLimits,
        carries: tuple[type, ...],
        check: Callable[[], None],
        *,
        timeout_s: float | None = None,
    ) -> None:
        """`check` is called while code runs, and raises to end it. `timeout_s` bounds a block with its tool calls."""
        self._original = original
        self._fork_client = fork_client
        self._limits = limits
        self._carries = carries
        self._check = check
        self._timeout_s = timeout_s
        self._tools: dict[str, Callable[..., Any]] = {}
        self._given: dict[str, Any] = {}
        self._gives_anew = False
        self._child: ChildProcess | None = None
        self._channel: Channel | None = None
        self._is_busy = False
        self.state: dict[str, Any] = {}
        """What smolagents reads of an interpreter after an error: `_print_outputs`."""
        self.effect = b""
        """The last block: what it called, its output or error, and the variables that it changed."""
        self.seed = b""
        """What the next block draws its random numbers from."""
        self._calls: list[tuple[str, bytes]] = []
        self._called_bytes = 0
        self.variables: dict[str, bytes] = {}
        self.dropped: frozenset[str] = frozenset()
        self.logs = ""
        """What the last block printed."""

    def send_tools(self, tools: Mapping[str, Any]) -> None:
        self._tools = {**tools, **self._original.additional_functions}

    def send_variables(self, variables: dict[str, Any]) -> None:
        self._given = variables  # the agent's own: what code changes in them in place is changed here, too
        self._gives_anew = True

    def __call__(self, code_action: str) -> CodeOutput:
        """Run a block. Raises what the interpreter would, with the same words."""
        self.state, self.effect, self._calls, self._called_bytes = {"_print_outputs": ""}, b"", [], 0
        try:
            message = self._run(code_action)
            done = self._read(message)
            self._keep(done)
            self._is_busy = False
            self._note(message)
            return self._output(done)
        except OSError as error:
            raise InterpreterError(NONE_SENTENCE) from error
        except (ClosedError, MisbehavedError) as error:
            self.stop()
            self.logs = ""
            self._note(None, DIED_SENTENCE)
            raise InterpreterError(DIED_SENTENCE) from error
        except BaseException as error:
            if self._is_busy:
                self.stop()
                if isinstance(error, InterpreterError | ExecutionTimeoutError):
                    self.logs = ""
                    self._note(None, str(error))
            raise

    def replay(self, effect: bytes) -> CodeOutput:
        """Go through a block that was run before: its tools are called again, for what they tell and keep."""
        self.state = {"_print_outputs": ""}
        self._gives_anew = False
        message, error, calls = loads(effect, max_bytes=2 * MOST_EFFECT_BYTES)
        for name, given in calls:
            args, kwargs = loads(given, self._carries)
            with contextlib.suppress(Exception):
                self._tools[name](*args, **kwargs)
        if message is None:
            self.logs = ""
            raise InterpreterError(error)
        done = self._read(message)
        self._keep(done)
        return self._output(done)

    def _note_call(self, name: str, given: bytes) -> None:
        """Remember a call, for a replay; together they are bounded."""
        if name in self._original.additional_functions:
            return
        self._calls.append((name, given))
        self._called_bytes += len(given)
        if len(self._calls) > MOST_CALLS or self._called_bytes > MOST_EFFECT_BYTES:
            raise ValueError(f"a block may call tools {MOST_CALLS:,} times, with {MOST_EFFECT_BYTES // MB} MB in all")

    def _note(self, message: dict[str, Any] | None, error: str = "") -> None:
        """Keep how the block went; one that is too large for that runs again after a crash."""
        with contextlib.suppress(CodecError):
            self.effect = dumps([message, error, [list(call) for call in self._calls]], max_bytes=2 * MOST_EFFECT_BYTES)

    def _read(self, message: dict[str, Any]) -> _BlockResult:
        return _BlockResult.read(message, self._carries, frozenset(self._given), int(self._limits.output_mb * MB))

    def stop(self) -> None:
        """End the process; the next block gets another one, with the variables as they were kept."""
        if self._child:
            self._child.kill()
        self._child = self._channel = None

    def _run(self, code: str) -> dict[str, Any]:
        self._is_busy = True
        is_new = self._child is None
        self._child = child = self._child or self._fork_client.fork()
        watch = _Stopwatch(self._limits, child)
        channel = self._begin(child, watch) if is_new else self._channel
        assert channel
        given = {"given": self._written(self._given)} if self._gives_anew and not is_new else {}
        self._gives_anew = False
        watch.begin(self._timeout_s)
        channel.send({"code": code, "seed": self.seed, **given}, lambda: self._look(watch))
        while True:
            message = channel.receive(lambda: self._look(watch))
            if "call" not in message:
                return message
            channel.send(self._called(message, watch), lambda: self._look(watch))

    def _look(self, watch: _Stopwatch) -> None:
        self._check()
        watch.check()

    def _written(self, values: dict[str, Any]) -> dict[str, bytes]:
        return {name: dumps_lossy(value, self._carries) for name, value in values.items()}

    def _begin(self, child: ChildProcess, watch: _Stopwatch) -> Channel:
        limits, original = self._limits, self._original
        self._channel = Channel(child.sock, int((limits.output_mb + 2 * limits.variables_mb + 1) * MB))
        self._channel.send(
            {
                "imports": list(original.additional_authorized_imports),
                "authorized": list(original.authorized_imports),
                "max_print": original.max_print_outputs_length,
                "tools": [[name, str(getattr(tool, "description", ""))] for name, tool in self._tools.items()],
                "carries": [[kind.__module__, kind.__qualname__] for kind in self._carries],
                "given": self._written(self._given),
                "anew": self._gives_anew,
                "variables": self.variables,
                "dropped": sorted(self.dropped),
                "logs": self.logs,
                "output_mb": limits.output_mb,
                "variables_mb": limits.variables_mb,
                "memory_mb": limits.memory_mb,
                "processes": limits.processes,
                "open_files": limits.open_files,
            },
            lambda: self._look(watch),
        )
        begun = self._channel.receive(lambda: self._look(watch))
        try:
            self.dropped = _names(begun.get("dropped"))
        except TypeError as error:
            raise MisbehavedError("a message is not what it should be") from error
        return self._channel

    def _called(self, message: dict[str, Any], watch: _Stopwatch) -> dict[str, Any]:
        """Call a tool for the code, and give its answer as a message."""
        name = message["call"]
        if type(name) is not str or name not in self._tools:
            raise MisbehavedError("it calls what is no tool")
        try:
            args, kwargs = loads(message["given"], self._carries)
            self._note_call(name, message["given"])
            with watch.paused():
                result = without_text(self._tools[name](*args, **kwargs))
            returned = dumps_lossy(result, self._carries, max_bytes=MOST_BYTES)
            if len(returned) > self._limits.output_mb * MB:
                raise ValueError(f"what {name} returned is larger than {self._limits.output_mb:g} MB")  # noqa: TRY301
            return {"returned": returned}  # noqa: TRY300
        except Exception as error:  # noqa: BLE001 - it is the code's to handle
            return {"raised": list(raised(error).raised or ())}

    def _output(self, done: _BlockResult) -> CodeOutput:
        self.state = {"_print_outputs": done.logs}
        self.logs = done.logs
        if done.full or (done.error and MemoryError.__name__ in done.error):
            self.stop()  # what filled it is no longer reached, and yet not freed: the next block gets a fresh one
        if done.error is not None:
            raise InterpreterError(done.error)
        output = done.output
        if str(output) != done.text:
            output = ValueWithText(output, done.text)  # the model is shown the text that the value had in the process
        return CodeOutput(output=output, logs=done.logs, is_final_answer=done.final)

    def _keep(self, done: _BlockResult) -> None:
        kept = {**self.variables, **done.changed}
        for chunk in done.removed:
            kept.pop(chunk, None)
        if len(kept) > MAX_CHUNKS or sum(map(len, kept.values())) > 2 * self._limits.variables_mb * MB:
            raise MisbehavedError("the variables are larger than they may be")
        self.variables = kept
        self.dropped = done.dropped
        for name, value in done.given.items():
            if name in self._given:
                self._given[name] = value


@dataclass(frozen=True)
class _BlockResult:
    """How a block went, as the process tells it."""

    output: Any
    text: str
    logs: str
    final: bool
    error: str | None
    changed: dict[str, bytes]
    removed: list[str]
    dropped: frozenset[str]
    given: dict[str, Any]
    full: bool

    @classmethod
    def read(
        cls, message: dict[str, Any], carries: tuple[type, ...], known: frozenset[str], most_bytes: int
    ) -> _BlockResult:
        """Believe nothing: model-written code may have written the message. `known` are the names that were given."""
        try:
            output = None if message["output"] is None else loads(message["output"], carries)
            return cls(
                output=output,
                text=utf8_text(_of(str, message["text"])),
                logs=utf8_text(_of(str, message["logs"])),
                final=_of(bool, message["final"]),
                error=None if message["error"] is None else utf8_text(_of(str, message["error"])),
                changed={_chunk(name): _of(bytes, data) for name, data in _of(dict, message["changed"]).items()},
                removed=[_chunk(name) for name in _of(list, message["removed"])],
                dropped=_names(message["dropped"]),
                given=_given(_of(dict, message["given"]), carries, known, most_bytes),
                full=_of(bool, message["full"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MisbehavedError("a message is not what it should be") from error


class _Stopwatch:
    """Bounds a block's time: the limits without that of the tools that it calls, the author's own timeout with it."""

    def __init__(self, limits: CodeLimits, child: ChildProcess) -> None:
        self._limits = limits
        self._child = child
        self._cpu_before = child.cpu_s()
        self._since = self._began = time.monotonic()
        self._timeout_s: float | None = None

    def begin(self, timeout_s: float | None) -> None:
        """Start the author's own timeout."""
        self._began, self._timeout_s = time.monotonic(), timeout_s

    def check(self) -> None:
        """Raise what smolagents raises, and in its words."""
        now, limits = time.monotonic(), self._limits
        if self._timeout_s is not None and now - self._began > self._timeout_s:
            raise _timeout(str(self._timeout_s))
        for limit_s, used_s in (
            (limits.wall_s, now - self._since),
            (limits.cpu_s, self._child.cpu_s() - self._cpu_before),
        ):
            if used_s > limit_s:
                raise _timeout(f"{limit_s:g}")

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let time pass that does not count."""
        began = time.monotonic()
        yield
        self._since += time.monotonic() - began


def _timeout(limit_s: str) -> ExecutionTimeoutError:
    return ExecutionTimeoutError(f"Code execution exceeded the maximum execution time of {limit_s} seconds")


def _chunk(name: Any) -> str:
    if not _CHUNK_ID.fullmatch(_of(str, name)):
        raise TypeError("that is no name of a chunk")
    return str(name)


def _names(names: Any) -> frozenset[str]:
    """Take names that could not be kept; what cannot be one is nobody's."""
    found = [_of(str, name) for name in _of(list, names)[:MOST_GONE]]
    return frozenset(name for name in found if len(name) <= MAX_NAME_CHARS and name.isidentifier())


def _given(
    changed: dict[Any, Any], carries: tuple[type, ...], known: frozenset[str], most_bytes: int
) -> dict[str, Any]:
    """Read what was given and changed in place."""
    if not known.issuperset(changed) or sum(len(_of(bytes, data)) for data in changed.values()) > most_bytes:
        raise TypeError("that was not given")
    return {name: loads(data, carries) for name, data in changed.items()}


def _of(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise TypeError(f"a {kind.__name__} is needed")
    return value
