"""Agents whose code is measured: in a process of its own, or in the turn's thread by smolagents' own interpreter."""

from __future__ import annotations

import importlib.resources
import re
import threading
import time
from functools import cache
from itertools import pairwise
from typing import Any

import yaml
from smolagents import ChatMessage, CodeAgent, LogLevel, MessageRole, Model

import smolsessions

MODES = ("process", "thread")
BLOCKS, VARIABLES = 6, 1000
_turn = threading.local()


class Coder(Model):  # type: ignore[misc, unused-ignore]
    """Writes the ordered blocks, and answers with the milliseconds from each of its replies to the next call."""

    def generate(self, messages: list[ChatMessage], *_args: Any, **_kwargs: Any) -> ChatMessage:
        now, last = time.perf_counter(), messages[-1]
        if last.role == MessageRole.USER:
            kind, number = re.findall(r"Run (\w+) (\d+)", str(last.content))[-1]
            _turn.left, _turn.times = _blocks(kind, int(number)), []
        _turn.times.append(now)
        if not _turn.left:
            _turn.left = [f"final_answer({[(end - start) * 1000 for start, end in pairwise(_turn.times)]})"]
        _turn.times[-1] += time.perf_counter() - now
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"<code>\n{_turn.left.pop(0)}\n</code>")


def _blocks(kind: str, number: int) -> list[str]:
    if kind == "count":
        return ["total = 1", *["total += 1"] * (BLOCKS - 1)]
    names = range(VARIABLES) if kind == "all" else [number]
    return ["\n".join(f"name_{name} = {{'number': {number}, 'text': '{number * 7:060d}'}}" for name in names)]


def make_process() -> CodeAgent:
    """Make an agent whose code runs as the service has it."""
    timeout = {"timeout_seconds": None}  # smolagents' own costs a thread a block
    options = {"prompt_templates": _templates(), "verbosity_level": LogLevel.OFF, "executor_kwargs": timeout}
    return CodeAgent(tools=[], model=Coder(), **options)


def make_thread() -> CodeAgent:
    """Make the same agent, with its code run by smolagents' own interpreter in the turn's thread."""
    return smolsessions.options(make_process(), executor="thread")


@cache
def _templates() -> Any:
    return yaml.safe_load(importlib.resources.files("smolagents.prompts").joinpath("code_agent.yaml").read_text())
