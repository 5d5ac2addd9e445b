"""The bare contender: `agent.run(message, reset=False)` in this process, no HTTP, no store. It prints its figures."""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from smolagents import ToolCallingAgent

from benchmarks.agents import make_shipped_agent, question, right_answer
from benchmarks.cpu import server_meter


class Window:
    """Latencies of all turns that end between two moments."""

    def __init__(self, warmup_s: float, seconds: float) -> None:
        self.start = time.perf_counter() + warmup_s
        self.end = self.start + seconds
        self.latencies_ms: list[float] = []

    def converse(self, agent: ToolCallingAgent, first_turns: int, turns: int) -> None:
        """Play until the window's end. The agent forgets after every `turns` turns (the first time: `first_turns`)."""
        left = first_turns
        while True:
            for number in range(1, left + 1):
                before = time.perf_counter()
                reply = agent.run(question(number), reset=number == 1)
                after = time.perf_counter()
                if reply != right_answer(number):
                    raise RuntimeError(f"the agent replied {reply!r}")
                if after > self.end:
                    return
                if after >= self.start:
                    self.latencies_ms.append((after - before) * 1000)
            left = turns


def main() -> None:
    """Run so many concurrent conversations, each in a thread with its agent, and print the figures as JSON."""
    concurrency, turns, warmup_s, seconds = json.loads(sys.argv[1])
    agents = [make_shipped_agent() for _ in range(concurrency)]
    window = Window(warmup_s, seconds)
    threads = [
        threading.Thread(target=window.converse, args=(agent, turns - i % turns, turns))
        for i, agent in enumerate(agents)
    ]
    for thread in threads:
        thread.start()
    time.sleep(max(0.0, window.start - time.perf_counter()))
    core = server_meter(os.getpid())
    time.sleep(max(0.0, window.end - time.perf_counter()))
    shares = core.shares()
    for thread in threads:
        thread.join()
    print(json.dumps({"shares": shares, "latencies_ms": window.latencies_ms}))


if __name__ == "__main__":
    main()
