"""The bare contender of streams: `agent.run(message, stream=True)` with `stream_outputs` on. It prints its figures."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from smolagents import ToolCallingAgent
from smolagents.models import ChatMessageStreamDelta

from benchmarks.speaker import Order, make_shipped_speaker

WARM_UP = 5


def main() -> None:
    """Let the agent answer the requested number of times, and print the times as JSON."""
    message, count, turns = json.loads(sys.argv[1])
    figures = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # keeps rich's display of the stream out of the figures
    for _ in range(WARM_UP):
        _listen(make_shipped_speaker(), str(Order(20)))
    times, cpu_ms = [], 0.0
    for number in range(count):
        if number % turns == 0:
            agent = make_shipped_speaker()
        before = time.process_time_ns()
        times.append(_listen(agent, message))
        cpu_ms += (time.process_time_ns() - before) / 1e6
    os.write(figures, json.dumps({"times": times, "cpu_ms": cpu_ms}).encode())


def _listen(agent: ToolCallingAgent, message: str) -> tuple[float, float, float]:
    """Return the milliseconds to the first item, to the first delta and to the end."""
    clock = time.perf_counter
    first_at = delta_at = 0.0
    start = clock()
    items: Any = agent.run(message, stream=True, reset=False)
    for item in items:
        first_at = first_at or clock()
        if not delta_at and isinstance(item, ChatMessageStreamDelta):
            delta_at = clock()
    end = clock()
    return (first_at - start) * 1000, (delta_at - start) * 1000, (end - start) * 1000


if __name__ == "__main__":
    main()
