"""Stopwatch that leaves out the slowness of a loaded machine, so that an upper time limit holds on any machine."""

import subprocess
import sys
from types import TracebackType
from typing import Self

import psutil

SPIN = "import os\nparent = os.getppid()\nprint(flush=True)\nwhile os.getppid() == parent: pass"


class Stopwatch:
    """`with Stopwatch() as watch:` measures `watch.s` up to its end. `restart` begins anew.

    It counts the processor time of a process that never stops computing. On an idle machine that is all the time
    that passes. On a loaded one it is the share of time that each process gets, the tested ones too.
    """

    def __enter__(self) -> Self:
        self._spinning = subprocess.Popen([sys.executable, "-I", "-S", "-c", SPIN], stdout=subprocess.PIPE)
        assert self._spinning.stdout
        assert self._spinning.stdout.readline()
        self._process = psutil.Process(self._spinning.pid)
        self._ended_at: float | None = None
        self.restart()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended_at = self._now()
        self._spinning.kill()
        self._spinning.communicate()

    def restart(self) -> None:
        self._began_at = self._now()

    @property
    def s(self) -> float:
        return (self._now() if self._ended_at is None else self._ended_at) - self._began_at

    def _now(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)
