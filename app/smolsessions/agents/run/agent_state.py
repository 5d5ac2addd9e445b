"""Agents of a session as their proxies see them, and the state beside their steps.

That state is variables, `agent.state` and the tools' own state.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from smolagents import MultiStepAgent
from smolagents.local_python_executor import LocalPythonExecutor, PrintContainer

from smolsessions.agent_options import options_of
from smolsessions.agents.run.agent_run import AgentRun
from smolsessions.agents.run.approvals import Approvals
from smolsessions.agents.run.managed_memory import MEMORY, ManagedMemory
from smolsessions.agents.run.proxy import unproxied
from smolsessions.agents.sandbox.interpreter import ChildInterpreter
from smolsessions.agents.sandbox.variables import INTERNAL_NAMES, use_state
from smolsessions.agents.values import CodecError, dumps, loads
from smolsessions.agents.values.json_forms import utf8_text

log = logging.getLogger(__name__)

CodePlace = Literal["child", "thread", "remote"]
STATE, LOST, PROCESS_ONLY, REPORTED, LOGS = "state", "lost", "process_only", "reported", "logs"
VARIABLE, TOOL, RESET = "v:", "tool:", "reset:"
_DATA = (str, int, float, bytes, bytearray, list, tuple, dict, set, frozenset, type(None))
_NO_STATE = frozenset({"is_initialized", "inputs", "output_type", "output_schema", "name", "description"})
LOST_SENTENCE = "(These variables of earlier code could not be kept and are gone: {names}.)"


@dataclass(eq=False)
class AgentNode:
    """One agent of a session, as its proxies see it. Its path is empty for the root, `helper/searcher` below it."""

    path: str
    agent: MultiStepAgent
    stored_classes: tuple[type, ...]
    code_runs_in: CodePlace | None
    author_streams: bool
    """True if smolagents would stream: it then joins an answer without text to an empty one."""
    busy: threading.Lock = field(default_factory=threading.Lock)
    """Held during a run of a managed agent."""
    agent_run: AgentRun | None = None
    approvals: Approvals | None = None
    """None: no call of the turn needs a person's decision."""
    interpreter: ChildInterpreter | None = None
    memory: ManagedMemory | None = None
    """None: each call of the agent begins without a memory, or the conversation is its memory."""
    state: AgentState = field(init=False)
    made: dict[str, Any] = field(init=False)
    """`agent.state` as the factory made it."""
    journaled: dict[str, bytes] = field(default_factory=dict)
    """`agent.state` as the journal has it."""
    unkept: set[str] = field(default_factory=set)
    """Names in `agent.state` whose values cannot be stored."""
    lost: set[str] = field(default_factory=set)
    """Lost names of an agent without a child process."""

    def __post_init__(self) -> None:
        self.made = self.agent.state.copy()

    def check(self) -> None:
        """Raise `TurnStopped` if a stop was requested."""
        if self.agent_run:
            self.agent_run.turn_run.check()


