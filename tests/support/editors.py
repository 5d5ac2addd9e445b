"""Agents whose author's callbacks change the memory, one for each way to do it. PYTEST_DONT_REWRITE."""

import functools
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import PIL.Image
from smolagents import Model, MultiStepAgent, Tool
from smolagents.memory import ActionStep, FinalAnswerStep, MemoryStep, TaskStep
from smolagents.models import ChatMessage

from tests.support import agents
from tests.support.waiting import PATIENCE_S

Callback = Callable[[Any, MultiStepAgent], None]


FOLDER = "EDITORS_FOLDER"
FEW_WORDS = 3


class PromptModel(Model):  # type: ignore[misc, unused-ignore]
    """Derives each call from every word of its prompt, so that two runs whose prompts differ once never converge."""

    def generate(
        self, messages: list[ChatMessage], stop_sequences: list[str] | None = None, *_args: Any, **_options: Any
    ) -> ChatMessage:
        seen = agents.digest(messages)
        entry: dict[str, Any] = {"say": seen}
        is_code = "</code>" in (stop_sequences or ())
        if int(seen, 16) % FEW_WORDS:
            entry = {"code": f"print(look({seen!r}))"} if is_code else {"call": [["look", {"text": seen}]]}
        return agents.play(entry, messages, 0, is_code=is_code)


