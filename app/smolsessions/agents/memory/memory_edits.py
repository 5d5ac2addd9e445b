"""Changes that an author's callbacks make to the memory, stored as an overlay of the record.

The record holds every finished step and only grows. An edit is an entry behind the steps. Applying all entries in
order yields the memory. Entries refer to each other by distance, so a copied record stays valid.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import is_
from typing import Any

from smolagents.memory import MemoryStep, ToolCall
from smolagents.models import ChatMessage

from smolsessions.agents.memory.plain_steps import Plain
from smolsessions.agents.memory.step_types import EditStep, NoteStep, Runs, SummaryStep
from smolsessions.agents.memory.steps import Step

Parts = list[tuple[dict[Any, Any] | list[Any], tuple[Any, ...]]]

_NESTED = ("tool_calls", "observations_images", "task_images", "model_output", "model_output_message")
_PLAIN = frozenset({str, int, float, bool, bytes})


@dataclass
class Overlay:
    """Steps of the memory by their place in the record, in the order of the memory."""

    count: int = 0
    order: list[int] = field(default_factory=list)
    steps: dict[int, Step] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    """Place of each entry that holds an edited step, with the place of the original step."""
    has_gaps: bool = False

    def add(self, entry: Step | None) -> None:
        """Apply the next entry, which is None if it was archived, rolled back or destroyed."""
        place, self.count = self.count, self.count + 1
        if entry is None:
            self.has_gaps = True
        elif type(entry) is EditStep:
            self._apply(place, entry)
        else:
            self._append(place, entry)

    def memory(self) -> list[Step]:
        return [self.steps[place] for place in self.order]

    def _append(self, place: int, step: Step) -> None:
        self.order.append(place)
        self.steps[place] = step

    def _apply(self, place: int, edit: EditStep) -> None:
        if edit.step is not None and edit.of is None:
            self._append(place, edit.step)
        elif edit.step is not None and edit.of is not None and place - edit.of in self.steps:
            self.steps[place - edit.of] = edit.step
            self.versions[place] = place - edit.of
        if edit.gone is not None:
            gone = set(_places(edit.gone, place))
            self.order = [each for each in self.order if each not in gone]
        if edit.order is not None:
            self.order = [each for each in _places(edit.order, place) if each in self.steps]
        if edit.gone is not None or edit.order is not None:
            left = set(self.order)
            self.steps = {each: step for each, step in self.steps.items() if each in left}


class EditTracker:
    """Finder of the changes in an agent's memory that the record does not hold yet."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay
        self._places = {id(step): place for place, step in overlay.steps.items()}
        self._parts = {place: _parts(step) for place, step in overlay.steps.items()}
        self.begin_turn()

    def begin_turn(self) -> None:
        """Attribute all new steps to the agent until the first callback runs."""
        self._agent_steps: dict[int, MemoryStep] | None = None

    def expect_step(self, step: MemoryStep) -> None:
        """Attribute this step to the agent, which adds it to its memory after the callbacks."""
        self._agent_steps = (self._agent_steps or {}) | {id(step): step}

    def old(self, steps: Sequence[MemoryStep]) -> int:
        """Return the number of steps in front of the agent's new ones."""
        end = len(steps)
        while end and id(steps[end - 1]) not in self._places and self._is_agents(steps[end - 1]):
            end -= 1
        return end

    def _is_agents(self, step: MemoryStep) -> bool:
        return self._agent_steps is None or id(step) in self._agent_steps or isinstance(step, NoteStep | SummaryStep)

    def add(self, entry: Any) -> None:
        """Apply the next entry of the record."""
        place, step = self._overlay.count, entry
        if isinstance(entry, EditStep):
            place, step = place - (entry.of or 0), entry.step
        before = self._overlay.steps.get(place)
        self._overlay.add(entry)
        if step is not None:
            if before is not None:
                self._places.pop(id(before), None)
            self._places[id(step)] = place
            self._parts[place] = _parts(step)

    def redo(self, edit: EditStep, steps: list[Any]) -> None:
        """Apply an edit that an earlier attempt recorded. Its step replaces the replayed one."""
        before = self._overlay.steps.get(self._overlay.count - edit.of) if edit.of else None
        self.add(edit)
        for at, step in enumerate(steps):
            if before is not None and step is before:
                steps[at] = edit.step

    def find(self, steps: Sequence[Any]) -> Iterator[EditStep]:
        """Yield the edits from the record to these steps. The caller adds each before it asks for the next."""
        for step in steps:
            place = self._places.get(id(step))
            if place is not None and _is_changed(self._parts[place]):
                yield self._version(place, step)
        gone, replaced, new = self._differences(steps)
        for place, step in replaced:
            yield self._version(place, step)
        for step in new:
            yield EditStep(step=step)
        if gone:
            yield EditStep(gone=_runs(gone, self._overlay.count))
            self._forget()
        order = [self._places[id(step)] for step in steps]
        if order != self._overlay.order:
            yield EditStep(order=_runs(order, self._overlay.count))
            self._forget()

    def _version(self, place: int, step: Any) -> EditStep:
        return EditStep(step=step, of=self._overlay.count - place)

    def _differences(self, steps: Sequence[Any]) -> tuple[list[int], list[tuple[int, Any]], list[Any]]:
        """Return the removed places, the places with a replaced step and the new steps.

        Between the same two neighbours, as many new steps as removed ones count as replacements.
        """
        order, places = self._overlay.order, [self._places.get(id(step)) for step in steps]
        there = set(places)
        gone = [place for place in order if place not in there]
        new = {id(step): step for step, place in zip(steps, places, strict=True) if place is None}
        replaced = self._replacements(steps, places) if gone and new else []
        used = {id(step) for _, step in replaced}
        if len(used) < len(replaced):  # one new step in several places
            return gone, [], list(new.values())
        out = {place for place, _ in replaced}
        return [place for place in gone if place not in out], replaced, [new[key] for key in new if key not in used]

    def _replacements(self, steps: Sequence[Any], places: list[int | None]) -> list[tuple[int, Any]]:
        order, there = self._overlay.order, set(places)
        stays = [at for at, place in enumerate(order) if place in there]
        known = [at for at, place in enumerate(places) if place is not None]
        if [order[at] for at in stays] != [places[at] for at in known]:
            return []
        replaced: list[tuple[int, Any]] = []
        gaps = zip(pairwise([-1, *stays, len(order)]), pairwise([-1, *known, len(steps)]), strict=True)
        for (first, last), (new_first, new_last) in gaps:
            if last - first == new_last - new_first:
                replaced += zip(order[first + 1 : last], steps[new_first + 1 : new_last], strict=True)
        return replaced

    def _forget(self) -> None:
        """Release the steps that have left the memory."""
        left = self._overlay.steps
        self._places = {id(step): place for place, step in left.items()}
        self._parts = {place: each for place, each in self._parts.items() if place in left}