class AgentState:
    """State of all agents of a session, stored as pieces by name.

    `path:state` is `agent.state`, and `path:v:…` a variable of an interpreter. `path:lost` lists names whose values
    could not be stored. `path:process_only` lists names of values that live in this process only, so that a rebuilt
    agent has lost them. `:reported` lists the lost names that the model knows of. `path:logs` is the output of the
    last code block. `path:tool:…` is the `get_state()` of a tool, and `path:reset:…` marks a tool without
    `get_state()` that has changed. `path:memory:…` is a call in the memory of a managed agent that remembers.
    """

    def __init__(self, nodes: Sequence[AgentNode], pieces: dict[str, bytes]) -> None:
        self._nodes = nodes
        self._kept = dict(pieces)
        self._lost_before: set[str] = set()
        self._reported: set[str] = _names(pieces.get(f":{REPORTED}"))
        self._lock = threading.Lock()
        self._tools: dict[str, bytes] = {}
        self._reset: set[str] = set()
        self._has_played = False
        self._found_lost: set[str] = set()
        """Names that only the process of an earlier turn held, during the first turn of this rebuilt agent."""
        for node in nodes:
            node.state = self
            self._restore(node)
        for piece, data in pieces.items():
            if piece.partition(":")[2].startswith((TOOL, RESET)):
                self._restore_tool(piece, data)

    def changes(self) -> dict[str, bytes | None]:
        """Return the pieces that changed since the last call. None stands for a removed one."""
        now = dict(self._pieces())
        changed: dict[str, bytes | None] = {name: data for name, data in now.items() if self._kept.get(name) != data}
        changed |= {name: None for name in self._kept if name not in now}
        self._kept = now
        for node in self._nodes:
            if node.interpreter:
                start = f"{node.path}:{VARIABLE}"
                changed |= {start + name: data for name, data in node.interpreter.take_changes().items()}
        return changed

    def size(self) -> int:
        interpreters = [node.interpreter for node in self._nodes if node.interpreter]
        return sum(map(len, self._kept.values())) + sum(each.variables_bytes for each in interpreters)

    def snapshot_tool(self, tool: Any) -> object:
        return None if has_own_state(tool) else _data_marks(tool)

    def tool_changes(self, tool: Any, before: object) -> dict[str, bytes]:
        """Return the pieces that changed during a tool's call: agents' states and the tool's own state."""
        changes: dict[str, bytes] = {}
        with self._lock:
            try:
                for node in self._nodes:
                    now = _encoded_state(node)
                    written = {name: data for name, data in now.items() if node.journaled.get(name) != data}
                    removed = [name for name in node.journaled if name not in now]
                    if written or removed:
                        node.journaled = now
                        changes[f"{node.path}:{STATE}"] = dumps([written, removed])
            except Exception:  # the result of the call stays valid
                log.exception("what %s changed cannot be kept", tool.name, extra={"action": "state.unkept"})
            state = None
            if before is None:
                try:
                    state = dumps(tool.get_state(), self._nodes[0].stored_classes)
                except Exception:  # the tool counts as one without `get_state()`
                    log.exception("the tool %s could not give its state", tool.name, extra={"action": "tool.stateless"})
            if state is None and before == _data_marks(tool):
                return changes
            places = (
                (node.path, name)
                for node in self._nodes
                for name, one in node.agent.tools.items()
                if unproxied(one) is tool
            )
            path, name = next(places, ("", tool.name))
            piece = f"{path}:{RESET if state is None else TOOL}{name}"
            state = state or b"1"
            if self._tools.get(piece) != state:
                changes[piece] = self._tools[piece] = state
            return changes

    def apply_changes(self, changes: dict[str, bytes]) -> None:
        with self._lock:
            for piece, data in changes.items():
                path, _, rest = piece.partition(":")
                if rest != STATE:
                    self._restore_tool(piece, data)
                    self._tools[piece] = data
                    continue
                node = next(node for node in self._nodes if node.path == path)
                written, removed = loads(data)
                node.journaled |= written
                for name, value in written.items():
                    if value:
                        node.agent.state[name] = loads(value, node.stored_classes)
                    else:
                        node.agent.state.pop(name, None)
                        _lose(node, {name})
                for name in removed:
                    node.journaled.pop(name, None)
                    node.agent.state.pop(name, None)

    def put(self, node: AgentNode, values: Mapping[str, Any]) -> None:
        """Set values of `agent.state` that a replay sets again, so that no effect needs them."""
        with self._lock:
            node.agent.state.update(values)
            node.journaled |= {name: dumps(value, node.stored_classes) for name, value in values.items()}

    def begin_turn(self, *, forgets: bool) -> str:
        """Return a sentence about variables lost since the last turn, for the model. Reset `dropped`.

        With `forgets`, managed agents forget the calls of earlier turns.
        """
        for node in self._nodes:
            if node.memory:
                node.memory.begin_turn(forgets=forgets)
            # A rebuilt agent would not have these values, and a warm one must be the same.
            if node.unkept and not _in_thread(node):
                for name in node.unkept:
                    node.agent.state.pop(name, None)
                _lose(node, node.unkept)
                node.unkept = set()
        self._lost_before = self._all_lost()
        if self._has_played:
            self._found_lost = set()
            self._reset.clear()
        self._found_lost &= self._lost_before
        self._has_played = True
        lost = _lost_of(self._nodes[0])
        unreported = sorted(lost - self._reported)
        self._reported = lost
        return f"\n\n{LOST_SENTENCE.format(names=', '.join(unreported))}" if unreported else ""

    def dropped(self) -> tuple[str, ...]:
        """Return the names of variables that this turn lost, or found lost. Managed agents' names have their path.

        `tool:NAME` is a tool whose own state was lost, because it has no `get_state()`.
        """
        dropped = (self._all_lost() - self._lost_before) | self._found_lost
        return (*sorted(dropped), *sorted(TOOL + name for name in self._reset))

    def stop_interpreters(self) -> None:
        for node in self._nodes:
            if node.interpreter:
                node.interpreter.stop()

    def _restore(self, node: AgentNode) -> None:
        start = f"{node.path}:"
        stored = {name.removeprefix(start): data for name, data in self._kept.items() if name.startswith(start)}
        if node.path and options_of(node.agent).remembers:
            calls = {name: data for name, data in stored.items() if name.startswith(MEMORY)}
            node.memory = ManagedMemory(node.agent, calls, node.stored_classes)
        if state := stored.get(STATE):
            node.journaled = loads(state)
            node.agent.state.update({name: loads(data, node.stored_classes) for name, data in node.journaled.items()})
        lost, process_only = _names(stored.get(LOST)), _names(stored.get(PROCESS_ONLY))
        self._found_lost |= {_full_name(node.path, name) for name in process_only - lost}
        _lose(node, lost | process_only)
        logs = stored.get(LOGS, b"").decode()
        if node.interpreter:
            held = [name for name in stored if name.startswith(VARIABLE)]
            node.interpreter.restore({name.removeprefix(VARIABLE): self._kept.pop(start + name) for name in held}, logs)
        elif executor := _in_thread(node):
            names = use_state(executor)
            names.dropped = frozenset(lost | process_only)
            names["_print_outputs"] = PrintContainer().append(logs)

    def _restore_tool(self, piece: str, data: bytes) -> None:
        """Restore a tool's own state. A tool that changed without `get_state()` has lost its state."""
        path, kind, name = piece.split(":", 2)
        if f"{kind}:" == TOOL:
            node = next((node for node in self._nodes if node.path == path), None)
            tool: Any = unproxied(node.agent.tools.get(name)) if node else None
            try:
                tool.set_state(loads(data, node.stored_classes if node else ()))
            except Exception:  # of an author
                log.exception("the tool %s could not take its state", name, extra={"action": "tool.reset"})
            else:
                self._tools[piece] = data
                return
        self._reset.add(_full_name(path, name))

    def _pieces(self) -> Iterator[tuple[str, bytes]]:
        """Yield the pieces as they are now, without the variables of child processes."""
        for node in self._nodes:
            if node.memory:
                for name, data in node.memory.pieces().items():
                    yield f"{node.path}:{name}", data
            if not (node.agent.state or node.code_runs_in or node.lost or node.unkept):
                continue  # most agents that write no code have none, and to look for each kind takes 1 % of a turn
            start, state = f"{node.path}:", _encoded_state(node)
            node.unkept = {name for name, data in state.items() if not data}
            if kept := {name: data for name, data in state.items() if data}:
                yield start + STATE, dumps(kept)
            for piece, names in ((LOST, _lost_of(node)), (PROCESS_ONLY, _process_only(node))):
                if names:
                    yield start + piece, json.dumps(sorted(names)).encode()
            executor = _in_thread(node)
            printed = utf8_text(str(executor.state.get("_print_outputs", ""))) if executor else ""
            if logs := node.interpreter.logs if node.interpreter else printed:
                yield start + LOGS, logs.encode()
        yield from self._tools.items()
        if self._reported:
            self._reported &= _lost_of(self._nodes[0])  # a name that is lost again is reported again
        if self._reported:
            yield f":{REPORTED}", json.dumps(sorted(self._reported)).encode()

    def _all_lost(self) -> set[str]:
        return {_full_name(node.path, name) for node in self._nodes for name in _lost_of(node)}


