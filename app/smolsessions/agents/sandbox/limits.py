"""Limits of a CodeAgent's code. The option `code_limits` of an agent overrides them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from smolagents.local_python_executor import ExecutionTimeoutError

MB = 1024 * 1024


@dataclass(frozen=True)
class CodeLimits:
    """Limits of a code block (`cpu_s`, `wall_s`: seconds without its tool calls) and of its process."""

    cpu_s: float = 30
    wall_s: float = 60
    memory_mb: float = 512
    output_mb: float = 64
    """Of one message: a tool call's arguments, an output, changed variables."""
    variables_mb: float = 32
    """Of the variables that are kept between turns."""
    processes: int = 0
    """Processes and threads that code may start. Only 0 is enforced for root without uids of its own."""
    open_files: int = 64

    @property
    def output_bytes(self) -> int:
        return int(self.output_mb * MB)

    @property
    def variables_bytes(self) -> int:
        return int(self.variables_mb * MB)


class Stopwatch:
    """Time of one block: the limits exclude its tool calls, the author's own timeout includes them."""

    def __init__(self, limits: CodeLimits, cpu_s: Callable[[], float]) -> None:
        """`cpu_s` returns the CPU time that the process has used so far."""
        self._limits = limits
        self._cpu_s = cpu_s
        self._cpu_before = cpu_s()
        self._since = self._began = time.monotonic()
        self._timeout_s: float | None = None

    def begin(self, timeout_s: float | None) -> None:
        self._began, self._timeout_s = time.monotonic(), timeout_s

    def check(self) -> None:
        """Raise smolagents' own error, with its sentence, once a limit is exceeded."""
        now, limits = time.monotonic(), self._limits
        if self._timeout_s is not None and now - self._began > self._timeout_s:
            raise _timeout(str(self._timeout_s))
        for limit_s, used_s in ((limits.wall_s, now - self._since), (limits.cpu_s, self._cpu_s() - self._cpu_before)):
            if used_s > limit_s:
                raise _timeout(f"{limit_s:g}")

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time of a tool call from the limits."""
        began = time.monotonic()
        yield
        self._since += time.monotonic() - began


def _timeout(limit_s: str) -> ExecutionTimeoutError:
    return ExecutionTimeoutError(f"Code execution exceeded the maximum execution time of {limit_s} seconds")
