"""Changes that an author's callbacks make to the memory, stored as an overlay of the record.

The record holds every finished step and only grows. An edit is an entry behind the steps: steps that leave the memory,
or a step that is new, changed or moved. Applying all entries in order yields the memory. An edit names other entries by
their distance, so a copied record stays valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from smolagents.memory import MemoryStep, ToolCall
from smolagents.models import ChatMessage

from smolsessions.agents.memory.step_data import Data
from smolsessions.agents.memory.step_types import EditStep, NoteStep, Step, SummaryStep

_NESTED = ("tool_calls", "observations_images", "task_images", "model_output", "model_output_message")
_PLAIN = frozenset({str, int, float, bool, bytes})


@dataclass
class Overlay:
    """Steps of the memory by their place in the record, in the order of the memory."""

    count: int = 0
    steps: dict[int, Step] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    """Place of each entry that holds a changed or moved step, with the place of the original step."""
    has_gaps: bool = False

    def add(self, entry: Step | None) -> int | None:
        """Apply the next entry, which is None if it was archived, rolled back or destroyed.

        Returns the place of the step that the entry holds.
        """
        place, self.count = self.count, self.count + 1
        if entry is None:
            self.has_gaps = True
            return None
        step, at = entry, place
        if isinstance(entry, EditStep):
            for distance in entry.removed or ():
                self.steps.pop(place - distance, None)
            if entry.step is None:
                return None
            step = entry.step
            if entry.of and entry.of <= place:
                at = place - entry.of
                self.versions[place] = at
        self.steps[at] = step
        return at

    def memory(self) -> list[Step]:
        return list(self.steps.values())


class EditTracker:
    """Finder of the changes in an agent's memory that the record does not hold yet."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay
        self._places = {id(step): place for place, step in overlay.steps.items()}
        self._values = {place: _values(step) for place, step in overlay.steps.items()}
        self.begin_turn()

    def begin_turn(self) -> None:
        """Attribute all new steps to the agent until the first callback runs."""
        self._agent_steps: dict[int, MemoryStep] | None = None

    def expect_step(self, step: MemoryStep) -> None:
        """Attribute this step to the agent, which adds it to its memory after the callbacks."""
        self._agent_steps = (self._agent_steps or {}) | {id(step): step}

    def old(self, steps: Sequence[MemoryStep]) -> int:
        """Return the number of steps in front of the agent's new ones."""
        end, own = len(steps), self._agent_steps
        while end and id(step := steps[end - 1]) not in self._places:
            if not (own is None or id(step) in own or isinstance(step, NoteStep | SummaryStep)):
                break
            end -= 1
        return end

    def add(self, entry: Any) -> None:
        place = self._overlay.add(entry)
        if place is not None:
            self._values[place] = _values(self._overlay.steps[place])
        else:
            self._values = {each: self._values[each] for each in self._overlay.steps}
        self._places = {id(step): place for place, step in self._overlay.steps.items()}

    def redo(self, edit: EditStep, steps: list[Any]) -> None:
        """Apply an edit that an earlier attempt recorded. Its step replaces the replayed one."""
        before = self._overlay.steps.get(self._overlay.count - edit.of) if edit.of else None
        self.add(edit)
        for at, step in enumerate(steps):
            if before is not None and step is before:
                steps[at] = edit.step

    def find(self, steps: Sequence[Any]) -> Iterator[EditStep]:
        """Yield the edits from the record to these steps. The caller adds each before it asks for the next.

        The beginning that is in the order of the record stays, with new steps in the place of missing ones. All behind
        it is stored anew.
        """
        order, was = list(self._overlay.steps), self._overlay.memory()
        left, known = set(map(id, steps)), self._places
        at = 0
        kept: list[int] = []
        for step in steps:
            while at < len(was) and id(was[at]) not in left and id(step) in known:
                at += 1
            is_there = at < len(was) and step is was[at]
            if not is_there and (at == len(was) or id(was[at]) in left or id(step) in known):
                break
            if not is_there or not _is_same(self._values[order[at]], _values(step)):
                yield EditStep(step=step, of=self._overlay.count - order[at])
            kept.append(order[at])
            at += 1
        still_there = set(kept)
        if removed := [place for place in order if place not in still_there]:
            yield EditStep(removed=[self._overlay.count - place for place in removed])
        for step in steps[len(kept) :]:
            place = known.get(id(step))
            of = None if place is None or place in self._overlay.steps else self._overlay.count - place
            yield EditStep(step=step, of=of)


def without_gaps(entries: Sequence[Data | None]) -> list[Data]:
    """Close the gaps of a record. Edits then refer to the remaining entries."""
    kept = [(place, entry) for place, entry in enumerate(entries) if entry is not None]
    at = {place: number for number, (place, _) in enumerate(kept)}
    closed: list[Data] = []
    for place, entry in kept:
        changed: Data = {}
        if entry["type"] == "edit":
            of, removed = entry["of"], entry["removed"]
            is_lost = of is not None and place - of not in at
            changed = {
                "removed": removed and [at[place] - at[place - each] for each in removed if place - each in at],
                "of": None if of is None or is_lost else at[place] - at[place - of],
                "step": None if is_lost else entry["step"],
            }
        closed.append(entry | changed)
    return closed


def _values(step: MemoryStep) -> list[Any]:
    """Return the values of a step and of its calls, messages and lists, in their order."""
    found: list[Any] = [*vars(step).values()]
    left: list[Any] = [getattr(step, name, None) for name in _NESTED]
    seen: set[int] = set()
    for value in left:  # grows meanwhile
        part = vars(value) if isinstance(value, ToolCall | ChatMessage) else value
        if isinstance(part, dict | list) and id(part) not in seen:
            seen.add(id(part))
            inner = list(part.values() if isinstance(part, dict) else part)
            found += inner
            left += inner
    return found


def _is_same(before: list[Any], now: list[Any]) -> bool:
    """Compare plain values by value, others by identity: a foreign class may answer == with code of its own."""
    return len(before) == len(now) and all(
        one is other or (type(one) is type(other) and type(one) in _PLAIN and bool(one == other))
        for one, other in zip(before, now, strict=True)
    )
