"""One live agent; plays one turn at a time, in whatever thread calls."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import PIL.Image
from pydantic_core import from_json, to_json
from smolagents import CodeAgent
from smolagents.agents import ActionOutput
from smolagents.memory import ActionStep, AgentMemory, FinalAnswerStep, PlanningStep, TaskStep
from smolagents.utils import AgentMaxStepsError

from smolsessions.agents.memory.memory_edits import EditTracker
from smolsessions.agents.memory.policies import PolicyFailedError
from smolsessions.agents.memory.prompt_cache import CallIds, may_change_steps
from smolsessions.agents.memory.scratchpad import scratchpad_of
from smolsessions.agents.memory.step_types import EditStep, NoteStep, SummaryStep
from smolsessions.agents.memory.steps import Step, StepTooLargeError, is_finished, pack, step_type, strip, unpack
from smolsessions.agents.memory.summarizer import Summarizer
from smolsessions.agents.run.agent_state import AgentState
from smolsessions.agents.run.cancellation import ReplayDivergedError, TurnStopped
from smolsessions.agents.run.effects import without_text
from smolsessions.agents.run.failures import FINAL_ANSWER_FAILED, classify, is_swallowed_failure
from smolsessions.agents.run.instrumentation import clean_up, instrument
from smolsessions.agents.run.recorder import AgentRun, Recorder
from smolsessions.agents.run.tool_proxy import proxy_tools
from smolsessions.agents.smolagents_patches import CachedCallbacks, patch_agent
from smolsessions.agents.values.images import drop_pixels, image_from_bytes, images_in, output_images
from smolsessions.agents.values.json_forms import joined_text, json_form, label_of, utf8_text
from smolsessions.core.policies import policy_data, policy_of
from smolsessions.core.records import Failure, Outcome

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from smolagents import MultiStepAgent
    from smolagents.memory import MemoryStep

    from smolsessions.agents.memory.memory_edits import Overlay
    from smolsessions.agents.memory.policies import PolicyFunction
    from smolsessions.agents.run.journal import Journal
    from smolsessions.agents.sandbox.fork_client import ForkClient
    from smolsessions.core.agent_ports import EventBridge
    from smolsessions.core.events import StepEvent
    from smolsessions.core.policies import Policy
    from smolsessions.core.records import PackedStep, RunState, StepImage, Turn, TurnInput
    from smolsessions.core.replay_state import ReplayState

log = logging.getLogger(__name__)

MAX_REPLY_CHARS = 1_000_000
POLICY = "policy"
ARGUMENTS = """
You have been provided with these additional arguments, that you can access directly using the keys as variables:
{arguments}."""
DIVERGED = Failure(
    "replay_diverged",
    "The process that played this turn ended, and when its run was replayed the agent asked for something else than "
    "it had done before. The turn ends with its finished steps rather than act twice.",
)


class AgentSession:
    """A conversation's agent with its memory. Not for two threads at once."""

    def __init__(
        self,
        agent: MultiStepAgent,
        overlay: Overlay,
        variables: dict[str, bytes],
        carries: Sequence[type],
        fork_client: ForkClient,
        *,
        policy: Policy = (),
        own_policies: dict[str, PolicyFunction] | None = None,
    ) -> None:
        """`policy` is the agent's own memory policy, `own_policies` its functions by import string."""
        self._agent = agent
        self._carries = tuple(carries)
        agent.memory.steps = overlay.memory()  # type: ignore[assignment]  # notes and summaries are steps, too
        self._prompt_builder = patch_agent(agent, own_policies or {})
        self._edits = EditTracker(overlay) if may_change_steps(agent) else None
        self._policy = policy
        self._calls = CallIds(agent)
        if isinstance(agent, CodeAgent) and (overlay.has_gaps or not self._edits):
            agent.step_callbacks.register(ActionStep, self._name_calls_apart)
        if self._prompt_builder:
            agent.step_callbacks.register(ActionStep, self._prompt_builder.record_estimate)
            summary_model = getattr(agent, "summary_model", None)
            self._prompt_builder.summarize = Summarizer(agent, self._prompt_builder, summary_model)
        self._tree = instrument(agent, fork_client, self._carries)
        self._state = AgentState(self._tree, variables)
        self._scratchpad = scratchpad_of(agent)
        if self._scratchpad:
            self._scratchpad.open(agent)
        self._writer: StepWriter | None = None
        self.held_bytes = 0

    def run_turn(
        self,
        turn: Turn,
        turn_input: TurnInput,
        bridge: EventBridge,
        replay: ReplayState | None = None,
        policy: Policy | None = None,
    ) -> Outcome:
        """Run the agent; every finished step goes to the stage at once, a half one never."""
        outcome = self._run_turn(turn, turn_input, bridge, replay, self._policy if policy is None else policy)
        return replace(outcome, left_out=self._prompt_builder.left_out()) if self._prompt_builder else outcome

    def _run_turn(
        self, turn: Turn, turn_input: TurnInput, bridge: EventBridge, replay: ReplayState | None, policy: Policy
    ) -> Outcome:
        recorder = Recorder(bridge, turn.attempts, replay)
        self._bound(recorder.journal, policy, is_replay=bool(replay and replay.effects))
        agent_run = self._tree.root.context.agent_run = AgentRun(recorder, turn.agent.name)
        proxy_tools(self._agent, self._tree.root.context)
        writer = self._writer = StepWriter(
            self._agent, turn.number, self._carries, bridge, agent_run=agent_run, state=self._state, replay=replay
        )
        if self._edits:
            writer.watch(self._edits, self._agent)
        agent_run.before_model_call = writer.keep_finished
        if replay and self._scratchpad:
            self._scratchpad.expect(replay.effects)
        answer: FinalAnswerStep | None = None
        failure: Failure | None = None
        try:
            answer = self._answer(turn, turn_input, writer)
        except TurnStopped:
            if recorder.journal.diverged:
                return writer.outcome("failed", error=DIVERGED)
            return writer.outcome("cancelled")
        except BaseException as error:
            failure = classify(error)
            # Only for who asks: the text of a provider's exception may hold what was said, or a key.
            log.debug("turn %s#%d failed", turn.ref, turn.number, exc_info=error)
            writer.keep_the_rest()
            if isinstance(error, PolicyFailedError):
                failure = Failure(error.code, error.message)
            if writer.defect:
                failure = Failure(writer.defect.code, writer.defect.message)
        finally:
            writer.unwatch()
            self._writer = self._tree.root.context.agent_run = None  # what a warm session holds of a turn that is over
            self._state.rest()
            self.held_bytes = drop_pixels(self._agent.memory.steps) + self._state.size()
        if recorder.journal.diverged or (recorder.journal.holds_more and not failure):
            return writer.outcome("failed", error=DIVERGED)
        return _outcome(answer, failure, writer)

    def cut_model_calls(self) -> None:
        """Cut the connections of the model calls that run, after the stage was halted; from any thread."""
        agent_run = self._tree.root.context.agent_run
        if agent_run:
            agent_run.recorder.cut_model_calls()

    def _answer(self, turn: Turn, turn_input: TurnInput, writer: StepWriter) -> FinalAnswerStep | None:
        run, answer = self._run(turn, turn_input, writer), None
        writer.keep_finished()  # the task, before anything can stop the turn
        for item in run:
            writer.keep_finished()
            if isinstance(item, ActionOutput) and item.is_final_answer:
                writer.answer = without_text(item.output)
            elif isinstance(item, FinalAnswerStep):
                answer = FinalAnswerStep(without_text(item.output))
        writer.keep_whole()
        writer.keep_edits()
        return answer

    def partial_outcome(self) -> Outcome:
        """Give what was kept of the turn so far; its thread may still be at it."""
        return self._writer.outcome("cancelled") if self._writer else Outcome("cancelled")

    def close(self) -> None:
        """Let go of the steps at once (the agent refers to itself, so it waits for the collector), then clean up."""
        self._agent.memory = AgentMemory("")
        self._state.rest()
        clean_up(self._agent)

    def _bound(self, journal: Journal, policy: Policy, *, is_replay: bool) -> None:
        """Bound the memory as when the turn began: what was patched since would have a replay ask for something else.

        Also what another release of the agent is made with.
        """
        if not self._prompt_builder:
            return
        if is_replay:
            policy = policy_of(from_json(journal.chosen(POLICY) or b"[]"))
        elif policy:
            journal.once(POLICY, lambda: to_json(policy_data(policy)))
        self._prompt_builder.begin_turn(policy)

    def _name_calls_apart(self, step: ActionStep) -> None:
        """Give the block of code an id of its own: smolagents counts the steps in memory, which a prune makes fewer."""
        taken = self._calls.ids()
        for call in step.tool_calls or ():
            while call.id in taken:
                call.id += "_2"

    def _run(self, turn: Turn, turn_input: TurnInput, writer: StepWriter) -> Any:
        images = [image_from_bytes(data) for data in turn_input.images]
        gone = self._state.begin_turn()
        writer.task_changes_variables = bool(gone or turn_input.additional_args)
        return self._agent.run(
            turn.message + gone,
            stream=True,
            reset=False,
            images=images or None,
            additional_args=turn_input.additional_args or None,
            max_steps=turn.options.max_steps,
        )


