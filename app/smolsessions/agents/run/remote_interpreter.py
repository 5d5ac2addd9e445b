"""Interpreter of a CodeAgent whose code runs in a remote executor of smolagents: a container or a rented sandbox.

The first block starts the executor. A block is one effect: the service does not see the tool calls in it. Its variables
live in the executor's kernel and end with it.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from copy import copy
from typing import Any, TypeVar

from smolagents.local_python_executor import CodeOutput, PythonExecutor
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.utils import AgentError, truncate_content

from smolsessions.agents.models.keys import without_secrets
from smolsessions.agents.sandbox.interpreter import valid_names
from smolsessions.agents.sandbox.limits import CodeLimits
from smolsessions.agents.values import CodecError, dumps, dumps_lossy, loads
from smolsessions.agents.values.json_forms import utf8_text
from smolsessions.agents.values.results import ValueWithText
from smolsessions.core.attachments import File

T = TypeVar("T")
log = logging.getLogger(__name__)

START_S = 600.0  # an image may have to be built
POLL_S = 0.1
_CLEAN_UP = "smolsessions-cleanup"
MAX_TEXT_CHARS = 50_000  # as the local executor
MAX_EFFECT_BYTES = 64 * 1024 * 1024
_ANSI = re.compile(r"\x1B(?:[@-Z\\-_]|\[[0-?]*[ -/]*[@-~])")
_TOKEN = re.compile(r"(?i)(token=|bearer )[^\s&'\"]+")
# Code may have given the names of built-ins to its own variables.
_MARK = '_smolsessions_known = (lambda b: b.set(b.globals()) - b.set({names!r}))(__import__("builtins"))'
_LIST = """
(lambda b: b.print(__import__("json").dumps([
    name for name, value in b.list(b.globals().items())
    if name not in _smolsessions_known and name[:1] != "_" and not b.isinstance(value, b.type(b))
])))(__import__("builtins"))
"""
NOT_STARTED = (
    "The place where code runs ({kind}) could not be started ({name}), so no code ran. Tell the user; the operator of "
    "this service finds the cause in its log."
)
LOST = "The place where code runs ({kind}) was lost during this block ({name}), so it may have run in part."
RESET = "The place where code runs ({kind}) was started anew."
GONE = "These variables of earlier code are gone: {names}."
NOT_RUN = "This block has not run. Define them again."
TOO_LONG = "Code execution exceeded the maximum execution time of {limit_s:g} seconds."


class RemoteCodeError(RuntimeError):
    """A block of code failed, or its executor did. Its text is for the model."""


class _KernelLostError(Exception):
    """The executor does not answer any more. The argument is the name of the exception that showed it."""


class RemoteInterpreter(PythonExecutor):
    """Starts an executor at the first block of code, and another one after a loss. `cleanup` ends it."""

    def __init__(
        self, kind: str, make: Callable[[list[str], AgentLogger], RemotePythonExecutor], described: str = ""
    ) -> None:
        """`make` takes the modules that code may import. `described` is for the fingerprint of the agent."""
        self.kind = kind
        self.described = described
        self.effect = b""
        """The last block's output or error, for its journal."""
        self.names: frozenset[str] = frozenset()
        """Variables of the code that the kernel holds."""
        self._make = make
        self._real: RemotePythonExecutor | None = None
        self._imports: list[str] = []
        self._variables: dict[str, Any] = {}
        self._tools: dict[str, Any] = {}
        self._is_outdated = False
        self._unseen: frozenset[str] = frozenset()
        """Variables that were lost within this run. The model does not know it yet."""
        self._limits = CodeLimits()
        self._stored_classes: tuple[type, ...] = ()
        self._check: Callable[[], None] = lambda: None
        self._on_loss: Callable[[Collection[str]], None] = lambda _: None

    def attach(
        self,
        imports: list[str],
        limits: CodeLimits,
        stored_classes: tuple[type, ...],
        check: Callable[[], None],
        on_loss: Callable[[Collection[str]], None],
    ) -> None:
        """Take the agent's properties. `check` raises to end a block, `on_loss` takes names of lost variables."""
        self._imports, self._limits, self._stored_classes = imports, limits, stored_classes
        self._check, self._on_loss = check, on_loss

    def send_variables(self, variables: dict[str, Any]) -> None:
        """Keep the variables of a run until its first block."""
        self._variables = variables
        self._is_outdated = True
        self._unseen = frozenset()

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Keep the tools of a run until its first block."""
        self._tools = tools
        self._is_outdated = True

    def __call__(self, code_action: str) -> CodeOutput:
        """Run a block. Raises `RemoteCodeError`."""
        self.effect = b""
        try:
            output = self._run(code_action)
            block = {
                "output": dumps_lossy(output.output, self._stored_classes, max_bytes=MAX_EFFECT_BYTES),
                "text": utf8_text(str(output.output)),
                "logs": _plain(output.logs),
                "final": output.is_final_answer,
            }
        except RemoteCodeError as raised:
            block = {"error": str(raised)}
        except CodecError:
            block = {"error": "The output of the code is too large."}
        return self._accept({**block, "names": sorted(self.names)})

    def refuse(self, sentence: str) -> CodeOutput:
        """Record that a block is not run, and raise the sentence."""
        return self._accept({"error": sentence, "names": []})

    def replay(self, effect: bytes) -> CodeOutput:
        """Return the output of a recorded block. Its variables died with its kernel."""
        block = loads(effect, max_bytes=2 * MAX_EFFECT_BYTES)
        self._forget(frozenset(block["names"]) | self._unseen)
        return self._result(block)

    def cleanup(self) -> None:
        """End the executor. The next block starts another one."""
        real, self._real = self._real, None
        self._forget(self.names)
        if real:
            _clean_up(real)

    def _accept(self, block: dict[str, Any]) -> CodeOutput:
        try:
            self.effect = dumps(block, max_bytes=2 * MAX_EFFECT_BYTES)
        except CodecError:
            self.effect = b""  # too large for the journal: it runs again after a crash
        return self._result(block)

    def _result(self, block: dict[str, Any]) -> CodeOutput:
        if "error" in block:
            raise RemoteCodeError(block["error"])
        output = loads(block["output"], self._stored_classes, max_bytes=MAX_EFFECT_BYTES)
        if str(output) != block["text"]:
            output = ValueWithText(output, block["text"])
        return CodeOutput(output=output, logs=block["logs"], is_final_answer=block["final"])

    def _run(self, code: str) -> CodeOutput:
        if self._unseen:
            raise RemoteCodeError(f"{RESET.format(kind=self.kind)} {self._gone()} {NOT_RUN}")
        is_new = self._real is None
        real = self._real = self._real or self._start()
        if is_new or self._is_outdated:
            try:
                self._within_limit(lambda: self._send(real), START_S)
            except _KernelLostError as lost:
                self._discard()
                if is_new:
                    raise self._not_started(str(lost)) from None
                return self._run(code)  # in another executor
            self._is_outdated = False
        try:
            output, error = self._within_limit(lambda: real(code), self._limits.wall_s), ""
        except RemoteCodeError as raised:
            output, error = None, str(raised)
        except _KernelLostError as lost:
            self._discard()
            raise RemoteCodeError(f"{LOST.format(kind=self.kind, name=lost)} {self._gone()}".rstrip()) from None
        if self._real is None:  # it took too long
            raise RemoteCodeError(f"{error} {self._gone()}".rstrip())
        try:
            said = self._within_limit(lambda: real.run_code_raise_errors(_LIST), self._limits.wall_s).logs
            self.names = valid_names(json.loads(said.strip().splitlines()[-1]))
        except (ValueError, IndexError):  # the code has replaced a part of Python
            log.debug("the variables of a block are unknown", extra={"action": "executor.names"})
        except (_KernelLostError, RemoteCodeError) as lost:
            if isinstance(lost, _KernelLostError):
                self._discard()
            else:  # its host has started the kernel anew
                self._forget(self.names)
                self._is_outdated = True
            error = f"{error} {RESET.format(kind=self.kind)} {self._gone()}".strip()
        if output is None or error:
            raise RemoteCodeError(error)
        return output

    def _start(self) -> RemotePythonExecutor:
        logger = AgentLogger(level=LogLevel.OFF)
        try:
            real: RemotePythonExecutor = self._wait(lambda: self._make(self._imports, logger), START_S, _clean_up)
        except Exception as error:  # noqa: BLE001 - a vendor's
            text = without_secrets(utf8_text(str(error)))
            cause = _TOKEN.sub(r"\1***", text)[:1000]
            name = type(error).__name__
            extra = {"action": "executor.failed"}
            log.warning("the executor %s could not be started: %s: %s", self.kind, name, cause, extra=extra)
            raise self._not_started(name) from None
        return real

    def _not_started(self, name: str) -> RemoteCodeError:
        return RemoteCodeError(NOT_STARTED.format(kind=self.kind, name=name))

    def _send(self, real: RemotePythonExecutor) -> None:
        contents = {name: each.data if isinstance(each, File) else each for name, each in self._variables.items()}
        real.send_variables(contents)
        real.send_tools({name: copy(tool) for name, tool in self._tools.items()})  # it changes their classes
        real.run_code_raise_errors(_MARK.format(names=sorted(self.names)))

    def _within_limit(self, act: Callable[[], T], limit_s: float) -> T:
        """Act within a time limit. Raises `RemoteCodeError` for code, and `_KernelLostError`."""
        try:
            return self._wait(act, limit_s)
        except AgentError as error:
            raise RemoteCodeError(_plain(str(error))) from None
        except _TooLongError:
            raise RemoteCodeError(TOO_LONG.format(limit_s=limit_s)) from None
        except Exception as error:  # noqa: BLE001 - a vendor's
            if type(error).__name__ == "SerializationError":  # a value cannot be sent or read
                raise RemoteCodeError(_plain(str(error))) from None
            raise _KernelLostError(type(error).__name__) from None

    def _wait(self, act: Callable[[], T], limit_s: float, afterwards: Callable[[T], object] = lambda _: None) -> T:
        """Act in a thread, so that a stop and the time limit end the wait. `afterwards` gets a result that is late."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(act())
            except BaseException as error:  # noqa: BLE001 - raised below
                done.set_exception(error)

        threading.Thread(target=run, name="remote-code", daemon=True).start()
        end = time.monotonic() + limit_s
        try:
            while not wait((done,), POLL_S).done:
                self._check()
                if time.monotonic() > end:
                    raise _TooLongError  # noqa: TRY301 - the end of a wait
        except BaseException:  # also a stop: raised again
            done.add_done_callback(lambda late: None if late.exception() else afterwards(late.result()))
            self._discard()
            raise
        return done.result()

    def _discard(self) -> None:
        real, self._real = self._real, None
        self._forget(self.names)
        if real:
            clean_up_in_background(real)

    def _forget(self, names: frozenset[str]) -> None:
        self._unseen |= names
        self.names = frozenset()
        self._on_loss(names)

    def _gone(self) -> str:
        """Return a sentence with the names of lost variables, once."""
        names, self._unseen = self._unseen, frozenset()
        return GONE.format(names=", ".join(sorted(names))) if names else ""


class _TooLongError(Exception):
    """A block has used up its time."""


def _clean_up(thing: Any) -> None:
    try:
        if hasattr(thing, "cleanup"):
            thing.cleanup()
    except BaseException as error:  # noqa: BLE001 - an author's or a vendor's, whose text may hold a key
        name, kind = type(thing).__name__, type(error).__name__
        log.warning("a %s could not be cleaned up (%s)", name, kind, extra={"action": "agent.cleanup"})


def _plain(text: str) -> str:
    return truncate_content(utf8_text(_ANSI.sub("", text)), max_length=MAX_TEXT_CHARS)


def clean_up_in_background(thing: Any) -> None:
    """Clean up an agent or an executor in a thread: that of a remote executor is slow."""
    threading.Thread(target=_clean_up, args=(thing,), name=_CLEAN_UP, daemon=True).start()


def wait_for_clean_ups(limit_s: float) -> None:
    """Wait until all clean-ups have ended, within a limit."""
    end = time.monotonic() + limit_s
    for thread in threading.enumerate():
        if thread.name == _CLEAN_UP:
            thread.join(max(0.0, end - time.monotonic()))
