"""Memory of a managed agent that remembers: the steps of its calls, kept between the turns of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from smolagents import MultiStepAgent
from smolagents.memory import MemoryStep, TaskStep

from smolsessions.agents.memory.step_bytes import StepTooLargeError, is_finished, pack, unpack
from smolsessions.agents.run.turn_run import call_order
from smolsessions.agents.values import CodecError, dumps, loads
from smolsessions.core.memories import PackedStep

MEMORY = "memory:"
"""Kind of the pieces of an agent's state that hold its memory, one for each call."""


class ManagedMemory:
    """Memory of one agent. A call sees the steps of all calls before it, and not those of calls parallel to it."""

    def __init__(self, agent: MultiStepAgent, pieces: Mapping[str, bytes], stored_classes: tuple[type, ...]) -> None:
        self._agent = agent
        self._stored_classes = stored_classes
        self._kept: list[MemoryStep] = [unpack(*step, stored_classes) for step in steps_in(pieces)]
        self._before = [*self._kept]
        self._calls: dict[str, list[MemoryStep]] = {}
        """Steps of this turn by their call, whose ids are in the order of the turn."""
        self._pieces: dict[str, bytes] | None = dict(pieces)

    def begin_turn(self, *, forgets: bool) -> None:
        """Drop the steps that the last turn did not record: a rebuilt agent would not have them."""
        if forgets:
            self._kept, self._pieces = [], {}
        self._before, self._calls = [*self._kept], {}

    @contextmanager
    def call(self, call_id: str, may_follow: Callable[[str, str], bool]) -> Iterator[None]:
        """Show the agent its memory during a call, and keep what it makes of it: a callback may change older steps."""
        before = [each for each in sorted(self._calls, key=call_order) if not may_follow(call_id, each)]
        shown = [*self._before, *(step for each in before for step in self._calls[each])]
        self._agent.memory.steps = list(shown)  # type: ignore[arg-type]  # finished steps of any class
        self._pieces = None
        try:
            yield
        finally:
            steps: list[MemoryStep] = [*self._agent.memory.steps]
            known = set(map(id, shown))
            own = [place for place, step in enumerate(steps) if isinstance(step, TaskStep) and id(step) not in known]
            begin = own[0] if own else len(steps)
            if len(before) == len(self._calls):
                self._before, self._calls = steps[:begin], {call_id: steps[begin:]}
            else:
                self._calls[call_id] = steps[begin:]

    def pieces(self) -> dict[str, bytes]:
        """Return the memory as pieces of the agent's state. Raises `StepTooLargeError`."""
        if self._pieces is None:
            calls = sorted(self._calls, key=call_order)
            steps = [*self._before, *(step for call_id in calls for step in self._calls[call_id])]
            self._kept = [step for step in steps if is_finished(step)]
            self._pieces = pieces_of(pack(step, 0, self._stored_classes) for step in self._kept)
        return self._pieces


def pieces_of(steps: Iterable[PackedStep]) -> dict[str, bytes]:
    """Join steps to pieces. A task begins a call, and so a piece."""
    calls: list[list[object]] = []
    for step in steps:
        if step.type == "task" or not calls:
            calls.append([])
        calls[-1].append([step.data, step.attachments])
    try:
        return {f"{MEMORY}{number:06}": dumps(call) for number, call in enumerate(calls)}
    except CodecError:
        raise StepTooLargeError from None


def steps_in(pieces: Mapping[str, bytes]) -> Iterator[tuple[bytes, dict[str, bytes]]]:
    """Yield each step with its attachments, in order."""
    for name in sorted(pieces):
        yield from map(tuple, loads(pieces[name]))
