"""Interpreter of a CodeAgent that runs code blocks in a child process. Its variables are only bytes in this process."""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import ceil
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from smolagents.local_python_executor import (
    DEFAULT_MAX_LEN_OUTPUT,
    CodeOutput,
    ExecutionTimeoutError,
    InterpreterError,
    LocalPythonExecutor,
    PythonExecutor,
)
from smolagents.utils import truncate_content

from smolsessions.agents.sandbox.channel import Channel, ClosedError, MisbehavedError
from smolsessions.agents.sandbox.clock import ClockLog
from smolsessions.agents.sandbox.fork_client import ChildProcess, ForkClient
from smolsessions.agents.sandbox.limits import MB, CodeLimits, Stopwatch
from smolsessions.agents.sandbox.memory_budget import NoMemoryLeftError
from smolsessions.agents.values import CodecError, dumps, dumps_lossy, loads
from smolsessions.agents.values.json_forms import utf8_text
from smolsessions.agents.values.results import ValueWithText, raised_parts, without_text
from smolsessions.caller import CALLER
from smolsessions.core.records import LOCAL, Owner

M = TypeVar("M", bound=BaseModel)

MAX_RESULT_BYTES = 2**31  # of a tool's result before `output_mb` applies
MAX_CALLS_BYTES = 64 * MB  # of the calls of a block; its effect may have twice that
MAX_CALLS = 100_000
MAX_CHUNKS, MAX_INPUTS, MAX_DROPPED, MAX_NAME_CHARS = 10_000, 100_000, 1000, 200
NOT_STARTED = "No process could be started for the code; try again."
DIED = "The process that ran the code ended: it used too much memory, or was killed. What it had changed is lost."


def valid_names(value: Any) -> frozenset[str]:
    """Drop names that cannot belong to a variable."""
    names: list[Any] = value[:MAX_DROPPED] if type(value) is list else [None]
    if any(type(name) is not str for name in names):
        raise ValueError("a list of names is needed")
    return frozenset(name for name in names if len(name) <= MAX_NAME_CHARS and name.isidentifier())


def _bytes_by_name(most: int) -> Callable[[Any], Any]:
    """Return a check that stops at the first fault. pydantic would make an error for each entry."""

    def check(found: Any) -> Any:
        if not isinstance(found, dict) or len(found) > most:
            raise ValueError("a dict of at most so many entries is needed")
        if not all(type(name) is str and type(data) is bytes for name, data in found.items()):
            raise ValueError("names and bytes are needed")
        return found

    return check


_Text = Annotated[str, BeforeValidator(lambda value: utf8_text(value) if type(value) is str else value)]
_ChunkId = Annotated[str, StringConstraints(pattern="^[0-9a-f]{8,64}$")]


class _Restored(BaseModel):
    """Message of a process that has restored the variables. Model-written code may have forged it."""

    model_config = ConfigDict(strict=True, frozen=True)

    dropped: Annotated[frozenset[str], BeforeValidator(valid_names)]


class _BlockResult(_Restored):
    output: bytes | None
    text: _Text
    logs: _Text
    final: bool
    error: _Text | None
    changed: Annotated[dict[_ChunkId, bytes], BeforeValidator(_bytes_by_name(MAX_CHUNKS))]
    removed: Annotated[list[_ChunkId], Field(max_length=MAX_CHUNKS, fail_fast=True)]
    inputs: Annotated[dict[str, bytes], BeforeValidator(_bytes_by_name(MAX_INPUTS))]
    """Inputs that the code has changed in place."""
    full: bool
    """True if the process ran out of memory."""


