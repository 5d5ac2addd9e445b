"""Code process of one session: smolagents' interpreter, whose tools are called in the parent process."""

from __future__ import annotations

import copy
import importlib
import pickle
import select
import socket
import threading
from dataclasses import asdict
from functools import partial
from typing import Any, Self

from smolagents import local_python_executor as interpreter
from smolagents.local_python_executor import InterpreterError, LocalPythonExecutor, PrintContainer
from smolagents.utils import truncate_content

from smolsessions.agents.sandbox.channel import Channel, ClosedError
from smolsessions.agents.sandbox.clock import CLOCKS
from smolsessions.agents.sandbox.confinement.levels import Confinement
from smolsessions.agents.sandbox.guard import tool_stub
from smolsessions.agents.sandbox.json_export import json_answers
from smolsessions.agents.sandbox.limits import MB, CodeLimits
from smolsessions.agents.sandbox.seeding import RANDOM_CHUNK, RandomGenerators
from smolsessions.agents.sandbox.variables import Variables, use_state
from smolsessions.agents.values import CodecError, dumps, dumps_lossy, loads
from smolsessions.agents.values.json_forms import json_form, utf8_text
from smolsessions.agents.values.results import rebuild_error

_EXECUTOR = LocalPythonExecutor([], timeout_seconds=None)  # made once, since it looks for all modules of its imports
EAGER_PRINTS, PRINTED_CHARS = 200, 1000  # prints of a block that are sent at once, and how many characters later
MAX_TEXT_CHARS = 100_000  # of an output's text; the model reads fewer


def serve(sock: socket.socket, confinement: Confinement) -> None:
    """Answer the parent's requests until it closes the socket."""
    channel = Channel(sock, 2**31)
    confinement.drop_rights()
    try:
        arrived = select.poll()
        arrived.register(sock, select.POLLIN)
        if not arrived.poll(0):
            warm_up(1)  # a spare process takes the pages of memory that the first block changes
        setup = channel.receive()
        limits = CodeLimits(**setup["limits"])
        if "export" in setup:
            confinement.confine(limits)
            channel.send({"answers": json_answers(setup["export"])})
            return
        runner = _CodeRunner(channel, setup, limits)
        confinement.confine(limits)
        runner.restore(setup)
        while True:
            runner.run(channel.receive())
    except ClosedError:
        pass


def warm_up(times: int) -> None:
    """Run blocks. The processes of the fork server share what Python creates and specializes at first use."""
    limits, (ours, theirs) = CodeLimits(), socket.socketpair()
    setup: dict[str, Any] = {name: [] for name in ("stored_classes", "imports", "authorized", "tools", "dropped")}
    setup |= {"max_print": 0, "variables": pickle.dumps({}), "inputs": {}, "inputs_are_new": True, "logs": ""}
    setup["limits"] = asdict(limits)
    with ours, theirs:
        for _ in range(times):
            Channel(ours, MB).send(setup)
            channel = Channel(theirs, MB)
            runner = _CodeRunner(channel, channel.receive(), limits)
            runner.restore(setup)
            for code in ("data = {'a': [1]}", "print(data['a'])"):
                runner.send_result(code)