class Look(Tool):  # type: ignore[misc, unused-ignore]
    """Returns a text. It blocks at the call whose number is in a file's name."""

    name = "look"
    description = "Gives a text back."
    inputs = {"text": {"type": "string", "description": "anything"}}  # noqa: RUF012 - smolagents' way
    output_type = "string"

    def __init__(self, agent: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.agent = agent

    def forward(self, text: str) -> str:
        if folder := os.environ.get(FOLDER):
            calls = Path(folder, self.agent)
            with calls.open("a") as file:
                file.write(text + "\n")
            stop = Path(folder, f"{self.agent}.{len(calls.read_text().splitlines())}")
            end = time.monotonic() + 2 * PATIENCE_S
            while stop.exists() and time.monotonic() < end:
                time.sleep(0.02)
        return f"seen {text}"


def keep_last(_step: MemoryStep, agent: MultiStepAgent) -> None:
    agent.memory.steps = agent.memory.steps[-2:]


def reset(_step: MemoryStep, agent: MultiStepAgent) -> None:
    agent.memory.reset()


def drop_images(step: ActionStep, agent: MultiStepAgent) -> None:
    """Show only the newest step's picture, as smolagents' own example of a browser agent does."""
    for previous in agent.memory.steps:
        if isinstance(previous, ActionStep) and previous.step_number <= step.step_number - 1:
            previous.observations_images = None
    step.observations_images = [PIL.Image.new("RGB", (2, 2), (step.step_number, 1, 2))]


def shorten(_step: ActionStep, agent: MultiStepAgent) -> None:
    for previous in agent.memory.steps:
        if isinstance(previous, ActionStep) and previous.observations and not previous.observations.endswith("…"):
            previous.observations = previous.observations[:3] + "…"


def put_in_place(step: ActionStep, agent: MultiStepAgent) -> None:
    for at, previous in enumerate(agent.memory.steps):
        if isinstance(previous, ActionStep) and previous.observations and "~" not in previous.observations:
            agent.memory.steps[at] = replace(previous, observations=f"~{previous.observations}{step.step_number}")


def append_task(step: ActionStep, agent: MultiStepAgent) -> None:
    agent.memory.steps.append(TaskStep(f"Remember step {step.step_number}."))


def insert_first(step: ActionStep, agent: MultiStepAgent) -> None:
    """Keep one line about the current state at the beginning, replaced at each step."""
    steps = agent.memory.steps
    if isinstance(steps[0], TaskStep) and steps[0].task.startswith("State"):
        steps.pop(0)
    steps.insert(0, TaskStep(f"State: {len(steps)} steps, at {step.step_number}."))


def turn_around(_step: ActionStep, agent: MultiStepAgent) -> None:
    steps = agent.memory.steps
    steps[:-1] = reversed(steps[:-1])


def double(_step: ActionStep, agent: MultiStepAgent) -> None:
    if len(agent.memory.steps) > 2:
        agent.memory.steps.insert(0, agent.memory.steps[2])


def edit_in_place(step: ActionStep, agent: MultiStepAgent) -> None:
    """Change what lists and calls hold, and leave the lists and calls as they are."""
    step.observations_images = [PIL.Image.new("RGB", (2, 2), "red"), PIL.Image.new("RGB", (2, 2), "blue")]
    for previous in agent.memory.steps:
        if isinstance(previous, ActionStep):
            for call in previous.tool_calls or ():
                if isinstance(call.arguments, dict):
                    call.arguments["seen"] = step.step_number
            if len(previous.observations_images or ()) > 1:
                assert previous.observations_images
                previous.observations_images[0] = PIL.Image.new("RGB", (2, 2), "green")
                del previous.observations_images[1:]


def edit_newest(step: ActionStep, agent: MultiStepAgent) -> None:
    step.observations = None if step.step_number % 2 else f"{len(agent.memory.steps)} came before"


def mix(step: ActionStep, agent: MultiStepAgent) -> None:
    shorten(step, agent)
    put_in_place(step, agent)
    if step.step_number == 2:
        agent.memory.steps[:] = [each for each in agent.memory.steps[1:] if not isinstance(each, TaskStep)]
    append_task(step, agent)


def at_the_end(_step: FinalAnswerStep, agent: MultiStepAgent) -> None:
    agent.memory.steps = agent.memory.steps[-1:]


CALLBACKS: dict[str, Callback] = {
    call.__name__: call
    for call in (
        *(keep_last, reset, drop_images, shorten, put_in_place, append_task, insert_first),
        *(turn_around, double, edit_in_place, edit_newest, mix),
    )
}


def make(name: str, factory: Callable[..., MultiStepAgent]) -> MultiStepAgent:
    callbacks: Any = {FinalAnswerStep: at_the_end} if name == "at_the_end" else [CALLBACKS[name]]
    agent = factory(step_callbacks=callbacks)
    agent.max_steps = 99  # the service shows a forced answer differently from smolagents
    agent.model, agent.tools["look"] = PromptModel(), Look(name)
    return agent


def _ruin(way: str) -> Callback:
    def callback(_step: MemoryStep, agent: MultiStepAgent) -> None:
        memory: Any = agent.memory
        if way == "none":
            agent.memory = None  # type: ignore[assignment]
        elif way == "tuple":
            memory.steps = tuple(memory.steps)
        elif way == "text":
            memory.steps.append("a text")
        elif way == "gone":
            del memory.steps
        else:
            memory.steps.clear()
            raise SystemExit(way)

    return callback


RUINS = {f"ruin_{way}": _ruin(way) for way in ("none", "tuple", "text", "gone", "raise")}


def make_ruin(name: str) -> MultiStepAgent:
    return agents.make_scripted(step_callbacks=[RUINS[name]])


FOREIGN: dict[str, tuple[str, Any]] = {
    "foreign_error": ("error", ValueError("too much")),
    "foreign_calls": ("tool_calls", [1]),
    "foreign_call_list": ("tool_calls", 1),
    "foreign_timing": ("timing", None),
    "foreign_images": ("observations_images", ["x"]),
    "foreign_output": ("model_output", 5),
    "foreign_message": ("model_output_message", "x"),
    "foreign_usage": ("token_usage", {"input_tokens": 1}),
    "foreign_number": ("step_number", "x"),
    "foreign_observations": ("observations", [object()]),
    "foreign_flag": ("is_final_answer", object()),
}


def make_foreign(name: str) -> MultiStepAgent:
    """Make an agent whose callback leaves a value of a wrong kind in each step."""
    field, value = FOREIGN[name]
    return agents.make_scripted(step_callbacks=[lambda step: setattr(step, field, value)])


NAMES = [*CALLBACKS, "at_the_end"]
KINDS = {"": agents.make_scripted, "_code": agents.make_code}
FACTORIES = {f"{name}{kind}": functools.partial(make, name, KINDS[kind]) for name in NAMES for kind in KINDS}
_ALL = FACTORIES | {name: functools.partial(make_ruin, name) for name in RUINS}
_ALL |= {name: functools.partial(make_foreign, name) for name in FOREIGN}
globals().update({f"make_{name}": factory for name, factory in _ALL.items()})
AGENTS = ",".join(f"{name}=tests.support.editors:make_{name}" for name in _ALL)
