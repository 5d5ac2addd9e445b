"""Proxies of tools, managed agents, interpreters and callbacks: each call is recorded, and a stop ends it."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Collection
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import PIL.Image
from smolagents import MultiStepAgent, Tool
from smolagents.agent_types import handle_agent_output_types
from smolagents.default_tools import FinalAnswerTool
from smolagents.local_python_executor import CodeOutput, LocalPythonExecutor
from smolagents.memory import ActionStep, FinalAnswerStep, MemoryStep

from smolsessions.agents.run.agent_run import AgentRun, ToolCallInProgress
from smolsessions.agents.run.approvals import Approvals, Decision, edited
from smolsessions.agents.run.effects import Effect, ValueWithText, as_text, encode_returned, without_text
from smolsessions.agents.run.turn_files import UNKEPT, by_name, fits, name_in_state
from smolsessions.agents.sandbox.clock import ClockLog
from smolsessions.agents.sandbox.guard import tool_stub
from smolsessions.agents.tools.ask_user import AskUser, checked_question
from smolsessions.agents.values.json_forms import label_of
from smolsessions.caller import CALLER
from smolsessions.core.attachments import File
from smolsessions.options import options_of

if TYPE_CHECKING:
    from smolsessions.agents.run.instrumentation import AgentNode

WAIT_S = 0.1
_SANITIZE = "sanitize_inputs_outputs"  # how a ToolCallingAgent asks for typed results
_MEDIA = (File, PIL.Image.Image)
_STORED = (File, list)
_DATA_OF_A_TOOL = ("description", "inputs", "output_type", "output_schema")
UNKNOWN_SENTENCE = (
    "it is not known whether this call of {name} had its effect: the process that made it ended before the tool "
    "returned. It is not made again. Find out before you call it once more, or tell the user."
)


class UnknownOutcomeError(RuntimeError):
    """A call of a tool that is unsafe to repeat was in flight when its process ended."""


class Proxy:
    """Stands in for a real object, whose class it reports. Outside a turn it only forwards calls."""

    __slots__ = ("_node", "_real")
    _real: Any
    _node: AgentNode

    def __init__(self, real: Any, node: AgentNode) -> None:
        object.__setattr__(self, "_real", real)
        object.__setattr__(self, "_node", node)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_real"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._real)

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        return vars(self._real)


class ToolProxy(Proxy):
    """Proxy of a tool. Its call is an effect: a replay returns the journaled result."""

    __slots__ = ()

    @property
    def inputs(self) -> Any:  # smolagents reads it eight times a turn, and `__getattr__` raises and drops an error
        return self._real.inputs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        agent_run = self._node.agent_run
        if agent_run is None:
            return self._real(*args, **kwargs)
        arguments = _named(self._real, args, kwargs)
        if state := self._node.agent.state:
            arguments = by_name(arguments, state)
            names = getattr(self._real, "inputs_for_names", ())
            kwargs |= {key: arguments[key] for key in names if key in kwargs}
        is_answer = type(self._real) is FinalAnswerTool  # it returns its argument
        with agent_run.tool_call(self._real.name, arguments, "" if is_answer else "tool") as call:
            approvals, decision = agent_run.recorder.approvals, None
            if approvals and not is_answer:
                shown, decision = call.record.arguments, self._decision(approvals, call, arguments)
                if decision and decision.arguments is not None:
                    given = {**kwargs, **_named(self._real, args, kwargs)}
                    as_agent = {key: kwargs[key] for key in (_SANITIZE,) if key in kwargs}
                    args, kwargs = (), edited(given, shown, decision.arguments) | as_agent
            if is_answer:
                call.result = self._real(*args, **kwargs)
            elif decision and decision.refusal is not None:
                pass
            elif decision and decision.text is not None:
                call.answer(decision.text)
            elif call.known:
                self._node.state.apply_changes(call.known.changes)
                call.result = call.known.outcome(self._node.stored_classes)
            else:
                act = functools.partial(self._real, *args, **kwargs)
                call.result = agent_run.run_inside(call.record.call_id, functools.partial(self._live, call, act))
        if isinstance(call.result, _STORED) and not (is_answer or self._node.code_runs_in):
            return self._stored(call.result)
        return call.result

    def _decision(self, approvals: Approvals, call: ToolCallInProgress, arguments: Any) -> Decision | None:
        """Return a person's decision on a call, if it needs one. Raises `TurnWaiting` to wait for it."""
        if isinstance(self._real, AskUser):
            return approvals.question(self._node, call, *checked_question(**arguments))
        return approvals.decide(self._node, call, self._real, arguments)

    def _stored(self, result: File | list[Any]) -> Any:
        """Put files into `agent.state`, as smolagents does with an image: the model passes them on by name.

        A list may hold files and images among texts.
        """
        parts = result if isinstance(result, list) else [result]
        names: dict[int, str] = {}
        for place, part in enumerate(parts):
            if isinstance(part, _MEDIA):
                names[place] = _free_name(name_in_state(part), names.values())
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

    def _live(self, call: ToolCallInProgress, act: Callable[[], Any]) -> Any:
        name, unsafe = self._real.name, options_of(self._node.agent).unsafe_to_repeat
        if call.record.repeated and (name in unsafe or getattr(self._real, "unsafe_to_repeat", False)):
            call.record = replace(call.record, repeated=False)  # an earlier attempt made this call: it is not repeated
            act = functools.partial(_refuse, name)
        state = self._node.state
        before = state.snapshot_tool(self._real)
        try:
            return call.run(act, self._encode)
        finally:
            if call.effect:
                call.effect.changes = state.tool_changes(self._real, before)

    def _encode(self, value: Any) -> tuple[Effect, Any]:
        code_runs_in, stored_classes = self._node.code_runs_in, self._node.stored_classes
        effect, again = encode_returned(value, stored_classes, is_lossy=code_runs_in == "child")
        if code_runs_in in {None, "child"}:
            return effect, again
        return (effect if type(again) is type(value) else Effect()), value  # code in this process needs the live object