def task_step(turn: Turn, turn_input: TurnInput) -> PackedStep:
    """Return the task of a turn that ended before its agent ran, as `MultiStepAgent.run` words it."""
    task = turn.message
    if turn_input.additional_args:
        task += ARGUMENTS.format(arguments=turn_input.additional_args)
    return pack(TaskStep(task, [image_from_bytes(data) for data in turn_input.images] or None), turn.number)


class StepWriter:
    """The steps that this turn has added to the agent's memory."""

    def __init__(
        self,
        agent: MultiStepAgent,
        turn: int,
        carries: tuple[type, ...],
        bridge: EventBridge,
        *,
        agent_run: AgentRun,
        state: AgentState,
        replay: ReplayState | None,
    ) -> None:
        self._agent = agent
        self._edits: EditTracker | None = None
        self._callbacks: CachedCallbacks | None = None
        self._turn = turn
        self._carries = carries
        self._bridge = bridge
        self._agent_run = agent_run
        self._state = state
        self._next = self._looked_at = len(agent.memory.steps)
        self._kept = 0
        self._past = list(replay.steps) if replay else []
        self._attachments = replay.attachments if replay else {}
        self.task_changes_variables = False
        self.answer: Any = None
        """Output of the step that is about to be the last one."""
        self.images: tuple[StepImage, ...] = ()
        """Images of the answer that were kept with its step."""
        self.defect: StepTooLargeError | None = None
        """A finished step that cannot be kept: it ends the turn, wherever it shows."""

    @property
    def _memory(self) -> AgentMemory:
        return self._agent.memory  # a callback may have put another one in its place

    @property
    def ran_out(self) -> bool:
        last = self._memory.steps[-1] if self._memory.steps else None
        return isinstance(getattr(last, "error", None), AgentMaxStepsError)

    def watch(self, edits: EditTracker, agent: MultiStepAgent) -> None:
        """Record steps before the author's callbacks may take them away, and edits afterwards."""
        self._edits = edits
        edits.begin_turn()
        if isinstance(agent.step_callbacks, CachedCallbacks):
            self._callbacks = agent.step_callbacks
            self._callbacks.around = self._around_callbacks

    def unwatch(self) -> None:
        if self._callbacks:
            self._callbacks.around = None

    @contextlib.contextmanager
    def _around_callbacks(self, step: MemoryStep) -> Iterator[None]:
        """Record the steps so far, and the present one if its callbacks fail: smolagents drops it then."""
        self.keep_whole()
        if self._edits:
            self._edits.expect_step(step)
        memory, before = self._memory, list(self._memory.steps)
        try:
            yield
            _check_memory(self._agent.memory)
        except TurnStopped:
            raise
        except BaseException:
            if not _is_memory(self._agent.memory):
                self._agent.memory, memory.steps = memory, before
            if _taken(step):
                self._memory.steps.append(step)  # type: ignore[arg-type]  # an action or a plan
                self.keep_whole()
                self._memory.steps = [each for each in self._memory.steps if each is not step]
            raise

    def keep_finished(self) -> None:
        """Pack new steps. Notes and summaries go with the first step after them, and are not kept without one."""
        if self._edits:
            self._next = self._edits.old(self._memory.steps)
        elif len(self._memory.steps) == self._looked_at:  # asked at every event of the run
            return
        self._looked_at = len(self._memory.steps)
        self._keep(list(itertools.takewhile(is_finished, self._memory.steps[self._next :])))

    def keep_whole(self) -> None:
        """Pack all new steps while none is half: a callback may have taken from one what tells that it is finished."""
        if self._edits:
            self._next = self._edits.old(self._memory.steps)
            self._keep(self._memory.steps[self._next :])
        else:
            self.keep_finished()

    def keep_edits(self) -> None:
        """Pack what callbacks changed of the steps before the agent's new ones."""
        if not self._edits or self._redo_edits():
            return
        for edit in self._edits.find(self._memory.steps[: self._edits.old(self._memory.steps)]):
            if edit.step is not None:
                strip(edit.step)
            packed = self._packed(edit)
            self._edits.add(edit)
            self._bridge.emit(None, packed)

    def _keep(self, whole: list[Any]) -> None:
        while whole and isinstance(whole[-1], NoteStep | SummaryStep):
            del whole[-1]
        if whole:
            self.keep_edits()
        for step in whole:
            if self._redo_edits():
                self._take_from_past(step, is_last=step is whole[-1])
                continue
            strip(step)
            kept = self._with_answer(step)
            packed = self._packed(kept)
            if step is whole[-1] and self._changes_variables(step):
                packed = replace(packed, variables=self._state.changes())
            self._bridge.emit(self._finished(kept, packed.attachments), packed)
            self._add(step)

    def _add(self, step: Step) -> None:
        if self._edits:
            self._edits.add(step)
        self._kept += _taken(step)
        self._next += 1

    def _packed(self, entry: Step) -> PackedStep:
        try:
            return pack(entry, self._turn, self._carries)
        except StepTooLargeError as error:
            self.defect = error
            raise

    def _redo_edits(self) -> bool:
        """Apply the edits that an earlier attempt recorded at this place. True if it recorded more steps."""
        while self._past:
            entry = unpack(self._past[0], self._attachments, self._carries)
            if not isinstance(entry, EditStep):
                return True
            del self._past[0]
            if self._edits:
                self._edits.redo(entry, self._memory.steps)
        return False

    def _take_from_past(self, step: MemoryStep, *, is_last: bool) -> None:
        """Put the step that an earlier attempt kept in the place of the replayed one: with its times, and its ids.

        The variables were kept with the last one; if that is missing, they are to be kept again.
        """
        kept = unpack(self._past.pop(0), self._attachments, self._carries)
        if isinstance(kept, EditStep) or step_type(kept) != step_type(step):
            self._agent_run.recorder.journal.diverged = True
            raise ReplayDivergedError
        self._memory.steps[self._next] = kept  # type: ignore[assignment]  # see above
        self._bridge.emit(self._finished(kept, self._attachments))
        if is_last and self._changes_variables(step):
            self._state.changes()
        self._add(kept)

    def _changes_variables(self, step: MemoryStep) -> bool:
        return _taken(step) or self.task_changes_variables

    def _with_answer(self, step: Step) -> Step:
        """Return the final step with the images of its answer. A ToolCallingAgent's step does not hold its answer."""
        if not isinstance(step, ActionStep) or not step.is_final_answer or step.action_output is not None:
            return step
        if not images_in(self.answer):
            return step
        kept = copy(step)
        kept.action_output = self.answer
        return kept

    def _finished(self, step: MemoryStep, attachments: Collection[str]) -> StepEvent | None:
        event = self._agent_run.finish(step) if _taken(step) else None
        if attachments and isinstance(step, ActionStep):
            images = output_images(step.action_output, attachments)
            if step.is_final_answer:
                self.images = images
            if event and images:
                event = replace(event, images=tuple(dict.fromkeys((*event.images, *images))))
        return self._agent_run.recorder.unseen(event)

    def keep_the_rest(self) -> None:
        """Keep what a run that failed had finished, up to a step that cannot be kept."""
        if not self.defect:
            with contextlib.suppress(StepTooLargeError, ReplayDivergedError):
                self.keep_finished()
                self.keep_edits()

    def outcome(self, status: Literal["finished", "failed", "cancelled"], **more: Any) -> Outcome:
        """Give an outcome with what is known of the steps and calls; `steps` counts what was kept, without the task."""
        recorder = self._agent_run.recorder
        return Outcome(
            status,
            steps=self._kept,
            tool_calls=recorder.calls,
            usage=recorder.usage,
            dropped_variables=self._state.dropped(),
            **more,
        )


