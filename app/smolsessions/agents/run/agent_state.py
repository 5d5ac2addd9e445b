"""What a session's agents hold beside their steps, as pieces by name: variables, `agent.state`, tools' own state."""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING, Any

from smolagents.local_python_executor import LocalPythonExecutor, PrintContainer

from smolsessions.agents.run.tool_proxy import unproxied
from smolsessions.agents.sandbox.variables import INTERNAL, Names
from smolsessions.agents.values import CannotCrossError, dumps, loads
from smolsessions.agents.values.json_forms import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smolsessions.agents.run.instrumentation import Family, Member

log = logging.getLogger(__name__)

STATE, GONE, HELD, TOLD, LOGS, PIECE, TOOL, RESET = "state", "gone", "held", "told", "logs", "v:", "tool:", "reset:"
_DATA = (str, int, float, bytes, bytearray, list, tuple, dict, set, frozenset, type(None))
_NO_STATE = frozenset({"is_initialized", "inputs", "output_type", "output_schema", "name", "description"})
GONE_SENTENCE = "(These variables of earlier code could not be kept and are gone: {names}.)"


class Belongings:
    """Pieces are called `path:state`, `path:gone` (names that could not be kept), `path:v:…` (an interpreter's).

    `path:held` names values that live in this process alone: a rebuilt agent has lost them. `path:logs` is what an
    interpreter's last block printed. `path:tool:…` is what a tool's `get_state()` gave, `path:reset:…` says of a tool
    without one that it has changed.
    """

    def __init__(self, family: Family, pieces: dict[str, bytes]) -> None:
        """Give the family what was kept."""
        self._family = family
        self._kept = dict(pieces)
        self._gone_before: frozenset[str] = frozenset()
        self._told: frozenset[str] = frozenset(json.loads(pieces.get(f":{TOLD}", b"[]")))
        self._lock = threading.Lock()
        self._states: dict[str, dict[str, bytes]] = {}
        self._own: dict[str, bytes] = {}
        """The pieces of tools' own state."""
        self._reset: set[str] = set()
        self._has_played = False
        self._made = {member.path: member.agent.state.copy() for member in family.members}
        """The states as the factory made them."""
        self._unkept: dict[str, set[str]] = {}
        """Names in agents' states whose values cannot be kept."""
        self._lost: dict[str, set[str]] = {member.path: set() for member in family.members}
        """Names that were lost, of agents whose code has no process of its own."""
        self._newly_lost: frozenset[str] = frozenset()
        self._found_lost: frozenset[str] = frozenset()
        """Names that an earlier turn's process held: first of this rebuilt agent, then of the turn that misses them."""
        for member in family.members:
            self._restore(member)
            member.seat.keeper = self
        for piece, data in pieces.items():
            if piece.partition(":")[2].startswith((TOOL, RESET)):
                self._restore_tool(piece, data)

    def changes(self) -> dict[str, bytes | None]:
        """Give the pieces that are new, other or gone (None) since they were last given, or were kept."""
        now = dict(self._now())
        changed: dict[str, bytes | None] = {name: data for name, data in now.items() if self._kept.get(name) != data}
        changed |= {name: None for name in self._kept if name not in now}
        self._kept = now
        return changed

    def size(self) -> int:
        """Return the bytes of all pieces."""
        return sum(map(len, self._kept.values()))

    def before(self, tool: Any) -> object:
        """Look at a tool before its call."""
        return None if gives_state(tool) else _looks_of(tool)

    def changed(self, tool: Any, before: object) -> dict[str, bytes]:
        """Give what changed with a tool's call: agents' states, and the tool's own state, or that it has one."""
        with self._lock:
            path, name = self._place_of(tool)
            try:
                changes = self._changed_states()
            except Exception:  # the call was made, and its result counts
                log.exception("what %s changed cannot be kept", name, extra={"action": "state.unkept"})
                changes = {}
            state = self._state_of(tool) if before is None else None
            if state is not None:
                if self._own.get(path + TOOL + name) != state:
                    changes[path + TOOL + name] = self._own[path + TOOL + name] = state
            elif before != _looks_of(tool):
                changes[path + RESET + name] = self._own[path + RESET + name] = b"1"
            return changes

    def change(self, kept: dict[str, bytes]) -> None:
        """Make the changes of a call that is not made again."""
        with self._lock:
            for piece, data in kept.items():
                path, _, rest = piece.partition(":")
                if rest == STATE:
                    self._change_state(path, data)
                else:
                    self._restore_tool(piece, data)
                    self._own[piece] = data

    def begin_turn(self) -> str:
        """Give what the model must be told of the turns before; from now on `dropped` names what this turn loses."""
        for member in self._family.members:
            self._drop_unkept(member)
        self._gone_before = self._gone()
        self._found_lost = self._newly_lost & self._gone_before
        self._newly_lost = frozenset()
        if self._has_played:
            self._reset.clear()
        self._has_played = True
        gone = self._gone_of(self._family.head)
        untold = sorted(gone - self._told)
        self._told = frozenset(gone)
        return f"\n\n{GONE_SENTENCE.format(names=', '.join(untold))}" if untold else ""

    def dropped(self) -> tuple[str, ...]:
        """Name the variables that this turn could not keep, or found lost, those of managed agents with their path.

        A tool that lost a state of its own, since it cannot give it, is `tool:NAME`.
        """
        dropped = (self._gone() - self._gone_before) | self._found_lost
        return (*sorted(dropped), *sorted(TOOL + name for name in self._reset))

    def rest(self) -> None:
        """End the interpreters' processes: the turn is over."""
        for interpreter in self._family.interpreters:
            interpreter.rest()

    def _restore(self, member: Member) -> None:
        start = f"{member.path}:"
        if state := self._kept.get(start + STATE):
            member.agent.state.update({name: loads(data, self._family.carries) for name, data in loads(state).items()})
        gone, held = (set(json.loads(self._kept.get(start + piece, b"[]"))) for piece in (GONE, HELD))
        self._newly_lost |= {_full_name(member, name) for name in held - gone}
        self._lose(member, gone | held)
        logs = self._kept.get(start + LOGS, b"").decode()
        if member.interpreter:
            pieces = {
                name.removeprefix(start + PIECE): data
                for name, data in self._kept.items()
                if name.startswith(start + PIECE)
            }
            member.interpreter.variables, member.interpreter.logs = pieces, logs
        elif executor := _in_thread(member):
            executor.state = names = Names(executor.state)
            names.gone, names.functions = frozenset(gone | held), executor.custom_tools
            names["_print_outputs"] = PrintContainer().append(logs)

    def _restore_tool(self, piece: str, data: bytes) -> None:
        """Give a tool the state that it gave; one that changed and gave none has lost it."""
        path, _, rest = piece.partition(":")
        kind, _, name = rest.partition(":")
        if kind + ":" == RESET:
            self._reset.add(f"{path}.{name}" if path else name)
            return
        member = next((member for member in self._family.members if member.path == path), None)
        tool: Any = unproxied(member.agent.tools.get(name)) if member else None
        try:
            tool.set_state(loads(data, self._family.carries))
            self._own[piece] = data
        except Exception:
            log.exception("the tool %s could not take its state", name, extra={"action": "tool.reset"})
            self._reset.add(f"{path}.{name}" if path else name)

    def _changed_states(self) -> dict[str, bytes]:
        changes = {}
        for member in self._family.members:
            if not member.agent.state and member.path not in self._states:
                continue
            before = self._states.get(member.path, {})
            now = self._state_of_agent(member)
            written = {name: data for name, data in now.items() if before.get(name) != data}
            gone = [name for name in before if name not in now]
            if written or gone:
                self._states[member.path] = now
                changes[f"{member.path}:{STATE}"] = dumps([written, gone])
        return changes

    def _change_state(self, path: str, data: bytes) -> None:
        member = next(member for member in self._family.members if member.path == path)
        written, gone = loads(data)
        known = self._states.setdefault(path, {})
        for name, value in written.items():
            known[name] = value
            if value:
                member.agent.state[name] = loads(value, self._family.carries)
            else:
                member.agent.state.pop(name, None)
                self._lose(member, {name})
        for name in gone:
            known.pop(name, None)
            member.agent.state.pop(name, None)

    def _state_of_agent(self, member: Member) -> dict[str, bytes]:
        """Return an agent's state: no bytes for a value that cannot be kept, unless the factory makes it again."""
        found = {}
        for name, value in member.agent.state.copy().items():  # other calls may be at it
            try:
                found[name] = dumps(value, self._family.carries)
            except CannotCrossError:
                if self._made[member.path].get(name) is not value:
                    found[name] = b""
        return found

    def _drop_unkept(self, member: Member) -> None:
        """Take from an agent's state what a rebuilt agent would not have: a turn is the same, warm or cold."""
        if _in_thread(member):
            return
        unkept = self._unkept.pop(member.path, set())
        for name in unkept:
            member.agent.state.pop(name, None)
        self._lose(member, unkept)

    def _lose(self, member: Member, names: set[str]) -> None:
        if member.interpreter:
            member.interpreter.gone |= names
        else:
            self._lost[member.path] |= names

    def _place_of(self, tool: Any) -> tuple[str, str]:
        """Give the beginning of a tool's pieces, and its name."""
        for member in self._family.members:
            for name, one in member.agent.tools.items():
                if unproxied(one) is tool:
                    return f"{member.path}:", name
        return ":", tool.name

    def _state_of(self, tool: Any) -> bytes | None:
        """Ask a tool for its state; nothing where that fails: then it counts as one that cannot be kept."""
        try:
            return dumps(tool.get_state(), self._family.carries)
        except Exception:
            log.exception("the tool %s could not give its state", tool.name, extra={"action": "tool.stateless"})
            return None

    def _now(self) -> Iterator[tuple[str, bytes]]:
        for member in self._family.members:
            state = self._state_of_agent(member)
            self._unkept[member.path] = {name for name, data in state.items() if not data}
            if kept := {name: data for name, data in state.items() if data}:
                yield f"{member.path}:{STATE}", dumps(kept)
            for piece, names in ((GONE, self._gone_of(member)), (HELD, self._held_of(member))):
                if names:
                    yield f"{member.path}:{piece}", json.dumps(sorted(names)).encode()
            executor = _in_thread(member)
            if member.interpreter:
                for name, data in member.interpreter.variables.items():
                    yield f"{member.path}:{PIECE}{name}", data
            if logs := member.interpreter.logs if member.interpreter else _logs_of(executor):
                yield f"{member.path}:{LOGS}", logs.encode()
        yield from self._own.items()
        self._told &= self._gone_of(self._family.head)  # a name that is gone again is told again
        if self._told:
            yield f":{TOLD}", json.dumps(sorted(self._told)).encode()

    def _gone(self) -> frozenset[str]:
        return frozenset(_full_name(member, name) for member in self._family.members for name in self._gone_of(member))

    def _gone_of(self, member: Member) -> set[str]:
        """Return the names that an agent had and has no longer, or will not have in the next turn."""
        lost = {*(member.interpreter.gone if member.interpreter else self._lost[member.path])}
        unkept = set() if _in_thread(member) else self._unkept.get(member.path, set())
        return (lost - member.agent.state.keys() - self._held_of(member)) | unkept

    def _held_of(self, member: Member) -> set[str]:
        """Return the names of code that runs in a thread: they last as long as this session."""
        executor = _in_thread(member)
        if executor is None:
            return set()
        names = {*executor.state, *executor.custom_tools} - INTERNAL - member.agent.state.keys()
        names = {name for name in names if not name.startswith("__")}  # smolagents lists methods among the functions
        return names | self._unkept.get(member.path, set())


def _full_name(member: Member, name: str) -> str:
    return f"{member.path}.{name}" if member.path else name


def _in_thread(member: Member) -> LocalPythonExecutor | None:
    """Return an agent's interpreter where it runs code in this process."""
    executor = unproxied(getattr(member.agent, "python_executor", None))
    return executor if isinstance(executor, LocalPythonExecutor) else None


def _logs_of(executor: LocalPythonExecutor | None) -> str:
    return text_of(str(executor.state.get("_print_outputs", ""))) if executor else ""


def gives_state(tool: Any) -> bool:
    return callable(getattr(tool, "get_state", None)) and callable(getattr(tool, "set_state", None))


def _looks_of(tool: Any) -> dict[str, tuple[int, int]]:
    """Give what tells whether a tool changed its own data; what else it holds (a client, a model) is no state."""
    return {
        name: (id(value), len(value) if hasattr(value, "__len__") else 0)
        for name, value in vars(tool).copy().items()
        if name not in _NO_STATE and type(value) in _DATA
    }
