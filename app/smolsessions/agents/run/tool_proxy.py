"""Proxies of tools, managed agents, interpreters and callbacks: each call is recorded, and a stop ends it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import PIL.Image
from smolagents import MultiStepAgent, Tool
from smolagents.agent_types import handle_agent_input_types, handle_agent_output_types
from smolagents.default_tools import FinalAnswerTool
from smolagents.local_python_executor import CodeOutput, LocalPythonExecutor
from smolagents.memory import ActionStep, FinalAnswerStep, MemoryStep

from smolsessions.agent_options import options_of
from smolsessions.agents.run.agent_run import AgentRun, ToolCallInProgress
from smolsessions.agents.run.agent_state import AgentNode
from smolsessions.agents.run.approvals import edited
from smolsessions.agents.run.async_tools import is_asynchronous, result_of
from smolsessions.agents.run.effects import Effect, as_text, encode_raised, encode_returned
from smolsessions.agents.run.proxy import Proxy
from smolsessions.agents.run.turn_files import UNKEPT, by_name, fits, free_name, name_in_state
from smolsessions.agents.sandbox.clock import ClockLog
from smolsessions.agents.sandbox.guard import tool_stub
from smolsessions.agents.tools.ask_user import AskUser, checked_question
from smolsessions.agents.tools.client_tools import ToolOfClient
from smolsessions.agents.values.json_forms import label_of
from smolsessions.agents.values.results import ValueWithText, without_text
from smolsessions.caller import CALLER
from smolsessions.core.attachments import File

WAIT_S = 0.1
_SANITIZE = "sanitize_inputs_outputs"  # how a ToolCallingAgent asks for typed results
_RUN_OPTIONS = {"max_steps", "stream"}  # of `MultiStepAgent.run`: a stream would run after the call
_DATA_OF_A_TOOL = ("description", "inputs", "output_type", "output_schema")
UNKNOWN_SENTENCE = (
    "it is not known whether this call of {name} had its effect: the process that made it ended before the tool "
    "returned. It is not made again. Find out before you call it once more, or tell the user."
)


class UnknownOutcomeError(RuntimeError):
    """A call of a tool that is unsafe to repeat was in flight when its process ended."""


class ToolProxy(Proxy):
    """Proxy of a tool. Its call is an effect: a replay returns the journaled result."""

    _node: AgentNode
    __slots__ = ()

    @property
    def inputs(self) -> Any:  # smolagents reads it eight times a turn, and `__getattr__` follows a failed look-up
        return self._real.inputs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        node, tool, agent_run = self._node, self._real, self._node.agent_run
        if agent_run is None:
            return self._called(args, kwargs)
        arguments = _named(tool, args, kwargs)
        if state := node.agent.state:
            arguments = by_name(arguments, state)
            names = getattr(tool, "inputs_for_names", ())
            kwargs |= {key: arguments[key] for key in names if key in kwargs}
        if type(tool) is FinalAnswerTool:  # it returns its argument
            with agent_run.tool_call(tool.name, arguments) as call:
                call.result = tool(*args, **kwargs)
            return call.result
        with agent_run.tool_call(tool.name, arguments, "tool") as call:
            if node.approvals and isinstance(tool, AskUser):
                node.approvals.question(agent_run, call, *checked_question(**arguments))
            elif node.approvals:
                shown = call.record.arguments
                new = node.approvals.decide(agent_run, call, tool, arguments)
                if new is not None:
                    as_agent = {key: kwargs[key] for key in (_SANITIZE,) if key in kwargs}
                    given = {**kwargs, **_named(tool, args, kwargs)}
                    args, kwargs = (), edited(given, shown, new) | as_agent
                if isinstance(tool, ToolOfClient):
                    call.record = replace(call.record, where="client")
                    if not call.is_over and not call.known:
                        sent = tool.listed.remote_arguments((), _named(tool, args, kwargs))
                        value = node.approvals.result(agent_run, call, tool.described, sent)
                        if not call.is_over:
                            value = (
                                handle_agent_output_types(value, tool.output_type) if kwargs.get(_SANITIZE) else value
                            )
                            is_lossy = node.code_runs_in == "child"
                            call.effect, call.result = encode_returned(value, node.stored_classes, is_lossy=is_lossy)
                            call.is_over = True
            if call.is_over:
                pass
            elif call.known:
                node.state.apply_changes(call.known.changes)
                call.result = call.known.outcome(node.stored_classes)
            else:
                with agent_run.nested(call.record.call_id):
                    call.result = self._run(call, args, kwargs)
        if isinstance(call.result, File | list) and not node.code_runs_in:
            return self._stored(call.result)
        return call.result

    def _run(self, call: ToolCallInProgress, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the tool. Return or raise its result as it comes out of the journal."""
        node, tool = self._node, self._real
        is_unsafe = tool.name in options_of(node.agent).unsafe_to_repeat or getattr(tool, "unsafe_to_repeat", False)
        is_unknown = call.record.repeated and is_unsafe
        if is_unknown:
            call.record = replace(call.record, repeated=False)  # an earlier attempt made this call: it is not repeated
        before = node.state.snapshot_tool(tool)
        call.begin()
        try:
            if is_unknown:
                raise UnknownOutcomeError(UNKNOWN_SENTENCE.format(name=tool.name))  # noqa: TRY301 - journaled, too
            value = self._called(args, kwargs)
        except Exception as error:  # of any tool: the model reads it
            call.effect = encode_raised(error)
            call.effect.changes = node.state.tool_changes(tool, before)
            raise call.effect.error from error
        call.effect, again = encode_returned(value, node.stored_classes, is_lossy=node.code_runs_in == "child")
        needs_original = node.code_runs_in in {"thread", "remote"}  # code in this process needs the live object
        if needs_original and type(again) is not type(value):
            call.effect = Effect()
        call.effect.changes = node.state.tool_changes(tool, before)
        return value if needs_original else again

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the real tool, as smolagents does. A coroutine is waited for before its result is converted."""
        tool = self._real
        if not is_asynchronous(tool):
            return tool(*args, **kwargs)
        is_typed = kwargs.pop(_SANITIZE, False)
        if is_typed:
            args, kwargs = handle_agent_input_types(*args, **kwargs)
        agent_run = self._node.agent_run
        value = result_of(tool(*args, **kwargs), agent_run.turn_run if agent_run else None)
        return handle_agent_output_types(value, tool.output_type) if is_typed else value

    def _stored(self, result: File | list[Any]) -> Any:
        """Put files into `agent.state`, as smolagents does with an image: the model passes them on by name.

        A list may hold files and images among texts.
        """
        parts = result if isinstance(result, list) else [result]
        names: dict[int, str] = {}
        for place, part in enumerate(parts):
            if isinstance(part, File | PIL.Image.Image):
                names[place] = free_name(name_in_state(part), names.values())
        if not names:
            return result
        values = {name: parts[place] for place, name in names.items()}
        has_room = fits(self._node.agent.state, values)
        if has_room:
            self._node.state.put(self._node, values)
        texts = list(map(str, parts))
        for place, name in names.items():
            texts[place] = f"Stored '{name}' in memory." if has_room else label_of(parts[place]) + UNKEPT
        return ValueWithText(result, "\n".join(texts))


class AgentProxy(Proxy):
    """Proxy of a managed agent, whose own node is `inner`. It has one run at a time: two would corrupt it."""

    __slots__ = ("_inner",)
    _node: AgentNode
    _inner: AgentNode

    def __init__(self, real: MultiStepAgent, node: AgentNode, inner: AgentNode) -> None:
        super().__init__(real, node)
        object.__setattr__(self, "_inner", inner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the agent for a call of the model, which may not change its limits."""
        if refused := sorted(_RUN_OPTIONS & kwargs.keys()):
            raise TypeError(f"{self._real.name} takes a task and additional_args, and no {refused[0]}: leave it out.")
        return self._run(self._real, *args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the agent. Author's code may use this instead of a call."""
        if kwargs.get("stream"):
            return self._real.run(*args, **kwargs)
        return self._run(self._real.run, *args, **kwargs)

    def _run(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        agent_run, inner = self._node.agent_run, self._inner
        if agent_run is None:
            return run(*args, **kwargs)
        turn_run = agent_run.turn_run
        arguments = kwargs if not args else {"task": args[0], **kwargs}
        with agent_run.tool_call(self._real.name or "", arguments) as call:
            if self._node.approvals:
                shown = call.record.arguments
                new = self._node.approvals.decide(agent_run, call, self._real, arguments)
                if call.is_over:
                    return call.result
                if new is not None:
                    args, kwargs = (), edited(arguments, shown, new)
            while not inner.busy.acquire(timeout=WAIT_S):
                turn_run.check()
            token = CALLER.set(turn_run.caller)
            try:
                path = f"{agent_run.path}/{self._real.name}"
                inner.agent_run = AgentRun(turn_run, path, call.record.call_id, agent_run)
                if inner.memory is None:
                    call.result = run(*args, **kwargs)
                else:
                    with inner.memory.call(call.record.call_id, agent_run.may_follow):
                        call.result = run(*args, **{"reset": False, **kwargs})
            finally:
                CALLER.reset(token)
                inner.agent_run = None
                inner.busy.release()
        return call.result


class InterpreterProxy(Proxy):
    """Proxy of a CodeAgent's interpreter: a code block is an internal tool call.

    A block in a child process is one effect: a replay restores its output and variables, and takes its tool calls from
    the journal. A block in a thread runs again, and only its tool calls come from the journal.
    """

    _node: AgentNode
    __slots__ = ()

    def __call__(self, code_action: str) -> Any:
        agent_run, real = self._node.agent_run, self._real
        if agent_run is None:
            return real(code_action)
        with agent_run.tool_call("python_interpreter", code_action, "code") as call:
            if self._node.approvals:
                new = self._node.approvals.decide(agent_run, call, None, code_action)
                if call.is_over:
                    return CodeOutput(output=None, logs=call.result, is_final_answer=False)
                if new is not None:
                    code_action = new["code"]
            if call.known:
                agent_run.replays_block = True
                try:
                    output = real.replay(call.known.returned)
                finally:
                    agent_run.replays_block = False
            else:
                output = self._run(call, agent_run, code_action)
            call.result = output.logs if output.output is None else output.logs + as_text(output.output)
        return output

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Send functions instead of tools to an interpreter of this process: tools would expose their attributes."""
        if isinstance(self._real, LocalPythonExecutor):
            tools = {
                name: tool_stub(
                    name, tool, {each: deepcopy(getattr(tool, each)) for each in _DATA_OF_A_TOOL if hasattr(tool, each)}
                )
                for name, tool in tools.items()
            }
        self._real.send_tools(tools)

    def _run(self, call: ToolCallInProgress, agent_run: AgentRun, code_action: str) -> Any:
        real, turn_run = self._real, agent_run.turn_run
        is_child = self._node.interpreter is not None
        call.begin(is_harmless=is_child)  # only its tool calls reach outside, and they wait
        if is_child:
            real.seed = turn_run.seed(call.record.call_id)
            real.clock = ClockLog(turn_run.journal, call.record.call_id)
        try:
            if self._node.code_runs_in == "remote" and call.record.repeated:
                # An earlier attempt may have called a tool that is unsafe to repeat.
                for name in options_of(self._node.agent).unsafe_to_repeat:
                    if re.search(rf"\b{re.escape(name)}\b", code_action):
                        call.record = replace(call.record, repeated=False)
                        return real.refuse(UNKNOWN_SENTENCE.format(name=name))
            if is_child:
                turn_run.waits.add(real.end_on_stop)  # until the turn ends: its next model call may hang, too
                turn_run.check()
            return real(code_action)
        finally:
            if effect := getattr(real, "effect", b""):
                call.effect = Effect(effect)


class CallbacksProxy(Proxy):
    """Proxy of an agent's callbacks. They get a step's output as the value, never as its text for the model."""

    _node: AgentNode
    __slots__ = ()

    def callback(self, memory_step: MemoryStep, **kwargs: Any) -> None:
        step: Any = memory_step
        if agent_run := self._node.agent_run:
            agent_run.check_waits()
            if agent_run.notes and isinstance(step, ActionStep):
                step.observations = "\n".join([*filter(None, [step.observations]), *agent_run.notes])
                agent_run.notes.clear()
        name = "output" if isinstance(step, FinalAnswerStep) else "action_output"
        output = getattr(step, name, None)
        if type(output) is not ValueWithText:
            self._real.callback(step, **kwargs)
            return
        value = handle_agent_output_types(output.value) if name == "output" else output.value
        setattr(step, name, value)
        self._real.callback(step, **kwargs)
        if getattr(step, name) is not value:
            return
        if name == "output":
            step.output = output  # a manager's model reads the text that the answer had in its process
        elif not (step.is_final_answer or step.error):  # with an error it is an answer that a check refused
            step.action_output = str(output)  # only values of answers are stored


def proxy_check(check: Callable[..., Any], node: AgentNode) -> Callable[..., Any]:
    """Make a check of the final answer an effect. It gets the value, never its text for the model."""

    @functools.wraps(check)
    def asked(answer: Any, *args: Any, **kwargs: Any) -> Any:
        answer = without_text(answer)
        if node.agent_run is None:
            return check(answer, *args, **kwargs)
        return node.agent_run.run_check(lambda: bool(check(answer, *args, **kwargs)))

    return asked


def proxy_tools(node: AgentNode) -> None:
    """Replace tools by proxies, also those that were added since. A remote executor needs the real tools' source."""
    if node.code_runs_in == "remote":
        return
    for name, tool in node.agent.tools.items():
        if type(tool) is not ToolProxy:
            node.agent.tools[name] = ToolProxy(tool, node)


def _named(tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a call's arguments by name. A tool also accepts them as one dictionary."""
    named = kwargs.copy()
    named.pop(_SANITIZE, None)
    if not args:
        return named
    if len(args) == 1 and not named and isinstance(args[0], dict) and set(args[0]) <= set(tool.inputs):
        return args[0]
    names = [*tool.inputs, *(str(number) for number in range(len(tool.inputs), len(args)))]
    return {**dict(zip(names, args, strict=False)), **named}
