"""Check of the installed smolagents against the names and the behaviour that this package relies on.

CONTRIBUTING.md explains how to admit another release.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Iterator
from importlib.metadata import version
from pkgutil import resolve_name
from typing import Any

from smolsessions.core.errors import StartError

OLDEST, NEXT = "1.24", "1.27"
"""First tested release, and first untested release after it. pyproject.toml states the same."""
_RANGE = f"{OLDEST} and later, before {NEXT}"

PARAMETERS = {
    "smolagents.MultiStepAgent.run": "task stream reset images additional_args max_steps",
    "smolagents.MultiStepAgent.initialize_system_prompt": "",
    "smolagents.MultiStepAgent.write_memory_to_messages": "summary_mode",
    "smolagents.ToolCallingAgent._step_stream": "memory_step",
    "smolagents.ToolCallingAgent.execute_tool_call": "tool_name arguments",
    "smolagents.ToolCallingAgent._substitute_state_variables": "arguments",
    "smolagents.Model.generate": "messages stop_sequences response_format tools_to_call_from",
    "smolagents.Model.parse_tool_calls": "message",
    "smolagents.local_python_executor.LocalPythonExecutor": "additional_authorized_imports max_print_outputs_length "
    "additional_functions timeout_seconds",
    "smolagents.memory.ActionStep": "step_number timing model_input_messages tool_calls error model_output_message "
    "model_output code_action observations observations_images action_output token_usage is_final_answer",
    "smolagents.memory.CallbackRegistry.callback": "memory_step",
}
"""Parameters of what this package replaces, takes apart or stores."""

_CAPTURED = "state static_tools custom_tools authorized_imports"
CAPTURED = {
    "smolagents.local_python_executor.create_function": f"func_def {_CAPTURED}",
    "smolagents.local_python_executor.evaluate_lambda": f"lambda_expression {_CAPTURED}",
    "smolagents.local_python_executor.safer_func": "func static_tools",
}
"""Closure variables of the functions that these make: the sandbox takes such functions apart."""

ATTRIBUTES = {
    "agent": "memory state tools managed_agents model prompt_templates instructions max_steps planning_interval name "
    "description final_answer_checks step_callbacks logger monitor stream_outputs provide_run_summary",
    "agent.memory": "steps system_prompt",
    "agent.monitor": "logger",
    "agent.step_callbacks": "_callbacks",
    "agent.executor_kwargs": "keys",
    "agent.python_executor": "state static_tools custom_tools additional_functions additional_authorized_imports "
    "authorized_imports max_print_outputs_length timeout_seconds send_tools send_variables",
}
"""Attributes of a CodeAgent with the local executor."""

PLAN_END = ["<end_plan>"]
_CALL = '{"name": "final_answer", "arguments": {"answer": 1}}'
RUN = (
    "plan PlanningStep ask ToolCall ToolOutput ActionOutput callback:2 ActionStep FinalAnswerStep "
    "plan PlanningStep ask callback:5 ActionStep force callback:6 ActionStep FinalAnswerStep "
    "ask ToolCall ActionOutput callback:1 ActionStep FinalAnswerStep"
)
"""A run of a ToolCallingAgent that plans, one that uses up its steps, and one of a CodeAgent.

Lowercase words are calls by the agent (a callback has the number of steps in memory), the others items of the run.
"""


@functools.cache
def check_smolagents() -> None:
    """Raise `StartError` unless the installed smolagents is one that this release of the service was tested with."""
    installed = version("smolagents")
    if not _numbers(OLDEST) <= _numbers(installed) < _numbers(NEXT):
        raise StartError(
            f"smolagents {installed} is installed, and this release supports {_RANGE}; install one of these: "
            f"pip install 'smolagents>={OLDEST},<{NEXT}'"
        )
    cause = None
    try:
        missing = next(_missing(), None)
    except Exception as error:  # noqa: BLE001 - of any part of smolagents
        cause, missing = error, f"trying it failed with {type(error).__name__}: {error}"
    if missing:
        raise StartError(
            f"smolagents {installed} is installed, but it is not as this release needs it: {missing}; install it anew, "
            f"or another release from {_RANGE}"
        ) from cause


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in release.split(".")[:2])


def _missing() -> Iterator[str]:
    """Yield each difference to the lists above, as the middle of a sentence."""
    import smolsessions.agents.catalog  # noqa: F401, PLC0415 - it imports what the package needs of smolagents

    for path, names in PARAMETERS.items():
        known = inspect.signature(resolve_name(path)).parameters
        yield from (f"{path} takes no {name}" for name in names.split() if name not in known)
    for path, names in CAPTURED.items():
        inner = [code for code in resolve_name(path).__code__.co_consts if inspect.iscode(code)]
        kept = {name for code in inner for name in code.co_freevars}
        yield from (f"what {path} makes keeps no {name}" for name in names.split() if name not in kept)
    # All names are there, so agents can run on a scripted model.
    seen: list[str] = []
    make = functools.partial(_agent, seen)
    agent = make("CodeAgent", [])
    for path, names in ATTRIBUTES.items():
        found = agent if path == "agent" else operator.attrgetter(path.removeprefix("agent."))(agent)
        yield from (f"a CodeAgent's {path} has no {name}" for name in names.split() if not hasattr(found, name))
    planner = make("ToolCallingAgent", ["1. Answer.", _CALL, "2. Fail.", "no call", "an answer"], planning_interval=5)
    coder = make("CodeAgent", ["<code>\nfinal_answer(1)\n</code>"])
    for one, max_steps in ((planner, 5), (planner, 1), (coder, 1)):
        seen += (type(item).__name__ for item in one.run("", stream=True, reset=False, max_steps=max_steps))
    if seen != RUN.split():
        yield f"its agents' runs differ: {' '.join(seen)}"


def _agent(seen: list[str], kind: str, said: list[str], **options: Any) -> Any:
    import smolagents  # noqa: PLC0415 - after its names were looked at
    from rich.console import Console  # noqa: PLC0415 - comes with it
    from smolagents.monitoring import AgentLogger  # noqa: PLC0415

    class Scripted(smolagents.Model):
        def generate(  # type: ignore[override]
            self, _messages: Any, stop_sequences: Any = None, tools_to_call_from: Any = None, **_: Any
        ) -> Any:
            is_forced = stop_sequences is tools_to_call_from is None
            seen.append("plan" if stop_sequences == PLAN_END else "force" if is_forced else "ask")
            return smolagents.ChatMessage(smolagents.MessageRole.ASSISTANT, said.pop(0))

    def callback(_step: Any, agent: Any) -> None:
        seen.append(f"callback:{len(agent.memory.steps)}")

    logger = AgentLogger(level=smolagents.LogLevel.OFF, console=Console(quiet=True))
    return getattr(smolagents, kind)([], Scripted(), step_callbacks=[callback], logger=logger, **options)
