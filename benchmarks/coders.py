"""Agents whose code is measured: the same agent, with its code in a process of its own or in the service's thread."""

from __future__ import annotations

import importlib.resources
import json
import re
import threading
import time
from functools import cache
from typing import Any

import yaml
from smolagents import ChatMessage, CodeAgent, LogLevel, MessageRole, Model, TokenUsage, tool

from benchmarks.agents import TOOLS

MODES = ("process", "thread")
FURTHER, TICKS = 5, 20
VARIABLES = 1000
BURN_AFTER_S = 1.0
RACE = "AST constructor recursion depth mismatch"  # CPython 3.11 raises it occasionally if two threads parse at once
_ORDER = re.compile(r"Run (\w+) (\d+)\.")
_QUESTION = re.compile(r"What is ([^?]+)\?")
_turn = threading.local()  # a turn's model calls and tool calls run in one thread


def order(kind: str, number: int = 0) -> str:
    """Return the message that orders this kind of code."""
    return f"Run {kind} {number}."


def _blocks(kind: str, number: int) -> list[str]:
    burning = {"sum": "sum(range(4 * 10**8))", "pattern": "import re\nre.match('(a+)+$', 'a' * 27 + 'b')"}
    if kind in burning:
        return [f"wait({BURN_AFTER_S})\n{burning[kind]}"]
    return {
        "costs": ["total = 1", *["total += 1"] * FURTHER, f"for _ in range({TICKS}):\n    tick()"],
        "wait": [f"total = 1\nwait({number})"],
        "none": ["1 + 1"],
        "one": [_assignment(VARIABLES // 2, number)],
        "all": ["\n".join(_assignment(index, number) for index in range(VARIABLES))],
    }[kind]


def _assignment(index: int, salt: int) -> str:
    """Return code that sets a variable of some 80 bytes: a text for odd indexes, a dictionary for even ones."""
    text = f"{(index + 1) * (salt + 3) * 0x9E3779B97F4A7C15F39CC0605CEDC834:060d}"
    return f"name_{index} = " + (repr(text) if index % 2 else f'{{"number": {salt}, "text": {text!r}}}')


class Coder(Model):  # type: ignore[misc, unused-ignore]
    """Writes the ordered blocks, each after the end of the previous one, and answers with the milliseconds of each.

    It answers a question as the other contenders' model does, with a tool call and an answer. It writes a block again
    if the block failed because other threads parsed code meanwhile.
    """

    def generate(self, messages: list[ChatMessage], *_args: Any, **_kwargs: Any) -> ChatMessage:
        called_at = time.perf_counter()
        last = messages[-1]
        text = str(last.content[-1]["text"] if isinstance(last.content, list) else last.content)
        if last.role == MessageRole.USER:
            _turn.left, _turn.block_ms, _turn.tick_ms = _script(text), [], []
        elif RACE in text:
            _turn.left.insert(0, _turn.code)
        elif "Error:" in text:
            raise RuntimeError(f"{_turn.code!r} was answered with {text!r}")
        else:
            _turn.block_ms.append((called_at - _turn.at) * 1000)
        if _turn.left:
            _turn.code = _turn.left.pop(0)
        else:
            reply = json.dumps({"blocks": _turn.block_ms, "ticks": _turn.tick_ms})
            _turn.code = f"final_answer({json.dumps(reply)})"
        content = f"Thought: I write code.\n<code>\n{_turn.code}\n</code>"
        usage = TokenUsage(input_tokens=1200, output_tokens=20)
        _turn.at = time.perf_counter()
        return ChatMessage(role=MessageRole.ASSISTANT, content=content, token_usage=usage)


def _script(text: str) -> list[str]:
    if orders := _ORDER.findall(text):
        return _blocks(orders[-1][0], int(orders[-1][1]))
    return [f'result = calculator("{_QUESTION.findall(text)[-1]}")', 'final_answer(f"The result is {result}.")']


@tool
def tick() -> None:
    """Notes how long ago it was called before."""
    now, before = time.perf_counter(), getattr(_turn, "ticked_at", 0.0)
    if _turn.tick_ms or before > _turn.at:
        _turn.tick_ms.append((now - before) * 1000)
    _turn.ticked_at = now


@tool
def wait(seconds: float) -> None:
    """Waits.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)


def make_process() -> CodeAgent:
    """Make the agent as the service has it."""
    return CodeAgent(
        tools=[*TOOLS, tick, wait],
        model=Coder(),
        prompt_templates=_templates(),
        verbosity_level=LogLevel.OFF,
        executor_kwargs={"timeout_seconds": None},  # as in the child: smolagents' own timeout costs a thread a block
    )


def make_thread() -> CodeAgent:
    """Make the same agent, with its code run by smolagents' own interpreter in the turn's thread."""
    agent = make_process()
    vars(agent)["executor"] = "thread"
    return agent


@cache
def _templates() -> Any:
    return yaml.safe_load(importlib.resources.files("smolagents.prompts").joinpath("code_agent.yaml").read_text())
