"""Processes of the service's roles on one outside store."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

import psutil

from benchmarks.agents import WAITING
from benchmarks.contenders import Server, running
from benchmarks.cpu import CORES
from benchmarks.outside import Outside

NONE: Mapping[str, str] = MappingProxyType({})


@contextmanager
def role(
    name: str,
    store: Outside,
    more: Mapping[str, str] = NONE,
    *,
    processes: int = 1,
    cores: Sequence[int] = tuple(CORES),
) -> Iterator[Server]:
    """Run `smolsessions NAME` until the block ends. Yield it once ready. `more` can replace its waiting agents."""
    command = [sys.executable, "-m", "smolsessions", name]
    if processes > 1:
        command += ["--processes", str(processes)]
    with running(command, cores, {**WAITING, **store.settings, "PORT": "0", **more}) as found:
        yield found


def family(pid: int) -> list[int]:
    """Return the pids of a process and of all its descendants."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