class _Prints(PrintContainer):
    """Prints of a block. They are sent as they come, since the process is killed if the block exceeds its time."""

    def __init__(self, channel: Channel, max_chars: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._channel, self._room = channel, max_chars
        self._unsent = ""
        self._prints = 0

    def __iadd__(self, other: object) -> Self:
        super().__iadd__(other)  # type: ignore[no-untyped-call]
        self._unsent = utf8_text(self._unsent + str(other))[: self._room]
        self._prints += 1
        is_due = self._unsent and (self._prints <= EAGER_PRINTS or len(self._unsent) >= PRINTED_CHARS)
        if is_due and threading.current_thread() is threading.main_thread():  # others would break into its messages
            self._channel.send({"printed": self._unsent})
            self._room -= len(self._unsent)
            self._unsent = ""
        return self


class _CodeRunner:
    def __init__(self, channel: Channel, setup: dict[str, Any], limits: CodeLimits) -> None:
        self._channel = channel
        self._running = False
        self._stored_classes = tuple(
            getattr(importlib.import_module(module), name) for module, name in setup["stored_classes"]
        )
        self._executor = copy.copy(_EXECUTOR)
        self._executor.state, self._executor.custom_tools = dict(_EXECUTOR.state), {}
        self._executor.max_print_outputs_length = setup["max_print"]
        self._executor.additional_authorized_imports = setup["imports"]
        self._executor.authorized_imports = setup["authorized"]  # in the parent's order, which error sentences show
        self._state = use_state(self._executor)
        interpreter.PrintContainer = lambda: _Prints(channel, setup["max_print"])  # type: ignore[assignment, misc]
        tools: dict[str, Any] = {
            name: tool_stub(name, partial(self._call, name), {"description": description})
            for name, description in setup["tools"]
        }
        self._executor.send_tools(tools)
        self._max_bytes = limits.output_bytes
        self._inputs: dict[str, tuple[Any, bytes]] = {}
        self._variables = Variables(self._executor, limits.variables_bytes)

    def restore(self, setup: dict[str, Any]) -> None:
        """Restore the variables. Loading them may run model-written code."""
        new_inputs = setup["inputs_are_new"]
        if not new_inputs:  # an earlier process had the same inputs: variables that replaced them win
            self._set_inputs(setup["inputs"])
        chunks = pickle.loads(setup["variables"])  # noqa: S301 - of the parent
        self._generators = RandomGenerators(chunks.pop(RANDOM_CHUNK, b""))
        lost = self._variables.load(chunks)
        if new_inputs:
            self._set_inputs(setup["inputs"])
        self._state.dropped = frozenset([*setup["dropped"], *lost])
        self._state["_print_outputs"] = PrintContainer()
        self._state["_print_outputs"] += setup["logs"]  # smolagents repeats them if the next block cannot be parsed
        self._channel.send({"dropped": sorted(self._state.dropped)})

    def _set_inputs(self, inputs: dict[str, bytes]) -> None:
        """Bind the values that the agent passes to its code. They replace variables of the same names."""
        values = {name: loads(data, self._stored_classes) for name, data in inputs.items()}
        self._inputs = {name: (value, inputs[name]) for name, value in values.items()}
        self._executor.send_variables(values)
        self._variables.exclude(values)

    def run(self, request: dict[str, Any]) -> None:
        if "inputs" in request:
            self._set_inputs(request["inputs"])
        self._generators.begin_block(request["seed"])
        CLOCKS.begin_block(request["clock"])
        self.send_result(request["code"])

    def send_result(self, code: str) -> None:
        output, text, is_final, error = None, "None", False, None
        self._running = True
        try:
            result = self._executor(code)
            encoded = dumps_lossy(result.output, self._stored_classes, max_bytes=self._max_bytes)
            text = truncate_content(str(result.output), MAX_TEXT_CHARS)
            output, is_final = encoded, result.is_final_answer
        except Exception as raised:  # noqa: BLE001 - the model reads every error of its code
            error = str(raised) or type(raised).__name__
        except BaseException as raised:  # noqa: BLE001 - `exit` and the like must not end this process
            reason = f"{type(raised).__name__}: {raised}".rstrip(": ")
            error = f"Code execution failed due to: {reason}. To end with an answer, call final_answer."
        finally:
            self._running = False
            CLOCKS.end_block()
        logs = self._executor.state.get("_print_outputs")
        message = {"output": output, "text": text, "final": is_final, "error": error, **self._save()}
        message |= {"logs": str(logs) if logs is not None else "", "dropped": sorted(self._state.dropped)}
        self._channel.send(message)

    def _save(self) -> dict[str, Any]:
        try:
            random_states = self._generators.end_block()
            saved = self._variables.save()
            inputs = {}  # that the code changed in place: in the agent's own process they were the same objects
            for name, (value, known) in self._inputs.items():
                data = dumps_lossy(value, self._stored_classes)
                if data != known:
                    inputs[name] = data
                    self._inputs[name] = (value, data)
            if dropped := self._state.dropped:
                dropped -= {*self._state.keys(), *self._executor.custom_tools}
            self._state.dropped = dropped | {*saved.dropped}
        except MemoryError:
            return {"changed": {}, "removed": [], "inputs": {}, "full": True}
        changed = saved.changed | random_states
        return {"changed": changed, "removed": saved.removed, "inputs": inputs, "full": False}

    def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        is_answer = name == "final_answer"
        if not self._running:
            raise InterpreterError(f"The tool `{name}` can be called by a code block alone.")
        try:
            arguments = dumps([list(args), kwargs], self._stored_classes, max_bytes=self._max_bytes)
        except CodecError:
            if not is_answer:
                raise
            named = {key: json_form(value) for key, value in kwargs.items()}
            arguments = dumps([[json_form(value) for value in args], named], max_bytes=self._max_bytes)
        message: dict[str, Any] = {"call": name, "arguments": arguments}
        if not is_answer and (readings := CLOCKS.take()):
            message["clock"] = readings
        self._channel.send(message)
        reply = self._channel.receive()
        if "raised" in reply:
            raise rebuild_error(*reply["raised"])
        if is_answer and len(args) + len(kwargs) == 1:
            (answer,) = (*args, *kwargs.values())
            if reply["returned"] == dumps_lossy(answer, self._stored_classes):
                return answer  # the object itself, even if only its label could cross
        return loads(reply["returned"], self._stored_classes)
