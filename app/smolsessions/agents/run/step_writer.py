"""Steps that a turn adds to the agent's memory: packed and written as soon as each is finished."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator
from copy import copy
from dataclasses import replace
from typing import Any, Literal

from smolagents.memory import ActionStep, AgentMemory, MemoryStep, PlanningStep, TaskStep
from smolagents.utils import AgentMaxStepsError

from smolsessions.agents.memory.memory_edits import EditTracker
from smolsessions.agents.memory.step_bytes import StepTooLargeError, is_finished, pack, strip, unpack, unpack_data
from smolsessions.agents.memory.step_types import STEERED, EditStep, NoteStep, Step, SummaryStep, step_type
from smolsessions.agents.run.agent_run import AgentRun
from smolsessions.agents.run.agent_state import AgentNode
from smolsessions.agents.run.failures import ReplayDivergedError, TurnStopped
from smolsessions.agents.smolagents_patches import CachedCallbacks
from smolsessions.agents.values.images import image_from_bytes, stored_images
from smolsessions.agents.values.json_forms import truncated
from smolsessions.agents.values.media import media_in, stored_media
from smolsessions.core.events import MessageSteered, ReplayState, StepEvent, StepFinished
from smolsessions.core.journal_keys import journal_key
from smolsessions.core.media import StepFile, StepImage
from smolsessions.core.memories import PackedStep
from smolsessions.core.records import Outcome

_TAKEN = (ActionStep, PlanningStep)
"""Steps that the agent takes itself: not tasks, notes and summaries."""


class StepWriter:
    """Writer of one turn's steps. A half step is never written."""

    def __init__(
        self, node: AgentNode, agent_run: AgentRun, turn: int, edits: EditTracker | None, replay: ReplayState | None
    ) -> None:
        self._agent = node.agent
        self._stored_classes = node.stored_classes
        self._state = node.state
        self._agent_run = agent_run
        self._bridge = agent_run.turn_run.bridge
        self._turn = turn
        self._edits = edits
        self._callbacks: CachedCallbacks | None = None
        self._next = self._seen = len(node.agent.memory.steps)
        self._written = 0
        self._replayed = list(replay.steps) if replay else []
        self._attachments = replay.attachments if replay else {}
        self.task_changes_variables = False
        self.answer: Any = None
        """Output of the step that is about to become the final one."""
        self.images: tuple[StepImage, ...] = ()
        """Images of the answer that were stored with its step."""
        self.files: tuple[StepFile, ...] = ()
        """Files likewise."""
        self.defect: StepTooLargeError | None = None
        """A finished step that is too large to store: it fails the turn."""
        if edits:
            edits.begin_turn()
            if isinstance(node.agent.step_callbacks, CachedCallbacks):
                self._callbacks = node.agent.step_callbacks
                self._callbacks.around = self._around_callbacks

    @property
    def ran_out(self) -> bool:
        steps = self._agent.memory.steps
        last = steps[-1] if steps else None
        return isinstance(getattr(last, "error", None), AgentMaxStepsError)

    def close(self) -> None:
        if self._callbacks:
            self._callbacks.around = None

    @contextlib.contextmanager
    def _around_callbacks(self, step: MemoryStep) -> Iterator[None]:
        """Write the steps so far, and the current one if its callbacks fail: smolagents drops it then."""
        self.write_finished(are_whole=True)
        if self._edits:
            self._edits.expect_step(step)
        memory, before = self._agent.memory, list(self._agent.memory.steps)
        try:
            yield
            if not _is_memory(self._agent.memory):
                raise TypeError(  # noqa: TRY301 - as if the callback had raised it
                    "A callback left in agent.memory.steps something else than a list of steps; let it edit the list."
                )
        except TurnStopped:
            raise
        except BaseException:  # of an author's callback: raised again
            if not _is_memory(self._agent.memory):
                self._agent.memory, memory.steps = memory, before
            if isinstance(step, _TAKEN):
                self._agent.memory.steps.append(step)  # an action or a plan
                self.write_finished(are_whole=True)
                self._agent.memory.steps = [each for each in self._agent.memory.steps if each is not step]
            raise

    def write_finished(self, *, are_whole: bool = False) -> None:
        """Write new steps. Notes and summaries are written with the next step, and not without one.

        With `are_whole` all steps are finished, although a callback may have removed the sign of it.
        """
        steps = self._agent.memory.steps
        if self._edits:
            self._next = self._edits.old(steps)
        elif len(steps) == self._seen:  # called at every event of the run
            return
        self._seen, new = len(steps), steps[self._next :]
        whole: list[Any] = list(new) if are_whole and self._edits else list(itertools.takewhile(is_finished, new))
        while whole and isinstance(whole[-1], NoteStep | SummaryStep):
            del whole[-1]
        if whole and self._edits:
            self.write_edits()
        for step in whole:
            self._redo_edits()
            if self._replayed:
                self._restore(step, self._recorded_step(), is_last=step is whole[-1])
                continue
            self._agent_run.complete(step)
            kept = step
            is_answer = isinstance(step, ActionStep) and step.is_final_answer is True
            if is_answer and step.action_output is None and media_in(self.answer):
                strip(step)  # a ToolCallingAgent leaves out the images and files of its answer
                kept = copy(step)
                kept.action_output = self.answer
            packed = self._packed(kept)
            if step is whole[-1] and self._changes_variables(step) and (changes := self._changes()):
                packed = replace(packed, variables=changes)
            effect = None
            if number := getattr(step, STEERED, None):
                effect = journal_key("joined", self._agent_run.steps, number), str(number).encode()
            self._bridge.emit(self._finished(kept, packed.attachments), packed, effect)
            self._add(step)

    def take_messages(self) -> None:
        """Append the messages that are to join the turn to the memory, in order. For the start of each prompt.

        A replay takes those of its journal at the same places. New ones come once it has no effect left of the next
        step.
        """
        agent_run, bridge, journal = self._agent_run, self._bridge, self._agent_run.turn_run.journal
        if not (bridge.steers or journal.joined):
            return
        self.write_finished()  # smolagents yields a plan before it is in the memory
        if agent_run.where:  # a prompt that the author's code builds within a step
            return
        for number in journal.joined.pop(agent_run.steps, ()):
            self._write_message(TaskStep(""), number)  # the step on record replaces it
        while bridge.steers and not journal.has_effect_in(agent_run.steps + 1):
            for turn, turn_input in bridge.steering():
                task = TaskStep(turn.message, [image_from_bytes(data) for data in turn_input.images] or None)
                agent_run.turn_run.check()
                self._write_message(task, turn.number)
            agent_run.turn_run.check()
            if bridge.steers:
                bridge.flush()  # the next ones come once these have ended

    def _write_message(self, task: TaskStep, number: int) -> None:
        setattr(task, STEERED, number)
        self._agent.memory.steps.append(task)
        if self._edits:
            self._edits.expect_step(task)
        self.write_finished()

    def write_edits(self) -> None:
        """Write the changes that callbacks made to older steps."""
        self._redo_edits()
        if not self._edits or self._replayed:
            return
        for edit in self._edits.find(self._agent.memory.steps[: self._edits.old(self._agent.memory.steps)]):
            packed = self._packed(edit)
            self._edits.add(edit)
            self._bridge.emit(None, packed)

    def _add(self, step: Step) -> None:
        if self._edits:
            self._edits.add(step)
        self._written += isinstance(step, _TAKEN)
        self._next += 1

    def _packed(self, entry: Step) -> PackedStep:
        try:
            return pack(entry, self._turn, self._stored_classes)
        except StepTooLargeError as error:
            self.defect = error
            raise

    def _changes(self) -> dict[str, bytes | None]:
        try:
            return self._state.changes()
        except StepTooLargeError as error:  # of a managed agent that remembers
            self.defect = error
            raise

    def _redo_edits(self) -> None:
        """Apply the edits that an earlier attempt recorded before its next step."""
        while self._replayed and unpack_data(self._replayed[0])["type"] == "edit":
            edit = self._recorded_step()
            del self._replayed[0]
            if self._edits and isinstance(edit, EditStep):
                self._edits.redo(edit, self._agent.memory.steps)

    def _recorded_step(self) -> Step:
        return unpack(self._replayed[0], self._attachments, self._stored_classes)

    def _restore(self, step: MemoryStep, kept: Step, *, is_last: bool) -> None:
        """Replace a replayed step by the recorded one, which has the original times and ids.

        Variables are recorded with the last step. If that one is missing, they are written again.
        """
        del self._replayed[0]
        if step_type(kept) != step_type(step):
            self._agent_run.turn_run.journal.diverged = True
            raise ReplayDivergedError
        self._agent.memory.steps[self._next] = kept  # type: ignore[assignment]  # an action or a plan
        self._bridge.emit(self._finished(kept, self._attachments))
        if is_last and self._changes_variables(step):
            self._changes()
        self._add(kept)

    def _changes_variables(self, step: MemoryStep) -> bool:
        return isinstance(step, _TAKEN) or self.task_changes_variables

    def _finished(self, step: MemoryStep, attachments: Collection[str]) -> StepEvent | None:
        event: StepEvent | None = self._agent_run.finish(step) if isinstance(step, _TAKEN) else None
        if isinstance(step, TaskStep) and (number := getattr(step, STEERED, None)):
            attempt, images = self._agent_run.turn_run.attempt, stored_images(step.task_images)
            event = MessageSteered(attempt, number, truncated(step.task), images)
        if attachments and isinstance(step, ActionStep):
            images, files = stored_media(step.action_output, attachments)
            if step.is_final_answer:
                self.images, self.files = images, files
            if isinstance(event, StepFinished) and (images or files):
                event = replace(event, images=tuple(dict.fromkeys((*event.images, *images))), files=files)
        return self._agent_run.turn_run.unseen(event)

    def write_rest(self) -> None:
        """Write the finished steps of a failed run, up to one that cannot be stored."""
        if not self.defect:
            with contextlib.suppress(StepTooLargeError, ReplayDivergedError):
                self.write_finished()
                self.write_edits()

    def outcome(self, status: Literal["finished", "failed", "cancelled"], **more: Any) -> Outcome:
        """Return an outcome with the written steps (the task is not counted) and the calls so far."""
        turn_run = self._agent_run.turn_run
        return Outcome(
            status,
            steps=self._written,
            tool_calls=turn_run.calls,
            usage=turn_run.usage,
            dropped_variables=self._state.dropped(),
            **more,
        )


def _is_memory(memory: Any) -> bool:
    steps = getattr(memory, "steps", None)
    return isinstance(memory, AgentMemory) and isinstance(steps, list) and all(isinstance(each, Step) for each in steps)
