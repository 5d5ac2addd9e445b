"""The bare contender: `agent.run(message, reset=False)` in this process, no HTTP, no store. It prints its figures."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time

from benchmarks.agents import make_shipped_agent, question, right_answer
from benchmarks.cpu import ServerCore


class Window:
    """Measurements of all threads between two moments: latencies and CPU."""

    def __init__(self, warmup_s: float, seconds: float) -> None:
        self.start = time.perf_counter() + warmup_s
        self.end = self.start + seconds
        self.latencies_ms: list[float] = []
        self.building_ms: list[float] = []

    def converse(self, first_turns: int, turns: int) -> None:
        """Play turns until the window's end, with a new agent after every `turns` turns (the first: `first_turns`)."""
        left = first_turns
        while time.perf_counter() < self.end:
            before = time.perf_counter()
            agent = make_shipped_agent()
            self.building_ms.append((time.perf_counter() - before) * 1000)
            for number in range(1, left + 1):
                before = time.perf_counter()
                reply = agent.run(question(number), reset=False)
                after = time.perf_counter()
                if reply != right_answer(number):
                    raise RuntimeError(f"the agent replied {reply!r}")
                if before >= self.start and after <= self.end:
                    self.latencies_ms.append((after - before) * 1000)
                if after > self.end:
                    return
            left = turns


def main() -> None:
    """Run the requested number of concurrent conversations, each in a thread, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--warmup", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    window = Window(options.warmup, options.seconds)
    threads = [
        threading.Thread(target=window.converse, args=(options.turns - i % options.turns, options.turns))
        for i in range(options.concurrency)
    ]
    for thread in threads:
        thread.start()
    time.sleep(max(0.0, window.start - time.perf_counter()))
    core = ServerCore(os.getpid())
    time.sleep(max(0.0, window.end - time.perf_counter()))
    cpu_ms, others_share = core.taken()
    for thread in threads:
        thread.join()
    figures = {"cpu_ms": cpu_ms, "others_share": others_share}
    sys.stdout.write(json.dumps({**figures, "latencies_ms": window.latencies_ms, "building_ms": window.building_ms}))


if __name__ == "__main__":
    main()
