"""What a session's agents hold beside their steps, as pieces by name: interpreters' variables, and `agent.state`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from app.agents.crossing import dumps, dumps_plain, loads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.agents.family import Family, Member

STATE, GONE, TOLD, PIECE = "state", "gone", "told", "v:"
GONE_SENTENCE = "(These variables of earlier code could not be kept and are gone: {names}.)"


class Belongings:
    """Pieces are called `path:state`, `path:gone` (names that could not be kept), `path:v:…` (an interpreter's)."""

    def __init__(self, family: Family, pieces: dict[str, bytes]) -> None:
        """Give the family what was kept."""
        self._family = family
        self._kept = dict(pieces)
        self._gone_before: frozenset[str] = frozenset()
        self._told: frozenset[str] = frozenset(json.loads(pieces.get(f":{TOLD}", b"[]")))
        for member in family.members:
            self._restore(member)

    def changes(self) -> dict[str, bytes | None]:
        """Give the pieces that are new, other or gone (None) since they were last given, or were kept."""
        now = dict(self._now())
        changed: dict[str, bytes | None] = {name: data for name, data in now.items() if self._kept.get(name) != data}
        changed |= {name: None for name in self._kept if name not in now}
        self._kept = now
        return changed

    def begin_turn(self) -> str:
        """Give what the model must be told of the turns before; from now on `dropped` names what this turn loses."""
        self._gone_before = self._gone()
        head = self._family.head.interpreter
        untold = sorted(head.gone - self._told) if head else []
        self._told = (
            frozenset([*untold, *(self._told & head.gone)]) if head else frozenset()
        )  # gone again is told again
        return f"\n\n{GONE_SENTENCE.format(names=', '.join(untold))}" if untold else ""

    def dropped(self) -> tuple[str, ...]:
        """Name the variables that this turn could not keep, those of managed agents with their path."""
        return tuple(sorted(self._gone() - self._gone_before))

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

    def _now(self) -> Iterator[tuple[str, bytes]]:
        for member in self._family.members:
            if member.agent.state:
                yield f"{member.path}:{STATE}", _state(member.agent.state, self._family.carries)
            if member.interpreter:
                for name, data in member.interpreter.variables.items():
                    yield f"{member.path}:{PIECE}{name}", data
                if member.interpreter.gone:
                    yield f"{member.path}:{GONE}", json.dumps(sorted(member.interpreter.gone)).encode()
        if self._told:
            yield f":{TOLD}", json.dumps(sorted(self._told)).encode()

    def _gone(self) -> frozenset[str]:
        return frozenset(
            f"{member.path}.{name}" if member.path else name
            for member in self._family.members
            if member.interpreter
            for name in member.interpreter.gone
        )


def _state(state: dict[str, Any], carries: tuple[type, ...]) -> bytes:
    return dumps({name: dumps_plain(value, carries) for name, value in state.items()})