def _names(data: bytes | None) -> set[str]:
    return set(json.loads(data)) if data else set()


def _full_name(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _encoded_state(node: AgentNode) -> dict[str, bytes]:
    """Encode `agent.state`. A value that cannot be stored, and that the factory does not make, is empty bytes."""
    found = {}
    for name, value in node.agent.state.copy().items():  # parallel calls may change it
        try:
            found[name] = dumps(value, node.stored_classes)
        except CodecError:
            if node.made.get(name) is not value:
                found[name] = b""
    return found


def _lose(node: AgentNode, names: set[str]) -> None:
    if node.interpreter:
        node.interpreter.dropped |= names
    else:
        node.lost |= names


def _lost_of(node: AgentNode) -> set[str]:
    """Return the names that an agent has lost, or will lose at the end of the turn."""
    lost = {*(node.interpreter.dropped if node.interpreter else node.lost)}
    if not (lost or node.unkept):
        return lost
    return (lost - node.agent.state.keys() - _process_only(node)) | (set() if _in_thread(node) else node.unkept)


def _process_only(node: AgentNode) -> set[str]:
    """Return the names of code that runs in a thread or a remote executor: they live as long as this session."""
    if node.code_runs_in == "remote":
        return {*unproxied(getattr(node.agent, "python_executor", None)).names} - node.agent.state.keys()
    executor = _in_thread(node)
    if not executor:
        return set()
    names = {*executor.state, *executor.custom_tools} - INTERNAL_NAMES - node.agent.state.keys()
    return {name for name in names if not name.startswith("__")} | node.unkept  # smolagents stores methods there, too


def _in_thread(node: AgentNode) -> LocalPythonExecutor | None:
    executor = unproxied(getattr(node.agent, "python_executor", None)) if node.code_runs_in == "thread" else None
    return executor if isinstance(executor, LocalPythonExecutor) else None


def has_own_state(tool: Any) -> bool:
    return callable(getattr(tool, "get_state", None)) and callable(getattr(tool, "set_state", None))


def _data_marks(tool: Any) -> dict[str, tuple[int, int]]:
    """Return ids and lengths of a tool's data, to detect changes. Other objects (a client, a model) are no state."""
    return {
        name: (id(value), len(value) if hasattr(value, "__len__") else 0)
        for name, value in vars(tool).copy().items()
        if name not in _NO_STATE and type(value) in _DATA
    }
