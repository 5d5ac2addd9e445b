"""Messages that join a running turn: each is a task in the memory of the turn's agent, before its next model call."""

from __future__ import annotations

from smolagents.memory import TaskStep

from smolsessions.agents.memory.step_types import STEERED
from smolsessions.agents.run.agent_run import AgentRun
from smolsessions.agents.run.step_writer import StepWriter
from smolsessions.agents.values.images import image_from_bytes


def take_messages(agent_run: AgentRun, writer: StepWriter) -> None:
    """Append the messages that wait to the memory, in order. For the start of each prompt.

    A replay takes those of its journal at the same places. New ones come once it has no effect left of the next step.
    """
    turn_run = agent_run.turn_run
    bridge, journal = turn_run.bridge, turn_run.journal
    if not (bridge.steers or journal.joined):
        return
    writer.write_finished()  # smolagents yields a plan before it is in the memory
    if agent_run.where:  # a prompt that the author's code builds within a step
        return
    for number in journal.joined.pop(agent_run.steps, ()):
        writer.write_message(_task("", number))  # the step on record replaces it
    while bridge.steers and not journal.has_effect_in(agent_run.steps + 1):
        for turn, turn_input in bridge.steering():
            task = _task(turn.message, turn.number)
            task.task_images = [image_from_bytes(data) for data in turn_input.images] or None
            turn_run.check()
            writer.write_message(task)
        turn_run.check()
        if bridge.steers:
            bridge.flush()  # the next ones come once these have ended


def _task(text: str, number: int) -> TaskStep:
    task = TaskStep(text)
    setattr(task, STEERED, number)
    return task
