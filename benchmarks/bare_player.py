"""The bare contender of tool calls: a new agent and its `agent.run` in this process; prints its figures as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time

from benchmarks.players import Order, done, make

WARM_UP = 3


def main() -> None:
    """Play the order as often as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", required=True)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--times", type=int, required=True)
    options = parser.parse_args()
    order = Order(options.calls, options.kind)
    for _ in range(WARM_UP):
        _play(order)
    before = time.process_time_ns()
    wall_ms = [_play(order) for _ in range(options.times)]
    cpu_ms = (time.process_time_ns() - before) / 1e6
    sys.stdout.write(json.dumps({"wall_ms": wall_ms, "cpu_ms": cpu_ms}))


def _play(order: Order) -> float:
    """Give the milliseconds."""
    start = time.perf_counter()
    reply = str(make(order.kind).run(str(order)))
    took_ms = (time.perf_counter() - start) * 1000
    last = done(reply)
    if not last or last.number != order.calls:
        raise RuntimeError(f"the agent replied {reply!r}")
    return took_ms


if __name__ == "__main__":
    main()
