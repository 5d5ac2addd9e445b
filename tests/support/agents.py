"""Agents for the tests: a model that plays the script in the message, and tools that return values of all kinds.

A message is a script: a JSON list with one entry for each model call of the turn. The model finds its place by counting
the messages after the task. It needs no state and plays the same in any process:
    {"call": [["tool", {"argument": 1}], …]}   tool calls        {"say": "text"}    final_answer
    {"text": "…"}   plain output (a parse error)                  {"code": "…"}      a code block
    {"raise": "text"}   the model fails                           {"prompt": true}   answers with a digest of its prompt
    {"notes": true}   answers with the notes that it is shown
    {"shown": true}     answers with its prompt except the system message: [role, text] of each message, as JSON

The answer forced after the last step is "forced answer", or `forced` of the last entry. It may be a text, the parts of
a message, {"raise": "text"} or {"gate": "path"}. A gate writes `started` beside that file and waits for the file.
"""

import datetime as dt
import decimal
import hashlib
import itertools
import json
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import PIL.Image
import yaml
from smolagents import CodeAgent, LogLevel, Model, MultiStepAgent, Tool, ToolCallingAgent
from smolagents.memory import ActionStep
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import TokenUsage

import smolsessions
from tests.support.tools import tool
from tests.support.waiting import PATIENCE_S

TASK = "New task:\n"


class ScriptedModel(Model):
    def generate(
        self,
        messages: list[ChatMessage],
        stop_sequences: list[str] | None = None,
        response_format: dict[str, str] | None = None,  # noqa: ARG002
        tools_to_call_from: list[Tool] | None = None,  # noqa: ARG002
        **_options: Any,
    ) -> ChatMessage:
        if stop_sequences == ["<end_plan>"]:
            return _message("1. Do what the script says.")
        task, done = place_in(messages)
        script = script_of(task)
        is_code = "</code>" in (stop_sequences or ())
        if stop_sequences is None:
            return _forced(script[-1].get("forced", "forced answer"))
        entry = script[min(done, len(script) - 1)]
        message = play(entry, messages, done, is_code=is_code)
        if "usage" in entry:
            message.raw = {"usage": entry["usage"]}
        message.role = entry.get("role", message.role)
        message.token_usage = TokenUsage(*entry.get("tokens", (10, 5)))
        return message


def place_in(messages: list[ChatMessage]) -> tuple[str, int]:
    texts = [text_of(message) for message in messages]
    start = max(index for index, text in enumerate(texts) if text.startswith(TASK))
    return texts[start], sum(text.startswith(("Observation:\n", "Error:\n", "Call id:")) for text in texts[start + 1 :])


def script_of(task: str) -> list[dict[str, Any]]:
    """Find the script in a task. A managed agent's script has words around it."""
    script: list[dict[str, Any]]
    script, _ = json.JSONDecoder().raw_decode(task, task.index("["))
    return script


def play(entry: dict[str, Any], messages: list[ChatMessage], step: int, *, is_code: bool) -> ChatMessage:
    if "busy_s" in entry:
        compute(entry["busy_s"])
    match entry:
        case {"raise": str(text)}:
            raise RuntimeError(text)
        case {"text": str(text)}:
            return _message(text)
        case {"code": str(code)}:
            return _message(f"Thought: run it.\n<code>\n{code}\n</code>")
        case {"prompt": True}:
            entry = {"say": digest(messages)}
        case {"notes": True}:
            entry = {"say": " | ".join(text for text in map(text_of, messages) if text.startswith("Note "))}
        case {"shown": True}:
            shown = [[MessageRole(message.role).value, text_of(message)] for message in messages[1:]]
            entry = {"say": json.dumps(shown).replace("<", "\\u003c")}  # a tag would end a block of code
    if "say" in entry and is_code:
        return _message(f"<code>\nfinal_answer({entry['say']!r})\n</code>")
    calls = entry.get("call") or [["final_answer", {"answer": entry["say"]}]]
    return _message(
        "I call.",
        [
            ChatMessageToolCall(
                id=f"call_{len(messages)}_{step}_{number}",
                type="function",
                function=ChatMessageToolCallFunction(name=name, arguments=arguments),
            )
            for number, (name, arguments) in enumerate(calls)
        ],
    )


