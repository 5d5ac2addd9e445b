"""Scratchpad: notes that an agent writes for itself with a tool. No policy removes them from its prompt.

The option `scratchpad` enables it. A note is a step in front of the step whose call wrote it. The steps are
authoritative. The tool's state holds only the last number and the notes that are not steps yet, so a call that a
replay returns from the journal still leaves its note.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from smolagents import MultiStepAgent, Tool
from smolagents.memory import ActionStep

from smolsessions.agent_options import options_of
from smolsessions.agents.memory.step_types import NoteStep, replaced_notes
from smolsessions.agents.run.effects import Effect
from smolsessions.agents.run.proxy import unproxied
from smolsessions.agents.values import loads
from smolsessions.agents.values.json_forms import utf8_text
from smolsessions.core.errors import StartError

WRITE, READ = "note_write", "note_read"
MAX_CHARS = 2000
MAX_NOTES = 50
NO_NOTES = "There are no notes."


class NoteError(ValueError):
    """A refused note; the model reads the message."""


class Scratchpad:
    """Notes of one conversation's agent. Its tools may write from several threads."""

    def __init__(self) -> None:
        self._live: dict[int, NoteStep] = {}
        self._pending: list[NoteStep] = []
        """Notes that are not steps yet, including replaced ones."""
        self._known: set[int] = set()
        self._expected: list[NoteStep] = []
        """Notes that calls of an earlier attempt wrote, from the journal."""
        self._last = 0
        self._lock = threading.Lock()

    def open(self, agent: MultiStepAgent) -> None:
        """Load the notes from an agent's steps. From now on, new notes become steps when their step finishes.

        Notes that a reset has hidden only count towards the next number.
        """
        notes = [step for step in agent.memory.steps if isinstance(step, NoteStep)]
        replaced = replaced_notes(notes)
        self._live = {note.number: note for note in notes if id(note) not in replaced}
        self._known, self._pending = {note.number for note in notes}, []
        self._last = max([self._last, *self._known])

        def become_steps(_step: ActionStep) -> None:
            with self._lock:
                pending, self._pending = sorted(self._pending, key=lambda note: note.number), []
            agent.memory.steps.extend(pending)  # type: ignore[arg-type]  # a note is a step, too

        agent.step_callbacks.register(ActionStep, become_steps)

    def expect(self, effects: Iterable[Effect]) -> None:
        """Reserve the numbers of an earlier attempt's notes: a replay may return its calls at any time."""
        for effect in effects:
            if state := effect.changes.get(f":tool:{WRITE}"):
                last, notes = _notes_of(loads(state))
                self._last = max(self._last, last)
                self._expected += notes

    def write(self, text: str, replaces: int | None) -> int:
        """Add a note and return its number. A repeated call does not add its note twice."""
        text = utf8_text(text).strip()
        with self._lock:
            expected = [note for note in self._expected if note.number not in self._known]
            for note in [*self._live.values(), *expected]:
                if note.text == text and replaces in {None, note.number, note.replaces}:
                    self._add(note)
                    return note.number
            self._check(text, replaces)
            self._last += 1
            self._add(NoteStep(self._last, text, replaces))
            return self._last

    def read(self) -> str:
        with self._lock:
            notes = [f"Note {note.number}:\n{note.text}" for _, note in sorted(self._live.items())]
        return "\n\n".join(notes) or NO_NOTES

    def state(self) -> list[Any]:
        with self._lock:
            return [self._last, [[note.number, note.text, note.replaces] for note in self._pending]]

    def add_state(self, state: list[Any]) -> None:
        """Merge the state after a replayed call. Parallel calls come in any order, so nothing is removed."""
        last, notes = _notes_of(state)
        with self._lock:
            self._last = max(self._last, last)
            for note in notes:
                self._add(note)

    def _check(self, text: str, replaces: int | None) -> None:
        if not text:
            raise NoteError("a note needs a text")
        if len(text) > MAX_CHARS:
            raise NoteError(f"a note may have {MAX_CHARS} characters, this one has {len(text)}; make it shorter")
        if replaces is not None and replaces not in self._live:
            raise NoteError(f"there is no note {replaces} to replace; {READ} shows those that there are")
        if replaces is None and len(self._live) >= MAX_NOTES:
            raise NoteError(f"there are {MAX_NOTES} notes, and no room for more; replace one that matters less")

    def _add(self, note: NoteStep) -> None:
        if note.number in self._known:
            return
        self._known.add(note.number)
        self._pending.append(note)
        self._live[note.number] = note
        for each in self._pending:  # all of them: the replaced note may come later
            self._live.pop(each.replaces or 0, None)


def _notes_of(state: list[Any]) -> tuple[int, list[NoteStep]]:
    last, notes = state
    return last, [NoteStep(*note) for note in notes]


class _NoteTool(Tool):  # type: ignore[misc, unused-ignore]
    output_type = "string"

    def __init__(self, pad: Scratchpad) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pad = pad


class NoteWrite(_NoteTool):
    name = WRITE
    description = (
        "Writes a note for yourself: what must not be forgotten in the rest of this conversation. You are shown your "
        f"notes at every step. There is room for {MAX_NOTES} notes; to change one, write the new text in its place."
    )
    inputs = {  # noqa: RUF012 - declared as smolagents expects
        "text": {"type": "string", "description": f"What to note, {MAX_CHARS} characters at most."},
        "replaces": {
            "type": "integer",
            "description": "The number of an earlier note that this one takes the place of.",
            "nullable": True,
        },
    }

    def forward(self, text: str, replaces: int | None = None) -> str:
        if not isinstance(text, str) or not isinstance(replaces, int | None):
            raise NoteError("text is a text, and replaces the number of a note")
        return f"Written as note {self.pad.write(text, replaces)}."

    def get_state(self) -> list[Any]:
        return self.pad.state()

    def set_state(self, state: list[Any]) -> None:
        self.pad.add_state(state)


class NoteRead(_NoteTool):
    name = READ
    description = "Reads the notes that you wrote in this conversation, with their numbers."
    inputs: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - as above

    def forward(self) -> str:
        return self.pad.read()


def add_scratchpad(name: str, agent: MultiStepAgent) -> None:
    """Add the tools to an agent that enables them, but not to its managed agents."""
    if not options_of(agent).scratchpad or scratchpad_of(agent):  # the same agent twice is refused elsewhere
        return
    taken = {WRITE, READ} & {*agent.tools, *agent.managed_agents}
    if taken:
        raise StartError(
            f"the agent {name!r} has scratchpad = True and something of its own called {min(taken)!r}; rename that, or "
            "set scratchpad to False"
        )
    pad = Scratchpad()
    agent.tools |= {WRITE: NoteWrite(pad), READ: NoteRead(pad)}


def scratchpad_of(agent: MultiStepAgent) -> Scratchpad | None:
    tool = unproxied(agent.tools.get(WRITE))
    return tool.pad if isinstance(tool, NoteWrite) else None
