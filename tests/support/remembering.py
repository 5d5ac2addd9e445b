"""Agents with memory policies, models that report tokens and sum up, and policies of an operator's own.

Each request for a summary is appended to `asked` in REMEMBERING_FOLDER, as one line of JSON. PYTEST_DONT_REWRITE.
"""

import copy
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from smolagents import Model, MultiStepAgent, ToolCallingAgent
from smolagents.memory import ActionStep, MemoryStep, TaskStep
from smolagents.models import ChatMessage, ChatMessageStreamDelta, MessageRole
from smolagents.monitoring import TokenUsage

import smolsessions
from smolsessions.agents.memory.step_types import NoteStep
from tests.support import agents, ledgers

A = TypeVar("A", bound=MultiStepAgent)
SUMS_UP = "You sum up"
FOLDER = "REMEMBERING_FOLDER"
OWN_NAMES = "tasks_alone shout replace_actions fail_always leave_process tear orphan double noteless foreign"
ALL_OWN = [f"tests.support.remembering:{name}" for name in OWN_NAMES.split()]
_PATH = re.compile(r"/[\w/.-]+\.gate")


def asks_for_summary(messages: list[ChatMessage]) -> bool:
    return agents.text_of(messages[0]).startswith(SUMS_UP)


class ReportingModel(agents.ScriptedModel):
    """Reports its prompts' tokens as a real one would: a third of their characters, and tools beside them."""

    TOOLS = 300

    def generate(self, messages: list[ChatMessage], *args: Any, **options: Any) -> ChatMessage:
        message = super().generate(messages, *args, **options)
        count = sum(len(agents.text_of(each)) for each in messages) // 3 + self.TOOLS
        message.token_usage = TokenUsage(input_tokens=count, output_tokens=1)
        return message


class RepeatingModel(agents.ScriptedModel):
    """Assigns the id `call_0` to every call, as some providers do."""

    def generate(self, *args: Any, **options: Any) -> ChatMessage:
        message = super().generate(*args, **options)
        for call in message.tool_calls or ():
            call.id = "call_0"
        return message


class SummingModel(Model):
    """Returns summaries, a different one each time. It waits for a file that its prompt names."""

    def __init__(self, kind: str = "well") -> None:
        super().__init__()
        self.kind = kind

    def generate(self, messages: list[ChatMessage], *_args: Any, **_options: Any) -> ChatMessage:
        assert asks_for_summary(messages)
        asked = agents.text_of(messages[1])
        folder = Path(os.environ[FOLDER])
        with (folder / "asked").open("a") as file:
            file.write(json.dumps(asked) + "\n")
        if gate := _PATH.search(asked):
            agents.wait_for(gate[0])
        if self.kind == "fails":
            raise RuntimeError("no summary today, and the key is hunter2")
        number = len((folder / "asked").read_text().splitlines())
        text = "  " if self.kind == "empty" else f"Summary {number} of {len(asked)} characters."
        usage = TokenUsage(input_tokens=1000, output_tokens=100)
        return ChatMessage(role=MessageRole.ASSISTANT, content=text, token_usage=usage)


class SummingLedgerModel(ledgers.LedgerModel):
    """Returns summaries beside its scripts, and blocks in these calls, too."""

    def generate_stream(
        self, messages: list[ChatMessage], *args: Any, **options: Any
    ) -> Iterator[ChatMessageStreamDelta]:
        if not asks_for_summary(messages):
            yield from super().generate_stream(messages, *args, **options)
            return
        ledger = ledgers.Ledger(Path(ledgers.PATH.findall(agents.text_of(messages[1]))[0]))
        yield ChatMessageStreamDelta(content="What was: ")
        ledger.enter("summary")
        yield ChatMessageStreamDelta(content="much.")
        ledger.leave("summary")


def with_policy(agent: A, policy: Any = None, **more: Any) -> A:
    values: Any = {"own_policies": ALL_OWN} | more | ({"memory_policy": policy} if policy else {})
    return smolsessions.options(agent, **values)


def _scripted(policy: Any = None, model: Model | None = None, **more: Any) -> ToolCallingAgent:
    agent = with_policy(agents.make_scripted(), policy, **more)
    agent.model = model or agent.model
    return agent


def _teller() -> ToolCallingAgent:
    agent = with_policy(ledgers.make_teller())
    agent.model = SummingLedgerModel()
    return agent


FACTORIES: dict[str, Callable[[], MultiStepAgent]] = {
    "plain": lambda: _scripted(scratchpad=True, summary_model=SummingModel()),
    "planner": lambda: with_policy(agents.make_planner(), summary_model=SummingModel()),
    "last": lambda: _scripted({"name": "keep_last_n_steps", "n": 2}),
    "reporting": lambda: _scripted(model=ReportingModel()),
    "repeating": lambda: _scripted(model=RepeatingModel()),
    "failing": lambda: _scripted(summary_model=SummingModel("fails")),
    "empty": lambda: _scripted(summary_model=SummingModel("empty")),
    "manager": lambda: with_policy(agents.make_manager(), {"name": "keep_last_n_steps", "n": 1}),
    "teller": _teller,
    "coder": lambda: with_policy(agents.make_code()),
}
globals().update({f"make_{name}": factory for name, factory in FACTORIES.items()})
AGENTS = ",".join(f"{name}=tests.support.remembering:make_{name}" for name in FACTORIES)
CODELESS = AGENTS.rpartition(",")[0]


def tasks_alone(steps: list[MemoryStep]) -> list[MemoryStep]:
    return [step for step in steps if isinstance(step, TaskStep)]


def shout(steps: list[MemoryStep]) -> list[MemoryStep]:
    for step in steps:
        if isinstance(step, ActionStep):
            step.observations = step.observations and step.observations.upper()
            for call in step.tool_calls or ():
                if isinstance(call.arguments, dict):
                    call.arguments["changed"] = True
            if step.observations_images:
                step.observations_images.clear()
        elif isinstance(step, TaskStep) and step.task_images:
            step.task_images.clear()
    shown = list(steps)
    steps.clear()
    return shown


def replace_actions(steps: list[MemoryStep]) -> list[MemoryStep]:
    return [replace(step, observations="short") if isinstance(step, ActionStep) else step for step in steps]


def fail_always(_steps: list[MemoryStep]) -> list[MemoryStep]:
    raise RuntimeError("the key is hunter2")


def leave_process(_steps: list[MemoryStep]) -> list[MemoryStep]:
    raise SystemExit(3)


def tear(steps: list[MemoryStep]) -> list[MemoryStep]:
    for step in steps:
        if isinstance(step, ActionStep):
            step.observations = None
    return steps


def orphan(steps: list[MemoryStep]) -> list[MemoryStep]:
    for step in steps:
        if isinstance(step, ActionStep):
            step.tool_calls = None
    return steps


def double(steps: list[MemoryStep]) -> list[MemoryStep]:
    return [*steps, *map(copy.copy, steps[:2])]


def noteless(steps: list[MemoryStep]) -> list[MemoryStep]:
    return [step for step in steps if not isinstance(step, NoteStep)]


def foreign(steps: list[MemoryStep]) -> list[Any]:
    return [*steps, "text"]


def unlisted(steps: list[MemoryStep]) -> list[MemoryStep]:
    return steps


def make_wrong(**values: Any) -> MultiStepAgent:
    return smolsessions.options(agents.make_scripted(), **values)
