"""Check of the installed smolagents against all names and behaviour that this package relies on.

It runs before any other import of smolagents. docs/upgrading.md explains how to admit another release.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import operator
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, ClassVar

from smolsessions.core.errors import StartError

OLDEST, NEXT = "1.24", "1.27"
"""First tested release, and first untested release after it. pyproject.toml states the same."""
_RANGE = f"{OLDEST} and later, before {NEXT}"

NAMES = {
    "smolagents": "AmazonBedrockModel AzureOpenAIModel ChatMessage CodeAgent InferenceClientModel LiteLLMModel "
    "LogLevel MessageRole Model MultiStepAgent OpenAIModel PromptTemplates TokenUsage Tool ToolCallingAgent "
    "TransformersModel local_python_executor remote_executors",
    "smolagents.agent_types": "AgentAudio AgentImage AgentText handle_agent_output_types",
    # The first three are replaced in smolagents_patches.py.
    "smolagents.agents": "AgentLogger FinalAnswerTool Template ActionOutput EMPTY_PROMPT_TEMPLATES ToolOutput",
    "smolagents.default_tools": "FinalAnswerTool PythonInterpreterTool TOOL_MAPPING UserInputTool",
    "smolagents.local_python_executor": "BASE_PYTHON_TOOLS DANGEROUS_MODULES check_safer_result "
    "CodeOutput DEFAULT_MAX_LEN_OUTPUT ExecutionTimeoutError FinalAnswerException InterpreterError "
    "LocalPythonExecutor MAX_EXECUTION_TIME_SECONDS "
    "PrintContainer PythonExecutor check_import_authorized create_function evaluate_lambda evaluate_python_code "
    "get_safe_module safer_func",
    "smolagents.memory": "ActionStep AgentMemory CallbackRegistry FinalAnswerStep MemoryStep PlanningStep "
    "SystemPromptStep TaskStep ToolCall",
    "smolagents.models": "ApiModel STRUCTURED_GENERATION_PROVIDERS ChatMessage ChatMessageStreamDelta "
    "ChatMessageToolCall ChatMessageToolCallFunction ChatMessageToolCallStreamDelta MessageRole "
    "agglomerate_stream_deltas get_tool_json_schema remove_content_after_stop_sequences",
    "smolagents.monitoring": "AgentLogger LogLevel Timing TokenUsage",
    "smolagents.remote_executors": "RemotePythonExecutor",
    "smolagents.tools": "BaseTool get_tools_definition_code",
    "smolagents.utils": "BASE_BUILTIN_MODULES AgentError AgentGenerationError AgentMaxStepsError Retrying "
    "truncate_content",
}
"""Names that are imported, by module."""

_MEMORY_STEP = "step_number timing model_input_messages tool_calls error model_output_message model_output code_action"
PARAMETERS = {
    "smolagents.MultiStepAgent.run": "task stream reset images additional_args max_steps",
    "smolagents.MultiStepAgent.initialize_system_prompt": "",
    "smolagents.MultiStepAgent.write_memory_to_messages": "summary_mode",
    "smolagents.ToolCallingAgent._step_stream": "memory_step",
    "smolagents.ToolCallingAgent.execute_tool_call": "tool_name arguments",
    "smolagents.ToolCallingAgent._substitute_state_variables": "arguments",
    "smolagents.Model.generate": "messages stop_sequences response_format tools_to_call_from",
    "smolagents.Model.parse_tool_calls": "message",
    "smolagents.AmazonBedrockModel": "model_id client",
    "smolagents.AzureOpenAIModel": "model_id azure_endpoint api_key api_version client_kwargs",
    "smolagents.InferenceClientModel": "model_id base_url provider bill_to token timeout",
    "smolagents.LiteLLMModel": "model_id api_base api_key",
    "smolagents.OpenAIModel": "model_id api_base api_key client_kwargs",
    "smolagents.TransformersModel": "model_id trust_remote_code device_map torch_dtype",
    "smolagents.agents.ActionOutput": "output is_final_answer",
    "smolagents.local_python_executor.LocalPythonExecutor": "additional_authorized_imports max_print_outputs_length "
    "additional_functions timeout_seconds",
    "smolagents.local_python_executor.CodeOutput": "output logs is_final_answer",
    "smolagents.local_python_executor.create_function": "func_def state static_tools custom_tools authorized_imports",
    "smolagents.local_python_executor.evaluate_lambda": "lambda_expression state static_tools custom_tools "
    "authorized_imports",
    "smolagents.local_python_executor.safer_func": "func static_tools authorized_imports",
    "smolagents.memory.TaskStep": "task task_images",
    "smolagents.memory.PlanningStep": "model_input_messages model_output_message plan timing token_usage",
    "smolagents.memory.ActionStep": f"{_MEMORY_STEP} observations observations_images action_output token_usage "
    "is_final_answer",
    "smolagents.memory.SystemPromptStep": "system_prompt",
    "smolagents.memory.FinalAnswerStep": "output",
    "smolagents.memory.ToolCall": "name arguments id",
    "smolagents.memory.CallbackRegistry.register": "step_cls callback",
    "smolagents.memory.CallbackRegistry.callback": "memory_step",
    "smolagents.models.get_tool_json_schema": "tool",
    "smolagents.models.ChatMessage": "role content tool_calls raw token_usage",
    "smolagents.models.ChatMessageToolCall": "function id type",
    "smolagents.models.ChatMessageToolCallFunction": "arguments name",
    "smolagents.models.ChatMessageStreamDelta": "content tool_calls token_usage",
    "smolagents.monitoring.Timing": "start_time end_time",
    "smolagents.monitoring.TokenUsage": "input_tokens output_tokens",
    "smolagents.monitoring.AgentLogger": "level console",
}
"""Parameters that are passed, or read as fields of the object that is made."""

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
    "variables tools ask ToolCall code ActionOutput callback:1 ActionStep FinalAnswerStep"
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
    for module, names in NAMES.items():
        found = importlib.import_module(module)
        yield from (f"{module} has no {name}" for name in names.split() if not hasattr(found, name))
    for path, names in PARAMETERS.items():
        known = inspect.signature(_found(path)).parameters
        yield from (f"{path} takes no {name}" for name in names.split() if name not in known)
    for path, names in CAPTURED.items():
        inner = [code for code in _found(path).__code__.co_consts if inspect.iscode(code)]
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
    coder = make("CodeAgent", ["<code>\nx = 1\n</code>"], executor=_executor(seen))
    for one, max_steps in ((planner, 5), (planner, 1), (coder, 1)):
        seen += (type(item).__name__ for item in one.run("", stream=True, reset=False, max_steps=max_steps))
    if seen != RUN.split():
        yield f"its agents' runs differ: {' '.join(seen)}"


def _found(path: str) -> Any:
    """Return the object at a dotted path, or a function without parameters if none is there."""
    module, _, name = path.rpartition(".")
    while module not in NAMES:
        module, _, outer = module.rpartition(".")
        name = f"{outer}.{name}"
    try:
        return operator.attrgetter(name)(importlib.import_module(module))
    except AttributeError:
        return lambda: None


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


def _executor(seen: list[str]) -> Any:
    from smolagents.local_python_executor import CodeOutput, PythonExecutor  # noqa: PLC0415 - as above

    class Recording(PythonExecutor):
        state: ClassVar[dict[str, Any]] = {}

        def send_variables(self, variables: Any) -> None:  # noqa: ARG002
            seen.append("variables")

        def send_tools(self, tools: Any) -> None:  # noqa: ARG002
            seen.append("tools")

        def __call__(self, code_action: str) -> Any:  # noqa: ARG002
            seen.append("code")
            return CodeOutput(output=1, logs="", is_final_answer=True)

    return Recording()
