"""Agents whose turns are killed, handed over, replayed and journaled. They make as many calls as the message orders."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from smolagents import ChatMessage, LogLevel, Model, ToolCallingAgent, tool

from benchmarks.agents import call_of, last_text, templates

MOST_STEPS = 10_000
PLAYERS = {
    "AGENTS": "steps=benchmarks.players:make_steps",
    "DEFAULT_AGENT": "steps",
    "DEMO_AGENTS": "false",
}
_ORDER = re.compile(r"Make (\d+) calls of (\d+) ms each, the last of (\d+) ms, the model takes (\d+) ms")
_DONE = re.compile(r"Did (\d+) in process (\d+) from (\d+) to (\d+)")


@dataclass(frozen=True)
class Order:
    """Tool calls that a message orders, one a step."""

    calls: int
    call_ms: int = 0
    model_ms: int = 0
    last_ms: int = 0

    def __str__(self) -> str:
        return (
            f"Make {self.calls} calls of {self.call_ms} ms each, the last of {self.last_ms} ms, "
            f"the model takes {self.model_ms} ms."
        )


def _order(text: str) -> Order:
    calls, call_ms, last_ms, model_ms = _ORDER.findall(text)[-1]
    return Order(int(calls), int(call_ms), int(model_ms), int(last_ms))


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
        text = last_text(messages)
        order = _order(text)
        if order.model_ms:
            time.sleep(order.model_ms / 1000)
        made = done(text)
        if made and made.number == order.calls:
            return call_of("final_answer", {"answer": text.removeprefix("Observation:\n")})
        number = made.number + 1 if made else 1
        return call_of("work", {"number": number, "order": str(order)})


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


def make_steps() -> ToolCallingAgent:
    """Make the agent as a careful user does: the prompts' YAML is parsed once."""
    return ToolCallingAgent(
        tools=[work],
        model=Player(),
        prompt_templates=templates(),
        max_steps=MOST_STEPS,
        verbosity_level=LogLevel.OFF,
    )