def without_gaps(entries: Sequence[Step | Plain | None]) -> list[Step | Plain]:
    """Close the gaps of a record. Edits then refer to the remaining entries, of which some may be plain forms."""
    at: dict[int, int] = {}
    for place, entry in enumerate(entries):
        if entry is not None:
            at[place] = len(at)

    def moved(runs: Runs | None, place: int) -> Runs | None:
        return None if runs is None else _runs((at[each] for each in _places(runs, place) if each in at), at[place])

    closed: list[Step | Plain] = []
    for place, entry in enumerate(entries):
        if isinstance(entry, EditStep):
            of = None if entry.of is None else at[place] - at.get(place - entry.of, at[place])
            gone, order = moved(entry.gone, place), moved(entry.order, place)
            closed.append(replace(entry, of=of, gone=gone, order=order, step=entry.step if of != 0 else None))
        elif entry is not None:
            closed.append(entry)
    return closed


def _parts(step: MemoryStep) -> Parts:
    """Return the mutable parts of a step, each with its present values."""
    parts: Parts = []
    left: list[Any] = [vars(step), *(getattr(step, name, None) for name in _NESTED)]
    seen: set[int] = set()
    for at, value in enumerate(left):  # `left` grows meanwhile
        part = vars(value) if isinstance(value, ToolCall | ChatMessage) else value
        if isinstance(part, dict | list) and id(part) not in seen:
            seen.add(id(part))
            values = tuple(_values(part))
            parts.append((part, values))
            left += values if at else ()
    return parts


def _values(part: dict[Any, Any] | list[Any]) -> Collection[Any]:
    return part.values() if isinstance(part, dict) else part


def _is_changed(parts: Parts) -> bool:
    for part, before in parts:
        if len(part) != len(before):
            return True
        now = _values(part)
        if not all(map(is_, now, before)) and not all(map(_same, now, before)):
            return True
    return False


def _same(one: Any, other: Any) -> bool:
    """Compare plain values by value, others by identity: a foreign class may answer == with code of its own."""
    return one is other or (type(one) is type(other) and type(one) in _PLAIN and bool(one == other))


def _runs(places: Iterable[int], own: int) -> Runs:
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][1] + 1:
            runs[-1][1] = place
        else:
            runs.append([place, place])
    return [(own - first, own - last) for first, last in runs]


def _places(runs: Runs, own: int) -> Iterator[int]:
    for first, last in runs:
        yield from range(own - first, own - last + 1)