def _forced(given: Any) -> ChatMessage:
    match given:
        case {"raise": str(text)}:
            raise RuntimeError(text)
        case {"gate": str(path)}:
            given = wait_for(path)
    return _message(given)


def _message(text: Any, calls: list[ChatMessageToolCall] | None = None) -> ChatMessage:
    usage = TokenUsage(input_tokens=10, output_tokens=5)
    return ChatMessage(role=MessageRole.ASSISTANT, content=text, tool_calls=calls, raw=object(), token_usage=usage)


def digest(messages: list[ChatMessage]) -> str:
    """Return a fingerprint of a prompt: every role and text, and the pixels of images."""
    seen = [[str(message.role), [_part(part) for part in _parts(message)]] for message in messages]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


def _part(part: dict[str, Any]) -> str:
    image = part.get("image")
    return str(part["text"]) if image is None else hashlib.sha256(image.tobytes()).hexdigest()


def _parts(message: ChatMessage) -> list[dict[str, Any]]:
    content = message.content
    return [{"text": content}] if isinstance(content, str) else content or []


def text_of(message: ChatMessage) -> str:
    return "".join(str(part.get("text", "")) for part in _parts(message))


@dataclass
class Money:
    """A class of a user's own."""

    amount: int
    currency: str


class Opaque:
    def __str__(self) -> str:
        return "opaque!"


@tool
def echo(text: str) -> str:
    """Give the text back."""
    return text


@tool
def fail(reason: str) -> str:
    """Fail."""
    raise ValueError(reason)


@tool
def leave() -> str:
    """End the interpreter."""
    raise SystemExit(3)


@tool
def compute(seconds: float) -> str:
    """Keep a core busy in Python code."""
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        count += 1
    return "computed"


@tool
def wait_for(path: str) -> str:
    """Say `started` beside a file, then wait until the file is there."""
    Path(f"{path}.started").touch()
    end = time.monotonic() + 2 * PATIENCE_S
    while not Path(path).exists():
        if time.monotonic() > end:
            raise TimeoutError(path)
        time.sleep(0.005)
    return "it is there"


@tool
def make(what: str) -> Any:
    """Make a value of some kind."""
    makers: dict[str, Any] = {
        "money": lambda: Money(7, "EUR"),
        "opaque": Opaque,
        "generator": lambda: (number for number in range(3)),
        "function": lambda: lambda: 1,
        "decimal": lambda: decimal.Decimal("1.10"),
        "date": lambda: dt.date(2026, 1, 2),
        "ordered": lambda: OrderedDict(a=1),
        "set": lambda: {1, 2},
        "nested": lambda: {"money": [Money(1, "USD")], "opaque": Opaque()},
        "image": lambda: PIL.Image.new("RGB", (3, 2), (255, 0, 0)),
        "error": lambda: ValueError("returned, not raised"),
        "deep": lambda: nested(5000),
        "long": lambda: "y" * 17_000_000,
        "noise": lambda: os.urandom(3_000_000).hex(),
    }
    return makers[what]()


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@tool
def picture() -> Any:
    """Draw a picture."""
    return PIL.Image.new("RGB", (4, 4), (0, 128, 255))


picture.output_type = "image"
TOOLS = [echo, fail, leave, compute, wait_for, make, picture]


@cache
def templates(name: str) -> Any:
    return yaml.safe_load(files("smolagents.prompts").joinpath(name).read_text())


def script_templates(name: str) -> Any:
    """Return templates that pass a managed agent's task on unchanged, because it is a script."""
    return templates(name) | {"managed_agent": {"task": "{{task}}", "report": "{{final_answer}}"}}


def _defaults(file: str) -> dict[str, Any]:
    given = {"tools": TOOLS, "model": ScriptedModel(), "prompt_templates": templates(file)}
    return given | {"verbosity_level": LogLevel.OFF, "max_steps": 6}


def make_scripted(**options: Any) -> ToolCallingAgent:
    return ToolCallingAgent(**(_defaults("toolcalling_agent.yaml") | options))


def make_code(**options: Any) -> CodeAgent:
    return CodeAgent(**(_defaults("code_agent.yaml") | {"executor_kwargs": {"timeout_seconds": None}} | options))


def make_planner() -> ToolCallingAgent:
    return make_scripted(planning_interval=1)


