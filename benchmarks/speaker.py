"""The streaming contenders' agent: a scripted model that streams as many pieces as its last message orders."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from smolagents import ChatMessage, LogLevel, Model, ToolCallingAgent
from smolagents.models import (
    ChatMessageStreamDelta,
    ChatMessageToolCallFunction,
    ChatMessageToolCallStreamDelta,
    agglomerate_stream_deltas,
)

from benchmarks.agents import TOOLS, make_agent

Kind = Literal["arguments", "content", "stamps"]

WORD = "word "
_ORDER = re.compile(r"Say (\d+) pieces of (\w+), the first after (\d+) ms, the others each after (\d+) ms")


@dataclass(frozen=True)
class Order:
    """Pieces that a message orders.

    `arguments` are pieces of final_answer's arguments. `content` is text beside a call of final_answer. `stamps` is
    such text too, but each piece holds the time at which it was made.
    """

    pieces: int
    kind: Kind = "arguments"
    first_ms: int = 0
    every_ms: int = 0

    def __str__(self) -> str:
        return (
            f"Say {self.pieces} pieces of {self.kind}, the first after {self.first_ms} ms, "
            f"the others each after {self.every_ms} ms."
        )


class Speaker(Model):  # type: ignore[misc, unused-ignore]
    """Streams as fast as it is read, or with the ordered delays."""

    def generate_stream(
        self, messages: list[ChatMessage], *_args: Any, **_kwargs: Any
    ) -> Iterator[ChatMessageStreamDelta]:
        pieces, kind, first_ms, every_ms = _ORDER.findall(str(messages[-1].content))[-1]
        time.sleep(int(first_ms) / 1000)
        for piece in _pieces(int(pieces), kind):
            yield piece
            if int(every_ms):
                time.sleep(int(every_ms) / 1000)

    def generate(self, messages: list[ChatMessage], *args: Any, **kwargs: Any) -> ChatMessage:
        return agglomerate_stream_deltas(list(self.generate_stream(messages, *args, **kwargs)))


def make_speaker() -> ToolCallingAgent:
    """Make the service's agent, as a careful user does."""
    agent = make_agent()
    agent.model = Speaker()
    return agent


def make_shipped_speaker() -> ToolCallingAgent:
    """Make the bare contender's agent, as smolagents' own examples do."""
    return ToolCallingAgent(tools=TOOLS, model=Speaker(), stream_outputs=True, verbosity_level=LogLevel.OFF)


def _pieces(count: int, kind: Kind) -> Iterator[ChatMessageStreamDelta]:
    if kind == "arguments":
        yield _call(f'{{"answer": "{WORD}', name="final_answer")
        yield from itertools.repeat(_call(WORD), count - 2)
        yield _call('"}')
    elif kind == "content":
        yield from itertools.repeat(ChatMessageStreamDelta(content=WORD), count - 1)
        yield _call(json.dumps({"answer": "done"}), name="final_answer")
    else:
        for _ in range(count):
            yield ChatMessageStreamDelta(content=f"@{time.monotonic_ns()} ")


def _call(text: str, name: str = "") -> ChatMessageStreamDelta:
    function = ChatMessageToolCallFunction(name=name, arguments=text)
    call = ChatMessageToolCallStreamDelta(
        index=0, id="call_1" if name else None, type="function" if name else None, function=function
    )
    return ChatMessageStreamDelta(tool_calls=[call])
