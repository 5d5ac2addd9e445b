"""Agents whose turns are killed, handed over, replayed and journaled. They make as many calls as the message orders."""

from __future__ import annotations

import importlib.resources
import json
import os
import re
import time
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import yaml
from smolagents import (
    ChatMessage,
    CodeAgent,
    LogLevel,
    MessageRole,
    Model,
    MultiStepAgent,
    TokenUsage,
    ToolCallingAgent,
    tool,
)
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction

Kind = Literal["steps", "block"]

MOST_STEPS = 10_000
PLAYERS = {
    "AGENTS": "steps=benchmarks.players:make_steps,block=benchmarks.players:make_block",
    "DEFAULT_AGENT": "steps",
    "DEMO_AGENTS": "false",
}
_ORDER = re.compile(r"Make (\d+) calls of (\d+) ms in (\w+), the last of (\d+) ms, the model takes (\d+) ms")
_DONE = re.compile(r"Did (\d+) in process (\d+) from (\d+) to (\d+)")


@dataclass(frozen=True)
class Order:
    """Tool calls that a message orders: one a step (`steps`), or all of them in one block of code (`block`)."""

    calls: int
    kind: Kind = "steps"
    call_ms: int = 0
    model_ms: int = 0
    last_ms: int = 0

    def __str__(self) -> str:
        return (
            f"Make {self.calls} calls of {self.call_ms} ms in {self.kind}, the last of {self.last_ms} ms, "
            f"the model takes {self.model_ms} ms."
        )


def _order(text: str) -> Order:
    calls, call_ms, kind, last_ms, model_ms = _ORDER.findall(text)[-1]
    return Order(int(calls), kind, int(call_ms), int(model_ms), int(last_ms))


class Done(NamedTuple):
    """Report of a call about itself. The moments are nanoseconds of the machine's monotonic clock."""

    number: int
    pid: int
    begun_ns: int
    ended_ns: int


def done(text: str) -> Done | None:
    """Return the last report of a call in a text."""
    found = _DONE.findall(text)
    return Done(*map(int, found[-1])) if found else None


class Player(Model):  # type: ignore[misc, unused-ignore]
    """Reads the last message only, so it costs the same at any length and continues in any process."""

    def generate(self, messages: list[ChatMessage], *_args: Any, **_kwargs: Any) -> ChatMessage:
        last = messages[-1]
        text = str(last.content[-1]["text"] if isinstance(last.content, list) else last.content)
        order = _order(text)
        if order.model_ms:
            time.sleep(order.model_ms / 1000)
        if order.kind == "block":
            return _says(content=f"Thought: I write code.\n<code>\n{_block(order)}\n</code>")
        made = done(text)
        if made and made.number == order.calls:
            return _says(tool_calls=[_call("final_answer", {"answer": text.removeprefix("Observation:\n")})])
        number = made.number + 1 if made else 1
        return _says(tool_calls=[_call("work", {"number": number, "order": str(order)})])


def _block(order: Order) -> str:
    return f"for number in range(1, {order.calls + 1}):\n    last = work(number, {str(order)!r})\nfinal_answer(last)"


def _says(**said: Any) -> ChatMessage:
    return ChatMessage(role=MessageRole.ASSISTANT, token_usage=TokenUsage(input_tokens=1200, output_tokens=20), **said)


def _call(name: str, arguments: dict[str, Any]) -> ChatMessageToolCall:
    function = ChatMessageToolCallFunction(name=name, arguments=json.dumps(arguments))
    return ChatMessageToolCall(id=f"call_{arguments.get('number', 0)}", type="function", function=function)


@tool
def work(number: int, order: str) -> str:
    """Takes as long as was ordered.

    Args:
        number: Which call this is.
        order: The whole order.
    """
    begun_ns = time.monotonic_ns()
    ordered = _order(order)
    if took_ms := ordered.last_ms if number == ordered.calls else ordered.call_ms:
        time.sleep(took_ms / 1000)
    return f"Did {number} in process {os.getpid()} from {begun_ns} to {time.monotonic_ns()}. {order}"


def make(kind: Kind) -> MultiStepAgent:
    """Make the agent for this kind of order as a careful user does: the prompts' YAML is parsed once."""
    return make_steps() if kind == "steps" else make_block()


def make_steps() -> ToolCallingAgent:
    return ToolCallingAgent(
        tools=[work],
        model=Player(),
        prompt_templates=_templates("toolcalling_agent"),
        max_steps=MOST_STEPS,
        verbosity_level=LogLevel.OFF,
    )


def make_block() -> CodeAgent:
    return CodeAgent(
        tools=[work],
        model=Player(),
        prompt_templates=_templates("code_agent"),
        verbosity_level=LogLevel.OFF,
        executor_kwargs={"timeout_seconds": None},  # as in the service's own process for code
    )


@cache
def _templates(name: str) -> Any:
    return yaml.safe_load(importlib.resources.files("smolagents.prompts").joinpath(f"{name}.yaml").read_text())
