"""What a session's agents hold beside their steps, as pieces by name: variables, `agent.state`, tools' own state."""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING, Any

from app.agents.crossing import dumps, dumps_plain, loads
from app.agents.tool_proxy import unproxied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.agents.family import Family, Member

log = logging.getLogger(__name__)

STATE, GONE, TOLD, LOGS, PIECE, TOOL, RESET = "state", "gone", "told", "logs", "v:", "tool:", "reset:"
_DATA = (str, int, float, bytes, bytearray, list, tuple, dict, set, frozenset, type(None))
_NO_STATE = frozenset({"is_initialized", "inputs", "output_type", "output_schema", "name", "description"})
GONE_SENTENCE = "(These variables of earlier code could not be kept and are gone: {names}.)"


class Belongings:
    """Pieces are called `path:state`, `path:gone` (names that could not be kept), `path:v:…` (an interpreter's).

    `path:logs` is what an interpreter's last block printed. `path:tool:…` is what a tool's `get_state()` gave,
    `path:reset:…` says of a tool without one that it has changed.
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
        self._gone_before = self._gone()
        if self._has_played:
            self._reset.clear()
        self._has_played = True
        head = self._family.head.interpreter
        untold = sorted(head.gone - self._told) if head else []
        self._told = (
            frozenset([*untold, *(self._told & head.gone)]) if head else frozenset()
        )  # gone again is told again
        return f"\n\n{GONE_SENTENCE.format(names=', '.join(untold))}" if untold else ""

    def dropped(self) -> tuple[str, ...]:
        """Name the variables that this turn could not keep, those of managed agents with their path.

        A tool that lost a state of its own, since it cannot give it, is `tool:NAME`.
        """
        return (*sorted(self._gone() - self._gone_before), *sorted(TOOL + name for name in self._reset))

    def rest(self) -> None:
        """End the interpreters' processes: the turn is over."""
        for interpreter in self._family.interpreters:
            interpreter.rest()

    def _restore(self, member: Member) -> None:
        start = f"{member.path}:"
        if state := self._kept.get(start + STATE):
            member.agent.state.update({name: loads(data, self._family.carries) for name, data in loads(state).items()})
        if member.interpreter:
            names = json.loads(self._kept.get(start + GONE, b"[]"))
            pieces = {
                name.removeprefix(start + PIECE): data
                for name, data in self._kept.items()
                if name.startswith(start + PIECE)
            }
            member.interpreter.variables, member.interpreter.gone = pieces, frozenset(names)
            member.interpreter.logs = self._kept.get(start + LOGS, b"").decode()

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
            state = member.agent.state.copy()  # other calls may be at it
            now = {name: dumps_plain(value, self._family.carries) for name, value in state.items()}
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
            member.agent.state[name] = loads(value, self._family.carries)
        for name in gone:
            known.pop(name, None)
            member.agent.state.pop(name, None)

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
            if member.agent.state:
                yield f"{member.path}:{STATE}", _state(member.agent.state, self._family.carries)
            if member.interpreter:
                for name, data in member.interpreter.variables.items():
                    yield f"{member.path}:{PIECE}{name}", data
                if member.interpreter.gone:
                    yield f"{member.path}:{GONE}", json.dumps(sorted(member.interpreter.gone)).encode()
                if member.interpreter.logs:
                    yield f"{member.path}:{LOGS}", member.interpreter.logs.encode()
        yield from self._own.items()
        if self._told:
            yield f":{TOLD}", json.dumps(sorted(self._told)).encode()

    def _gone(self) -> frozenset[str]:
        return frozenset(
            f"{member.path}.{name}" if member.path else name
            for member in self._family.members
            if member.interpreter
            for name in member.interpreter.gone
        )


def gives_state(tool: Any) -> bool:
    return callable(getattr(tool, "get_state", None)) and callable(getattr(tool, "set_state", None))


def _looks_of(tool: Any) -> dict[str, tuple[int, int]]:
    """Give what tells whether a tool changed its own data; what else it holds (a client, a model) is no state."""
    return {
        name: (id(value), len(value) if hasattr(value, "__len__") else 0)
        for name, value in vars(tool).copy().items()
        if name not in _NO_STATE and type(value) in _DATA
    }


def _state(state: dict[str, Any], carries: tuple[type, ...]) -> bytes:
    return dumps({name: dumps_plain(value, carries) for name, value in state.items()})
