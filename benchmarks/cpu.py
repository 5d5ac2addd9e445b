"""Which core is whose, and what is used of them."""

from __future__ import annotations

import os
import time

import psutil

CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, OTHER_CORE = CORES[0], CORES[-1]


def cpu_ms(pid: int) -> float:
    """Give the CPU time of all threads of a process that ever were, to the nanosecond: its POSIX CPU clock."""
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e6


class ServerCore:
    """What a contender, and what everything else, took of the server's core since this was made."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._at = time.perf_counter()
        self._own_ms = cpu_ms(pid)
        self._all_ms = _busy_ms()

    def taken(self) -> tuple[float, float]:
        """Give the contender's milliseconds and the share of the core that was gone to others (ticks of 10 ms)."""
        own_ms = cpu_ms(self._pid) - self._own_ms
        elapsed_ms = (time.perf_counter() - self._at) * 1000
        return own_ms, max(0.0, (_busy_ms() - self._all_ms - own_ms) / elapsed_ms)


def _busy_ms() -> float:
    times = psutil.cpu_times(percpu=True)[SERVER_CORE]
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice) * 1000
