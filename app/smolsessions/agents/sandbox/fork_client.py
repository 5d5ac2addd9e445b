"""Client of the fork server, which has all modules loaded and forks the processes for model-written code."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from pathlib import Path
from typing import cast, get_args

from smolsessions.agents.sandbox import code_group
from smolsessions.agents.sandbox.confinement.levels import CONFINED, Level
from smolsessions.agents.sandbox.limits import MB
from smolsessions.agents.sandbox.memory_budget import MemoryBudget
from smolsessions.agents.sandbox.process_group import ProcessGroup

log = logging.getLogger(__name__)

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SPARES = 2  # while one is prepared, the next turn takes the other
FORK_TIMEOUT_S = 30.0  # the first fork waits until the server is up
_INHERITED = (
    *("PATH", "LD_LIBRARY_PATH", "PYTHONHOME", "HOME", "LANG", "LC_ALL", "TZ"),
    *("PYTHONDONTWRITEBYTECODE", "COVERAGE_PROCESS_START"),
)
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_MEANS: dict[Level, str] = {
    "namespaces": "namespaces",
    "landlock": "Landlock",
    "uid": "another uid alone: it may read what every user may",
    "none": "no means of this system: it may read what the service's user may, keys and stored conversations among it",
}


def bare_environment() -> dict[str, str]:
    """Return the environment of an own program that must not know a secret of the service."""
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    environment |= dict.fromkeys(_ONE_THREAD, "1")  # other threads would not survive a fork
    return environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class RefusedError(OSError):
    """The server is running but could not fork."""


class ForkClient:
    """Forks processes on demand, from any thread. Starts the server again if it has died."""

    def __init__(
        self,
        preload: Iterable[str],
        hidden: Iterable[Path] = (),
        folders: Iterable[Path] = (),
        *,
        must_confine: bool = False,
        memory: MemoryBudget | None = None,
    ) -> None:
        """The server starts with `start` or the first `fork`, and imports the modules `preload` once for all processes.

        Code must not see `hidden`, and may read `folders` besides Python, its packages and the agents' folders. If it
        `must_confine`, nothing is forked without namespaces or Landlock. `memory` bounds all processes together.
        """
        self.memory = memory or MemoryBudget()
        paths = {"hidden": hidden, "folders": folders}
        self._arguments = json.dumps(
            {"preload": list(preload)} | {name: [str(path.absolute()) for path in paths[name]] for name in paths}
        )
        self._must_confine = must_confine
        self._level: Level | None = None
        self._lock = threading.Lock()
        self._spares: list[ChildProcess] = []
        self._spare_maker = ThreadPoolExecutor(1, "code-spares")
        self._server: subprocess.Popen[bytes] | None = None
        self._group: Path | None = None
        self._control: socket.socket | None = None
        self._is_closed = False

    def start(self) -> None:
        """Start the server and return at once. A thread logs its level of confinement later."""
        with self._lock:
            self._start()
        threading.Thread(target=self.level, name="code-confinement", daemon=True).start()

    def level(self) -> Level | None:
        """Wait until the server is up and return its level of confinement, or None without a server."""
        if self._level is None:
            with self._lock, contextlib.suppress(OSError):
                if self._server:  # `close` or a failed fork may have ended it
                    self._await_level()
        return self._level

    def fork(self) -> ChildProcess:
        """Takes the oldest spare process first. Raises `OSError` if none can be forked."""
        with self._lock:
            while self._spares:
                spare = self._spares.pop(0)
                if spare.is_waiting() and self._is_running():  # the processes die with their server
                    return spare
                spare.kill()
            return self._fork_anew()

    @property
    def spares(self) -> int:
        return len(self._spares)

    def keep_spares(self) -> None:
        """Fork processes in a thread, for turns to come. Their first blocks then start 4 ms earlier."""

        def fork() -> None:
            with self._lock, contextlib.suppress(OSError):
                while self.spares < SPARES:
                    self._spares.append(self._fork_anew())

        if self.spares < SPARES and not self._is_closed:
            with contextlib.suppress(RuntimeError):  # closed in this moment
                self._spare_maker.submit(fork)  # to start a thread each time would hold up the turn for 1.5 ms

    def _fork_anew(self) -> ChildProcess:
        try:
            return self._fork()
        except OSError as error:
            if self._is_closed or isinstance(error, RefusedError):
                raise
            log.warning("the fork server has ended; starting another", extra={"action": "fork_server.lost"})
            self._stop()
            return self._fork()

    def close(self) -> None:
        """End the server and with it every process. No other is started."""
        self._is_closed = True
        self._spare_maker.shutdown(wait=False, cancel_futures=True)
        if control := self._control:
            with contextlib.suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)  # ends the wait of a thread that holds the lock
        with self._lock:
            self._stop()

    def _fork(self) -> ChildProcess:
        self._await_level()
        assert self._control
        ours, theirs = socket.socketpair()  # a new one each time: a process of a killed server may still read from it
        try:
            with theirs:
                socket.send_fds(self._control, [b"fork"], [theirs.fileno()])
                reply, fds, _, _ = socket.recv_fds(self._control, 64, 1)
        except OSError:
            ours.close()
            raise
        if reply.isdigit():
            return ChildProcess(ours, ProcessGroup(int(reply), fds[0] if fds else None))
        ours.close()
        if reply:
            raise RefusedError(f"no process could be forked: {reply.decode(errors='replace')}")
        raise OSError("the fork server has ended")

    def _await_level(self) -> None:
        """Start the server if needed and wait for its first message, the level of confinement."""
        self._start()
        if self._level is not None:
            return
        assert self._control
        level = self._control.recv(64).decode()
        if level not in get_args(Level):
            raise OSError("the fork server has ended")
        self._level = cast("Level", level)
        if self._group:
            code_group.bound(self._group, self.memory.total_mb)
        is_safe = self._level in CONFINED
        grade, advice = (logging.INFO, "") if is_safe else (logging.WARNING, "; docs/security.md says what to do")
        means = _MEANS[self._level]
        log.log(grade, "model-written code is confined by %s%s", means, advice, extra={"action": "code.confined"})
        if self._must_confine and not is_safe:
            self._stop()
            raise RefusedError("no process for code may be forked without confinement")

    def _start(self) -> None:
        if self._is_closed:
            raise RefusedError("the service is ending")
        if self._is_running():
            return
        self._stop()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(FORK_TIMEOUT_S)
        environment = bare_environment() | {"PYTHONHASHSEED": "0"}  # a set keeps its order when a block runs again
        module = "smolsessions.agents.sandbox.fork_server"
        with theirs:
            self._server = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", module, str(theirs.fileno()), self._arguments],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches only the service, which ends the server
            )
        self._group = code_group.enclose(self._server.pid)

    def _is_running(self) -> bool:
        return self._server is not None and self._server.poll() is None

    def _stop(self) -> None:
        while self._spares:
            self._spares.pop().kill()
        if self._control:
            self._control.close()  # the server then kills its processes and exits
            self._control = None
        if self._server:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(1 if self._level else 0)  # one that is starting does not listen yet
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)  # its processes die with it
            self._server.wait()
            self._server = None
        self._level = None


class ChildProcess:
    def __init__(self, sock: socket.socket, group: ProcessGroup) -> None:
        self.sock = sock
        self._group = group
        self._alive = True
        self._initial_mb = self._resident_mb()

    def is_waiting(self) -> bool:
        """Return whether it runs. It has got and sent no message."""
        try:
            return bool(self.sock.recv(1, socket.MSG_DONTWAIT))
        except OSError as error:
            return isinstance(error, BlockingIOError)

    def cpu_s(self) -> float:
        """Return the CPU time used so far by all threads, 0 if the system does not tell."""
        with contextlib.suppress(OSError):
            return time.clock_gettime(~self._group.pid << 3 | 2)  # Linux's number of another process's clock
        return 0.0

    def grown_mb(self) -> int:
        """Return the memory that it holds beyond its beginning, 0 if the system does not tell."""
        return max(0, self._resident_mb() - self._initial_mb)

    def _resident_mb(self) -> int:
        with contextlib.suppress(OSError):
            statm = os.open(f"/proc/{self._group.pid}/statm", os.O_RDONLY)
            try:
                return ceil(int(os.read(statm, 200).split()[1]) * PAGE_BYTES / MB)
            finally:
                os.close(statm)
        return 0

    def kill(self) -> None:
        """Kill the process and all that it started. May be called twice."""
        if self._alive:
            self._alive = False
            self.sock.close()
            self._group.kill()