def _check_memory(memory: Any) -> None:
    if not _is_memory(memory):
        raise TypeError(
            "A callback left in agent.memory.steps something else than a list of steps; let it edit the list."
        )


def _is_memory(memory: Any) -> bool:
    steps = getattr(memory, "steps", None)
    return isinstance(memory, AgentMemory) and isinstance(steps, list) and all(isinstance(each, Step) for each in steps)


def _taken(step: MemoryStep) -> bool:
    """Tell the steps that an agent takes from those that are given to it, or noted beside."""
    return isinstance(step, ActionStep | PlanningStep)


def _outcome(answer: FinalAnswerStep | None, failure: Failure | None, writer: StepWriter) -> Outcome:
    output = answer.output if answer else None
    state: RunState | None = None
    if answer and not failure:
        state = "max_steps_error" if writer.ran_out else "success"
        if state == "max_steps_error" and is_swallowed_failure(output):
            failure = FINAL_ANSWER_FAILED
    if failure:
        return writer.outcome("failed", state=state, error=failure)
    return writer.outcome("finished", reply=_reply(output), output=json_form(output), state=state, images=writer.images)


def _reply(output: Any) -> str:
    """Give an answer as text: a text as it is, content parts joined, data as JSON."""
    if isinstance(output, str):
        text = utf8_text(str(output))
    elif (parts := joined_text(output)) is not None:
        text = utf8_text(parts)
    elif isinstance(output, PIL.Image.Image):
        text = label_of(output)
    else:
        value = json_form(output)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_REPLY_CHARS else f"{text[:MAX_REPLY_CHARS]}… ({len(text)} characters)"
