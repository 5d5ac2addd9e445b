"""The process in which one session's model-written code runs: an interpreter whose tools are called in the parent."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from smolagents.local_python_executor import InterpreterError, LocalPythonExecutor, PrintContainer
from smolagents.utils import truncate_content

from smolsessions.agents.run.effects import error_of
from smolsessions.agents.sandbox.channel import Channel, ClosedError
from smolsessions.agents.sandbox.guard import stub
from smolsessions.agents.sandbox.json_export import json_answers
from smolsessions.agents.sandbox.seeding import RANDOM_CHUNK, RandomGenerators
from smolsessions.agents.sandbox.variables import InterpreterState, Variables
from smolsessions.agents.values import CodecError, dumps, dumps_lossy, loads
from smolsessions.agents.values.json_forms import json_form

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

    from smolsessions.agents.sandbox.confinement.levels import Confinement

MB = 1024 * 1024
MAX_TEXT_CHARS = 100_000  # of an output's text: the model is shown fewer


def serve(sock: socket.socket, confinement: Confinement) -> None:
    """Do what the parent asks until it closes the socket."""
    channel = Channel(sock, 2**31)
    try:
        begin = channel.receive()
        if "export" in begin:
            confinement.confine(**{name: begin[name] for name in ("memory_mb", "processes", "open_files")})
            channel.send({"answers": json_answers(begin["export"])})
            return
        runner = _CodeRunner(channel, begin)
        confinement.confine(memory_mb=begin["memory_mb"], processes=begin["processes"], open_files=begin["open_files"])
        runner.begin(begin)
        while True:
            runner.do(channel.receive())
    except ClosedError:
        pass


class _CodeRunner:
    def __init__(self, channel: Channel, begin: dict[str, Any]) -> None:
        self._channel = channel
        self._running = False
        self._carries = tuple(_classes(begin["carries"]))
        self._executor = LocalPythonExecutor([], max_print_outputs_length=begin["max_print"], timeout_seconds=None)
        self._executor.additional_authorized_imports = begin["imports"]
        self._executor.authorized_imports = begin["authorized"]  # as the parent has them: errors list them in order
        self._executor.state = self._names = InterpreterState(self._executor.state)
        self._names.functions = self._executor.custom_tools
        tools: dict[str, Any] = {name: self._stub(name, description) for name, description in begin["tools"]}
        self._executor.send_tools(tools)
        self._most_bytes = int(begin["output_mb"] * MB)
        self._given: dict[str, tuple[Any, bytes]] = {}
        self._variables = Variables(self._executor, int(begin["variables_mb"] * MB))

    def begin(self, begin: dict[str, Any]) -> None:
        """Restore the variables: from here on model-written code may run."""
        if not begin["anew"]:  # another process had these already: what its code made of them is among the variables
            self._give(begin["given"])
        self._generators = RandomGenerators(begin["variables"].pop(RANDOM_CHUNK, b""))
        lost = self._variables.load(begin["variables"])
        if begin["anew"]:
            self._give(begin["given"])
        self._names.dropped = frozenset([*begin["dropped"], *lost])
        self._names["_print_outputs"] = PrintContainer()
        self._names["_print_outputs"] += begin["logs"]  # smolagents shows them again if the next block cannot be parsed
        self._channel.send({"dropped": sorted(self._names.dropped)})

    def _give(self, given: dict[str, bytes]) -> None:
        """Take what the agent gives its code at the beginning of a run; it wins over variables of the same names."""
        values = {name: loads(data, self._carries) for name, data in given.items()}
        self._given = {name: (value, given[name]) for name, value in values.items()}
        self._executor.send_variables(values)
        self._variables.give(values)

    def _changed_in_place(self) -> dict[str, bytes]:
        """Give back what was given and was changed since: in the agent's own process that would be the same object."""
        changed = {}
        for name, (value, known) in self._given.items():
            data = dumps_lossy(value, self._carries)
            if data != known:
                changed[name] = data
                self._given[name] = (value, data)
        return changed

    def do(self, message: dict[str, Any]) -> None:
        """Run a code block and tell how it went."""
        if "given" in message:
            self._give(message["given"])
        self._generators.begin(message["seed"])
        done: dict[str, Any] = {"output": None, "text": "None", "final": False, "error": None}
        self._running = True
        try:
            result = self._executor(message["code"])
            output = dumps_lossy(result.output, self._carries, max_bytes=self._most_bytes)
            done |= {"output": output, "final": result.is_final_answer, "text": _text(result.output)}
        except Exception as error:  # noqa: BLE001 - all that code can raise is for the model to read
            done["error"] = str(error) or type(error).__name__
        except BaseException as error:  # noqa: BLE001 - `exit` and its like: they would end this process
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            done["error"] = f"Code execution failed due to: {reason}. To end with an answer, call final_answer."
        finally:
            self._running = False
        logs = self._executor.state.get("_print_outputs")
        kept: dict[str, Any] = {"changed": {}, "removed": [], "given": {}, "full": False}
        try:
            random_states = self._generators.end()
            saved = self._variables.save()
            made = {*self._names, *self._executor.custom_tools}
            self._names.dropped = frozenset(
                {*saved.dropped, *(name for name in self._names.dropped if name not in made)}
            )
            kept |= {
                "changed": saved.changed | random_states,
                "removed": saved.removed,
                "given": self._changed_in_place(),
            }
        except MemoryError:
            kept["full"] = True
        self._channel.send(
            {**done, **kept, "logs": str(logs) if logs is not None else "", "dropped": sorted(self._names.dropped)}
        )

    def _stub(self, name: str, description: str) -> Callable[..., Any]:
        return stub(name, lambda *args, **kwargs: self._call(name, args, kwargs), {"description": description})

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a tool in the parent."""
        is_answer = name == "final_answer"
        if not self._running:
            raise InterpreterError(f"The tool `{name}` can be called by a code block alone.")
        given = self._packed(args, kwargs, as_plain=is_answer)
        self._channel.send({"call": name, "given": given})
        answer = self._channel.receive()
        if "raised" in answer:
            raise error_of(*answer["raised"])
        if is_answer and len(args) + len(kwargs) == 1:
            (answered,) = (*args, *kwargs.values())
            if answer["returned"] == dumps_lossy(answered, self._carries):
                return answered  # as it is, also where only its label could cross
        return loads(answer["returned"], self._carries)

    def _packed(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, as_plain: bool) -> bytes:
        """Give a call's arguments as bytes. An answer that cannot cross crosses in its JSON form or as its label."""
        try:
            return dumps([list(args), kwargs], self._carries, max_bytes=self._most_bytes)
        except CodecError:
            if not as_plain:
                raise
        named = {name: json_form(value) for name, value in kwargs.items()}
        return dumps([[json_form(value) for value in args], named], max_bytes=self._most_bytes)


def _classes(names: Iterable[list[str]]) -> Iterable[type]:
    for module, name in names:
        importlib.import_module(module)
        yield getattr(sys.modules[module], name)


def _text(value: Any) -> str:
    return truncate_content(str(value), MAX_TEXT_CHARS)
