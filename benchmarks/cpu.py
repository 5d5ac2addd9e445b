"""Assignment of cores, and measurement of their use."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import psutil

CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, OTHER_CORE = CORES[0], CORES[-1]


def cpu_ms(pid: int) -> float:
    """Return the CPU time of all past and present threads of a process, to the nanosecond, from its POSIX CPU clock."""
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e6


@contextmanager
def on_all_cores() -> Iterator[None]:
    """Allow all cores to this process and its new children until the block ends."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CORES)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Meter:
    """Use of these cores by named groups of processes since the meter was made."""

    def __init__(self, groups: Mapping[str, Sequence[int]], cores: Sequence[int] = CORES) -> None:
        self._groups, self._cores = groups, cores
        self._at = time.perf_counter()
        self._before = self._now()
        self._all_ms = _busy_ms(cores)

    def shares(self) -> dict[str, float]:
        """Return CPU time divided by elapsed time, for each group and for `others` on the cores. 1 is one core."""
        elapsed_ms = (time.perf_counter() - self._at) * 1000
        spent = {name: ms - self._before[name] for name, ms in self._now().items()}
        others = max(0.0, _busy_ms(self._cores) - self._all_ms - sum(spent.values()))
        return {name: ms / elapsed_ms for name, ms in {**spent, "others": others}.items()}

    def _now(self) -> dict[str, float]:
        return {name: sum(map(cpu_ms, pids)) for name, pids in self._groups.items()}


def server_meter(pid: int) -> Meter:
    """Return a meter of the server's core, used by this `server` and by others."""
    return Meter({"server": [pid]}, [SERVER_CORE])


def _busy_ms(cores: Sequence[int]) -> float:
    found = psutil.cpu_times(percpu=True)
    times = [found[core] for core in cores]
    return float(sum(sum(each) - each.idle - each.iowait - each.guest - each.guest_nice for each in times)) * 1000