_RUN_OPTIONS = {"max_steps", "stream"}  # of `MultiStepAgent.run`: a stream would run after the call


class AgentProxy(Proxy):
    """Proxy of a managed agent, whose own node is `inner`. It has one run at a time: two would corrupt it."""

    __slots__ = ("_inner",)
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
        arguments = kwargs if not args else {"task": args[0], **kwargs}
        with agent_run.tool_call(self._real.name or "", arguments) as call:
            approvals = agent_run.recorder.approvals
            shown = call.record.arguments
            if approvals and (decision := approvals.decide(self._node, call, self._real, arguments)):
                if decision.refusal is not None:
                    return call.result
                if decision.arguments is not None:
                    args, kwargs = (), edited(arguments, shown, decision.arguments)
            while not inner.busy.acquire(timeout=WAIT_S):
                agent_run.recorder.check()
            try:
                path = f"{agent_run.path}/{self._real.name}"
                inner.agent_run = AgentRun(agent_run.recorder, path, call.record.call_id, agent_run)
                token = CALLER.set(agent_run.recorder.caller)
                try:
                    call.result = run(*args, **kwargs)
                finally:
                    CALLER.reset(token)
            finally:
                inner.agent_run = None
                inner.busy.release()
        return call.result


class InterpreterProxy(Proxy):
    """Proxy of a CodeAgent's interpreter: a code block is an internal tool call.

    A block in a child process is one effect: a replay restores its output and variables, and takes its tool calls from
    the journal. A block in a thread runs again, and only its tool calls come from the journal.
    """

    __slots__ = ()

    def __call__(self, code_action: str) -> Any:
        agent_run, real = self._node.agent_run, self._real
        if agent_run is None:
            return real(code_action)
        with agent_run.tool_call("python_interpreter", code_action, "code") as call:
            approvals = agent_run.recorder.approvals
            if approvals and (decision := approvals.decide(self._node, call, None, code_action)):
                if decision.refusal is not None:
                    return CodeOutput(output=None, logs=decision.refusal, is_final_answer=False)
                if decision.arguments is not None:
                    code_action = decision.arguments["code"]
            agent_run.replays_block = call.known is not None
            try:
                output = real.replay(call.known.returned) if call.known else self._live(call, agent_run, code_action)
            finally:
                agent_run.replays_block = False
            call.result = output.logs if output.output is None else output.logs + as_text(output.output)
        return output

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Send functions instead of tools to an interpreter of this process: tools would expose their attributes."""
        if isinstance(self._real, LocalPythonExecutor):
            tools = {name: tool_stub(name, tool, _data_of(tool)) for name, tool in tools.items()}
        self._real.send_tools(tools)

    def _live(self, call: ToolCallInProgress, agent_run: AgentRun, code_action: str) -> Any:
        is_child = hasattr(self._real, "seed")
        call.begin(is_harmless=is_child)  # only its tool calls reach outside, and they wait
        if self._node.code_runs_in == "remote" and call.record.repeated:
            self._refuse_unsafe(call, code_action)
        if is_child:
            self._real.seed = agent_run.recorder.seed(call.record.call_id)
            self._real.clock = ClockLog(agent_run.recorder.journal, call.record.call_id)
        try:
            with agent_run.recorder.stoppable(self._real.end_during_tool) if is_child else nullcontext():
                return self._real(code_action)
        finally:
            if effect := getattr(self._real, "effect", b""):
                call.effect = Effect(effect)

    def _refuse_unsafe(self, call: ToolCallInProgress, code_action: str) -> None:
        """Refuse a block that names a tool which is unsafe to repeat, as an earlier attempt may have called it."""
        for name in options_of(self._node.agent).unsafe_to_repeat:
            if re.search(rf"\b{re.escape(name)}\b", code_action):
                call.record = replace(call.record, repeated=False)
                try:
                    self._real.refuse(UNKNOWN_SENTENCE.format(name=name))
                finally:
                    call.effect = Effect(self._real.effect)


class CallbacksProxy(Proxy):
    """Proxy of an agent's callbacks. They get a step's output as the value, never as its text for the model."""

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


def unproxied(thing: Any) -> Any:
    """Return the real object behind a proxy, and any other object unchanged."""
    return object.__getattribute__(thing, "_real") if type(thing) in _KINDS else thing


def _refuse(name: str) -> Any:
    raise UnknownOutcomeError(UNKNOWN_SENTENCE.format(name=name))


def _free_name(name: str, taken: Collection[str]) -> str:
    """Return a name of a file that is not taken, with a number if need be."""
    stem, dot, extension = name.rpartition(".")
    numbered = (f"{stem}_{number}.{extension}" if dot else f"{name}_{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([name], numbered) if each not in taken)


def _data_of(tool: Any) -> dict[str, Any]:
    return {name: deepcopy(getattr(tool, name)) for name in _DATA_OF_A_TOOL if hasattr(tool, name)}


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


_KINDS = frozenset({ToolProxy, AgentProxy, InterpreterProxy})