def make_manager() -> ToolCallingAgent:
    return make_scripted(managed_agents=[make_scripted(name="helper", description="Helps.")])


def make_wavering() -> CodeAgent:
    """Make an agent whose code runs in a thread, may look at files there, and asks a helper."""
    own = script_templates("toolcalling_agent.yaml")
    helper = make_scripted(name="helper", description="Helps.", prompt_templates=own)
    agent = make_code(additional_authorized_imports=["os", "posix"], managed_agents=[helper])
    return smolsessions.options(agent, executor="thread")


def make_checked() -> ToolCallingAgent:
    """Make an agent that accepts only answers that end in a full stop."""
    return make_scripted(final_answer_checks=[lambda answer, _memory, **_: str(answer).endswith(".")])


_SHARED: MultiStepAgent | None = None


def make_same() -> MultiStepAgent:
    global _SHARED  # noqa: PLW0603 - the mistake is the point
    _SHARED = _SHARED or make_scripted()
    return _SHARED


_EXECUTOR = make_code().python_executor


def make_trouble() -> MultiStepAgent:
    raise LookupError("no such model")


_MADE = itertools.count(1)
CHECKED_AT_START = 2


class Broken(ToolCallingAgent):  # type: ignore[misc, unused-ignore]
    def write_memory_to_messages(self, summary_mode: bool = False) -> list[ChatMessage]:
        if summary_mode:
            raise RuntimeError("broken")
        messages: list[ChatMessage] = super().write_memory_to_messages()
        return messages


def make_broken() -> ToolCallingAgent:
    return Broken(**_defaults("toolcalling_agent.yaml"))


def make_fickle() -> ToolCallingAgent:
    """Fail once: for the first session, after the calls that check the factory at start."""
    if next(_MADE) == CHECKED_AT_START + 1:
        raise LookupError("the password is hunter2")
    return make_scripted()


def make_leaving() -> ToolCallingAgent:
    """End the process, as `sys.exit` in a factory means to, for the first session."""
    if next(_MADE) == CHECKED_AT_START + 1:
        raise SystemExit(3)
    return make_scripted()


def make_clinging() -> ToolCallingAgent:
    agent = make_scripted()
    vars(agent)["cleanup"] = lambda: 1 / 0
    return agent


def _cleaned_up_by(cleanup: Callable[[], None]) -> ToolCallingAgent:
    agent = make_scripted()
    vars(agent)["cleanup"] = cleanup
    return agent


FACTORIES: dict[str, Callable[[], Any]] = {
    "carrier": lambda: smolsessions.options(make_code(), stored_classes=(Money,)),
    "same_interpreter": lambda: make_code(executor=_EXECUTOR),
    "nothing": lambda: "no agent",
    # An agent whose cleanup ends the process, as `sys.exit` means to.
    "slamming": lambda: _cleaned_up_by(lambda: sys.exit(7)),
    # An agent whose cleanup takes its time, as that of a remote executor does.
    "lingering": lambda: _cleaned_up_by(lambda: time.sleep(3)),
}
globals().update({f"make_{name}": factory for name, factory in FACTORIES.items()})


def make_mentor() -> CodeAgent:
    """Make an agent whose helper remembers, and of which a tool's call may be stopped or killed."""
    return make_code(managed_agents=[make_remembering()])


def make_lead() -> ToolCallingAgent:
    """Make an agent with such a helper, whose prompts show the last step alone, and one that it may call beside it."""
    brief = smolsessions.options(make_remembering("brief"), memory_policy={"name": "keep_last_n_steps", "n": 1})
    return make_scripted(managed_agents=[make_remembering(), brief])


def make_remembering(name: str = "helper") -> ToolCallingAgent:
    own = script_templates("toolcalling_agent.yaml")
    helper = make_scripted(name=name, description="Helps.", prompt_templates=own, step_callbacks=[shorten])
    return smolsessions.options(helper, remembers=True)


def shorten(_step: ActionStep, agent: MultiStepAgent) -> None:
    """Replace the first step of an agent's memory by a shorter one, as authors do to save tokens."""
    steps = agent.memory.steps
    if len(steps) > 3 and isinstance(steps[1], ActionStep):
        steps[1] = replace(steps[1], observations="short")
