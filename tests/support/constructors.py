"""Agents with and without each argument of smolagents' constructors, for `tests.agents.test_constructors`.

Each case notes its events in a file of its own: every prompt, and every run of a tool or callback that the case adds.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from smolagents import CodeAgent, LogLevel, MultiStepAgent, Tool, ToolCallingAgent
from smolagents.local_python_executor import CodeOutput, LocalPythonExecutor, PythonExecutor
from smolagents.memory import PlanningStep
from smolagents.models import ChatMessage, ChatMessageStreamDelta
from smolagents.monitoring import AgentLogger

from tests.support import agents
from tests.support.agents import ScriptedModel, digest, echo
from tests.support.tools import tool

Options = dict[str, Any]

FOLDER = "CONSTRUCTORS_FOLDER"
TOOLS: Any = "toolcalling_agent.yaml"
CODE: Any = "code_agent.yaml"


def note(case: str, *what: object) -> None:
    with (Path(os.environ[FOLDER]) / case).open("a") as ledger:
        ledger.write(" ".join(map(str, what)) + "\n")


class Noting(ScriptedModel):
    def __init__(self, case: str, name: str = "model") -> None:
        super().__init__()
        self.case, self.name = case, name

    def generate(self, messages: list[ChatMessage], *args: Any, **options: Any) -> ChatMessage:
        asked = {name: value for name, value in options.items() if value and name != "tools_to_call_from"}
        note(self.case, self.name, digest(messages), json.dumps(asked, sort_keys=True))
        return super().generate(messages, *args, **options)


class Streaming(Noting):
    def generate_stream(self, messages: list[ChatMessage], **options: Any) -> Iterator[ChatMessageStreamDelta]:
        message = self.generate(messages, **options)
        yield ChatMessageStreamDelta(content=str(message.content), token_usage=message.token_usage)


class NotingLogger(AgentLogger):
    def __init__(self, case: str) -> None:
        super().__init__(level=LogLevel.DEBUG)
        self.case = case

    def log(self, *args: Any, level: Any = LogLevel.INFO, **_options: Any) -> None:
        note(self.case, "log", int(level), [type(arg).__name__ for arg in args])

    def log_error(self, error_message: str) -> None:
        note(self.case, "error", error_message)


class NotingExecutor(PythonExecutor):
    def __init__(self, case: str) -> None:
        self.case = case
        self.state: dict[str, Any] = {}

    def send_tools(self, tools: dict[str, Any]) -> None:
        note(self.case, "tools", sorted(tools))

    def send_variables(self, variables: dict[str, Any]) -> None:
        note(self.case, "variables", variables)

    def __call__(self, code_action: str) -> CodeOutput:
        note(self.case, "code", code_action)
        return CodeOutput(output="done", logs="", is_final_answer=True)


def meeting(case: str) -> Tool:
    both = threading.Barrier(2)

    @tool
    def meet(name: str) -> str:
        """Wait a little for another one."""
        try:
            both.wait(0.3)
        except threading.BrokenBarrierError:
            note(case, name, "met nobody")
        else:
            note(case, "both met")
        return name

    return meet


def templates(file: str, system_prompt: str) -> Any:
    return {**agents.templates(file), "system_prompt": system_prompt}


class Described(Tool):  # type: ignore[misc, unused-ignore]
    """Describes itself to the model, by data that it gets after it was made."""

    name, description, output_type = "look_up", "Look something up.", "string"
    inputs: dict[str, Any] = {}  # noqa: RUF012 - as smolagents has it

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.table = "no table"

    def forward(self) -> str:
        return self.table

    def to_code_prompt(self) -> str:
        return f"def look_up() -> str:  # in {self.table}"

    def to_tool_calling_prompt(self) -> str:
        return f"look_up: in {self.table}"


@dataclass(frozen=True)
class Case:
    """One argument. `options` make the difference, and `others` are common to both agents."""

    kind: str
    options: Callable[[str], Options]
    script: list[dict[str, Any]]
    others: Callable[[str], Options] = field(default=lambda _: {})
    finish: Callable[[Any], object] = lambda _: None
    """Changes by the factory after the constructor. The agent without the argument is left as it is."""
    is_seen: bool = True
    """Whether the prompts, or the notes beside them, differ from those of an agent without it."""


ECHO: dict[str, Any] = {"call": [["echo", {"text": "a"}]]}
DONE: dict[str, Any] = {"say": "done"}
HELP: dict[str, Any] = {"call": [["helper", {"task": json.dumps([ECHO, DONE])}]]}


def code(text: str) -> dict[str, Any]:
    return {"code": text}


def second_of(case: str) -> Callable[..., bool]:
    def check(answer: object, memory: Any, **_: Any) -> bool:
        note(case, answer)
        return len(memory.steps) > 1

    return check


def helped(case: str, **options: Any) -> Options:
    named: Options = {"name": "helper", "description": "Helps.", "verbosity_level": LogLevel.OFF} | options
    named["prompt_templates"] = agents.script_templates(TOOLS)
    return {"managed_agents": [ToolCallingAgent(tools=[echo], model=Noting(case, "helper"), **named)]}


CASES: dict[str, Case] = {
    "tools": Case(TOOLS, lambda _: {"tools": [agents.compute]}, [ECHO, DONE]),
    "tools with prompts of their own": Case(
        TOOLS,
        lambda _: {},
        [DONE],
        others=lambda _: {"tools": [Described()]},
        finish=lambda agent: setattr(agent.tools["look_up"], "table", "users"),
    ),
    "model": Case(TOOLS, lambda case: {"model": Noting(case, "another")}, [DONE]),
    "prompt_templates": Case(TOOLS, lambda _: {"prompt_templates": templates(TOOLS, "Own prompt.")}, [DONE]),
    "prompt_templates that show a tool's attribute": Case(
        TOOLS,
        lambda _: {},
        [DONE],
        others=lambda _: {
            "tools": [Described()],
            "prompt_templates": templates(TOOLS, "Tables: {{ tools['look_up'].table }}"),
        },
        finish=lambda agent: setattr(agent.tools["look_up"], "table", "users"),
    ),
    "instructions": Case(TOOLS, lambda _: {"instructions": "Be brief."}, [DONE]),
    "max_steps": Case(TOOLS, lambda _: {"max_steps": 2}, [ECHO, ECHO, ECHO, DONE]),
    "verbosity_level": Case(TOOLS, lambda _: {"verbosity_level": LogLevel.OFF}, [ECHO, DONE], is_seen=False),
    "managed_agents": Case(TOOLS, helped, [HELP, DONE]),
    "step_callbacks": Case(
        TOOLS,
        lambda case: {"step_callbacks": [lambda step, agent: note(case, step.step_number, len(agent.memory.steps))]},
        [ECHO, DONE],
    ),
    "step_callbacks by class": Case(
        TOOLS,
        lambda case: {"step_callbacks": {PlanningStep: lambda step: note(case, step.plan)}},
        [ECHO, DONE],
        others=lambda _: {"planning_interval": 1},
    ),
    "planning_interval": Case(TOOLS, lambda _: {"planning_interval": 2}, [ECHO, ECHO, ECHO, DONE]),
    "name": Case(TOOLS, lambda case: helped(case, name="aide"), [DONE], others=helped),
    "description": Case(TOOLS, lambda case: helped(case, description="Aids."), [DONE], others=helped),
    "managed_agents with inputs of their own": Case(
        TOOLS,
        lambda _: {},
        [DONE],
        others=helped,
        finish=lambda agent: agent.managed_agents["helper"].inputs["task"].update(description="A table."),
    ),
    "provide_run_summary": Case(TOOLS, lambda c: helped(c, provide_run_summary=True), [HELP, DONE], others=helped),
    "return_full_result": Case(
        TOOLS, lambda case: helped(case, return_full_result=True), [HELP, DONE], others=helped, is_seen=False
    ),
    "final_answer_checks": Case(TOOLS, lambda case: {"final_answer_checks": [second_of(case)]}, [DONE, DONE]),
    "logger": Case(TOOLS, lambda case: {"logger": NotingLogger(case)}, [ECHO, {"text": "no call"}, DONE]),
    "logger of a coder": Case(CODE, lambda case: {"logger": NotingLogger(case)}, [code("1 / 0"), DONE]),
    "logger of a helper": Case(TOOLS, lambda c: helped(c, logger=NotingLogger(c)), [HELP, DONE], others=helped),
    "max_tool_threads": Case(
        TOOLS,
        lambda _: {"max_tool_threads": 1},
        [{"call": [["meet", {"name": "a"}], ["meet", {"name": "a"}]]}, DONE],
        others=lambda case: {"tools": [meeting(case)]},
    ),
    "stream_outputs": Case(
        CODE,
        lambda _: {"stream_outputs": True},
        [code("print(1)"), DONE],
        others=lambda case: {"model": Streaming(case)},
        is_seen=False,
    ),
    "additional_authorized_imports": Case(
        CODE, lambda _: {"additional_authorized_imports": ["json"]}, [code("import json\nprint(json.dumps(1))"), DONE]
    ),
    "executor": Case(CODE, lambda case: {"executor": NotingExecutor(case)}, [code("x = 1"), DONE]),
    "executor of smolagents": Case(
        CODE, lambda _: {"executor": LocalPythonExecutor(["json"], 20)}, [code("import json\nprint('a' * 99)"), DONE]
    ),
    "executor_type": Case(CODE, lambda _: {"executor_type": "local"}, [code("print(1)"), DONE], is_seen=False),
    "executor_kwargs timeout_seconds": Case(
        CODE, lambda _: {"executor_kwargs": {"timeout_seconds": 0.5}}, [code("import time\ntime.sleep(1.5)"), DONE]
    ),
    "executor timeout_seconds": Case(
        CODE,
        lambda _: {"executor": LocalPythonExecutor([], timeout_seconds=1)},
        [code("compute(seconds=1.5)"), code("print(1)"), DONE],
        others=lambda _: {"tools": [agents.compute]},
    ),
    "executor_kwargs max_print_outputs_length": Case(
        CODE, lambda _: {"executor_kwargs": {"max_print_outputs_length": 20}}, [code("print('a' * 99)"), DONE]
    ),
    "executor_kwargs additional_functions": Case(
        CODE,
        lambda _: {"executor_kwargs": {"additional_functions": {"twice": lambda x: 2 * x}}},
        [code("print(twice(21))"), DONE],
    ),
    "executor_kwargs additional_authorized_imports": Case(
        CODE, lambda _: {"additional_authorized_imports": ["json"]}, [code("import json"), DONE]
    ),
    "max_print_outputs_length": Case(CODE, lambda _: {"max_print_outputs_length": 20}, [code("print('a' * 99)"), DONE]),
    "use_structured_outputs_internally": Case(
        CODE,
        lambda _: {"use_structured_outputs_internally": True, "prompt_templates": None},
        [{"text": json.dumps({"thought": "I answer.", "code": "final_answer('done')"})}, DONE],
    ),
    "code_block_tags": Case(
        CODE, lambda _: {"code_block_tags": ("<<", ">>")}, [{"text": "I answer.\n<<\nfinal_answer('done')\n>>"}, DONE]
    ),
    "code_block_tags markdown": Case(
        CODE,
        lambda _: {"code_block_tags": "markdown"},
        [{"text": "I answer.\n```python\nfinal_answer('done')\n```"}, DONE],
    ),
}


def make(case: str, *, with_it: bool = True) -> MultiStepAgent:
    """Make the agent with the argument of this case, or the agent without it."""
    it = CASES[case]
    options = {
        "tools": [echo],
        "model": Noting(case),
        "prompt_templates": agents.templates(it.kind),
        "verbosity_level": LogLevel.OFF,
        **it.others(case),
        **(it.options(case) if with_it else {}),
    }
    agent = (ToolCallingAgent if it.kind == TOOLS else CodeAgent)(**options)
    if with_it:
        it.finish(agent)
    return agent


def make_talkative() -> ToolCallingAgent:
    return ToolCallingAgent([], ScriptedModel(), verbosity_level=LogLevel.DEBUG)


def make_usual() -> ToolCallingAgent:
    return ToolCallingAgent([], ScriptedModel())


def make_with_base_tools() -> ToolCallingAgent:
    return agents.make_scripted(add_base_tools=True)


NAMES = {case: f"case{number}" for number, case in enumerate(CASES)}
globals().update({f"make_{name}": partial(make, case) for case, name in NAMES.items()})