@dataclass(eq=False)
class ChildInterpreter(PythonExecutor):
    """Runs code blocks as `original` would, in a process that the first block forks and `stop` ends.

    `check` is called while code runs and raises to end it. `timeout_s` bounds a block with its tool calls.
    """

    original: LocalPythonExecutor
    fork_client: ForkClient
    limits: CodeLimits
    stored_classes: tuple[type, ...]
    check: Callable[[], None]
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        self._tools: dict[str, Callable[..., Any]] = {}
        self._inputs: dict[str, Any] = {}
        self._has_new_inputs = False
        self._child: ChildProcess | None = None
        self._channel: Channel | None = None
        self._is_busy = False
        self.state: dict[str, Any] = {}
        """`_print_outputs`, which smolagents reads after an error."""
        self.effect = b""
        """The last block's tool calls, its output or error, and its changed variables."""
        self.seed = b""
        """Seed of the next block's random numbers."""
        self.clock: ClockLog | None = None
        """Readings of the next block's clocks."""
        self._calls: list[tuple[str, bytes]] = []
        self._called_bytes = 0
        self._lock = threading.Lock()
        self._is_in_tool = False
        self._most_mb = ceil(min(self.limits.memory_mb, self.fork_client.memory.total_mb))
        self._owner: Owner = LOCAL
        self._taken_mb = 0
        """Part of the memory budget: `_most_mb` while a block runs, then what its process holds."""
        self.variables: dict[str, bytes] = {}
        self._changes: dict[str, bytes | None] = {}
        self.variables_bytes = 0
        self.dropped: frozenset[str] = frozenset()
        self._printed = ""
        self.logs = ""
        """Output that the last block printed."""

    def send_tools(self, tools: Mapping[str, Any]) -> None:
        self._tools = {**tools, **self.original.additional_functions}

    def send_variables(self, variables: dict[str, Any]) -> None:
        self._inputs = variables  # the agent's own dictionary, so that its values follow changes in place
        self._has_new_inputs = True

    def restore(self, variables: dict[str, bytes], logs: str) -> None:
        """Take the chunks of the variables and the output of the last block from an earlier session."""
        self.variables, self.logs = variables, logs
        self.variables_bytes = sum(map(len, variables.values()))

    def take_changes(self) -> dict[str, bytes | None]:
        """Return the chunks that changed since the last call. None stands for a removed one."""
        changes, self._changes = self._changes, {}
        return changes

    def __call__(self, code_action: str) -> CodeOutput:
        """Run a block. Raises the interpreter's own errors."""
        self.state, self.effect, self._calls, self._called_bytes = {"_print_outputs": ""}, b"", [], 0
        self._printed = ""
        memory = self.fork_client.memory
        if caller := CALLER.get(None):
            self._owner = Owner(caller.owner)
        memory.set_busy(self.stop)
        try:
            if not memory.try_grow(self._owner, self._taken_mb, self._most_mb):
                if self._taken_mb:  # it asks for memory again, behind those who wait
                    self.stop()
                memory.take(self._owner, self._most_mb, self.check)
            self._taken_mb = self._most_mb
            with memory.running():
                message = self._run(code_action)
            result, output = self._accept(message)
            self._is_busy = False
            self._record_effect(message)
            return self._code_output(result, output)
        except (OSError, ClosedError, MisbehavedError) as error:
            reason = NOT_STARTED if isinstance(error, OSError) else DIED
            self._abort(reason)
            raise InterpreterError(reason) from error
        except (InterpreterError, ExecutionTimeoutError) as error:
            if self._is_busy or isinstance(error, NoMemoryLeftError):
                self._abort(str(error))
            raise
        except BaseException:  # also a stop: nothing reads what the process says next
            if self._is_busy:
                self.stop()
            raise
        finally:
            self._keep_memory(self._child.grown_mb() if self._child else 0)
            if self._child:
                memory.set_idle(self._owner, self._taken_mb, self.stop)

    def replay(self, effect: bytes) -> CodeOutput:
        """Apply a recorded block without running it. Its tools are called again and replay their own effects."""
        self.state = {"_print_outputs": ""}
        self._has_new_inputs = False
        message, error, calls, *printed = loads(effect, max_bytes=2 * MAX_CALLS_BYTES)
        for name, arguments in calls:
            args, kwargs = loads(arguments, self.stored_classes)
            with contextlib.suppress(Exception):  # the block has handled it
                self._tools[name](*args, **kwargs)
        if message is None:
            self._show("".join(printed))
            raise InterpreterError(error)
        return self._code_output(*self._accept(message))

    def stop(self) -> None:
        """End the process. The next block forks another one and restores the variables.

        Another block's thread may call it while this process is idle.
        """
        self.fork_client.memory.set_busy(self.stop)
        child, self._child, self._channel = self._child, None, None
        if child:
            child.kill()
        self._keep_memory(0)
        if child:
            self.fork_client.keep_spares()

    def end_on_stop(self) -> None:
        """End the process unless code runs, which notices a stop. A tool or a model that it waits for may never return.

        For the thread that stops the turn.
        """
        self.fork_client.memory.end_if_idle(self.stop)
        with self._lock:
            if self._is_in_tool and self._child:
                self._child.kill()
                self._keep_memory(0)

    def _keep_memory(self, mb: int) -> None:
        """Free the part of the budget that the process does not hold."""
        if mb < self._taken_mb:
            self.fork_client.memory.give_back(self._owner, self._taken_mb - mb)
            self._taken_mb = mb

    def _abort(self, error: str) -> None:
        self.stop()
        self._show(truncate_content(self._printed, self._max_print_chars()))
        self._record_effect(None, error)

    def _show(self, printed: str) -> None:
        """Let smolagents show what an aborted block had printed."""
        self.logs = printed
        self.state = {"_print_outputs": printed}

    def _record_effect(self, message: dict[str, Any] | None, error: str = "") -> None:
        """Record the block for a replay. A block with a larger effect runs again after a crash."""
        with contextlib.suppress(CodecError):
            effect = [message, error, [list(call) for call in self._calls]]
            self.effect = dumps(effect if message else [*effect, self.logs], max_bytes=2 * MAX_CALLS_BYTES)

    def _run(self, code: str) -> dict[str, Any]:
        """Run the block in the child, which calls tools here. Returns the child's last message."""
        self._is_busy = True
        is_new = self._child is None
        self._child = child = self._child or self.fork_client.fork()
        stopwatch = Stopwatch(self.limits, child.cpu_s)

        def check() -> None:
            self.check()
            stopwatch.check()

        if is_new:
            limits, original = self.limits, self.original
            self._channel = Channel(child.sock, limits.output_bytes + 2 * limits.variables_bytes + MB)
            setup = {
                "imports": list(original.additional_authorized_imports),
                "authorized": list(original.authorized_imports),
                "max_print": self._max_print_chars(),
                "tools": [[name, str(getattr(tool, "description", ""))] for name, tool in self._tools.items()],
                "stored_classes": [[kind.__module__, kind.__qualname__] for kind in self.stored_classes],
                "inputs": self._encoded_inputs(),
                "inputs_are_new": self._has_new_inputs,
                "variables": pickle.dumps(self.variables),  # a message of 1,000 parts takes 8 ms
                "dropped": sorted(self.dropped),
                "logs": self.logs,
                "limits": {**asdict(limits), "memory_mb": self._most_mb},
            }
            self._channel.send(setup, check)
            self.dropped = _validated(_Restored, self._channel.receive(check)).dropped
        channel = self._channel
        assert channel
        clock = self.clock.request() if self.clock else {}
        request: dict[str, Any] = {"code": code, "seed": self.seed, "clock": clock}
        if self._has_new_inputs and not is_new:
            request["inputs"] = self._encoded_inputs()
        self._has_new_inputs = False
        stopwatch.begin(self.timeout_s)
        channel.send(request, check)
        while True:
            message = channel.receive(check)
            if "printed" in message:
                text = message["printed"]
                if type(text) is not str or len(self._printed) + len(text) > self._max_print_chars():
                    raise MisbehavedError("the code printed no text, or too much")
                self._printed += utf8_text(text)
            elif "call" in message:
                channel.send(self._call_tool(message, stopwatch), check)
            else:
                return message

    def _max_print_chars(self) -> int:
        return self.original.max_print_outputs_length or DEFAULT_MAX_LEN_OUTPUT

    def _encoded_inputs(self) -> dict[str, bytes]:
        return {name: dumps_lossy(value, self.stored_classes) for name, value in self._inputs.items()}

    def _call_tool(self, message: dict[str, Any], stopwatch: Stopwatch) -> dict[str, Any]:
        """Call a tool for the code and return the reply to send."""
        name = message["call"]
        if type(name) is not str or name not in self._tools:
            raise MisbehavedError("the code called an unknown tool")
        if self.clock and "clock" in message:
            self.clock.add(message["clock"])
        try:
            args, kwargs = loads(message["arguments"], self.stored_classes)
            if name not in self.original.additional_functions:
                self._calls.append((name, message["arguments"]))
                self._called_bytes += len(message["arguments"])
                if len(self._calls) > MAX_CALLS or self._called_bytes > MAX_CALLS_BYTES:
                    most = f"{MAX_CALLS:,} times, with {MAX_CALLS_BYTES // MB} MB in all"
                    raise ValueError(f"a block may call tools {most}")  # noqa: TRY301
            with self._lock:
                self._is_in_tool = True
            try:
                with stopwatch.paused():
                    result = without_text(self._tools[name](*args, **kwargs))
            finally:
                with self._lock:
                    self._is_in_tool = False
                self.check()  # after a stop the process is gone
            returned = dumps_lossy(result, self.stored_classes, max_bytes=MAX_RESULT_BYTES)
            if len(returned) > self.limits.output_bytes:
                raise ValueError(f"what {name} returned is larger than {self.limits.output_mb:g} MB")  # noqa: TRY301
            return {"returned": returned}  # noqa: TRY300
        except Exception as error:  # noqa: BLE001 - the code handles it
            return {"raised": list(raised_parts(error))}

    def _accept(self, message: dict[str, Any]) -> tuple[_BlockResult, Any]:
        """Validate a result and store its variables. Returns it with its output, or raises `MisbehavedError`."""
        result = _validated(_BlockResult, message)
        if (
            not result.inputs.keys() <= self._inputs.keys()
            or sum(map(len, result.inputs.values())) > self.limits.output_bytes
        ):
            raise MisbehavedError("the inputs are unknown or too large")
        try:
            output = None if result.output is None else loads(result.output, self.stored_classes)
            inputs = {name: loads(data, self.stored_classes) for name, data in result.inputs.items()}
        except CodecError as error:
            raise MisbehavedError("a value cannot be decoded") from error
        before, variables = self.variables, self.variables | result.changed
        for chunk in result.removed:
            variables.pop(chunk, None)
        size = sum(map(len, variables.values()))
        if len(variables) > MAX_CHUNKS or size > 2 * self.limits.variables_bytes:
            raise MisbehavedError("the variables are too large")
        self.variables, self.variables_bytes, self.dropped = variables, size, result.dropped
        for chunk in (*result.changed, *result.removed):
            if variables.get(chunk) != before.get(chunk):
                self._changes[chunk] = variables.get(chunk)
        self._inputs.update(inputs)
        return result, output

    def _code_output(self, result: _BlockResult, output: Any) -> CodeOutput:
        self.state = {"_print_outputs": result.logs}
        self.logs = result.logs
        if result.full or (result.error and MemoryError.__name__ in result.error):
            self.stop()  # its memory is unreachable but not freed: the next block gets a fresh process
        if result.error is not None:
            raise InterpreterError(result.error)
        if str(output) != result.text:
            output = ValueWithText(output, result.text)  # the model reads the text that the value had in the process
        return CodeOutput(output=output, logs=result.logs, is_final_answer=result.final)


def _validated(kind: type[M], message: dict[str, Any]) -> M:
    try:
        return kind.model_validate(message)
    except ValueError:
        raise MisbehavedError("a message is invalid") from None
