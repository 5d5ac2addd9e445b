"""Where the processes for model-written code come from: a small server that has all loaded, and forks."""

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
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)

FORK_TIMEOUT_S = 30.0  # the first one waits for the server to be up
_KEPT = (
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONHOME",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "PYTHONDONTWRITEBYTECODE",
    "COVERAGE_PROCESS_START",
)


_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


class RefusedError(OSError):
    """The server is well, and could not fork now."""


class Nursery:
    """Forks processes on demand, for any thread. Its server starts with the first one, and again when it has died."""

    def __init__(self, preload: Iterable[str], hidden: Iterable[Path] = ()) -> None:
        """`preload` names modules that are imported once, for all; `hidden` what must be out of the code's sight."""
        self._order = json.dumps({"preload": list(preload), "hidden": [str(path.absolute()) for path in hidden]})
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Start the server; it comes up while others go on."""
        with self._lock:
            self._start()

    def fork(self) -> Child:
        """Give a fresh process. Raises `OSError` where there can be none."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                return Child(ours, *self._fork(theirs))
            except RefusedError:
                ours.close()
                raise
            except OSError:
                log.warning("the server of code processes is gone; starting another", extra={"action": "nursery.lost"})
                self._stop()
                try:
                    return Child(ours, *self._fork(theirs))
                except OSError:
                    ours.close()
                    raise

    def close(self) -> None:
        """End the server, and with it every process."""
        with self._lock:
            self._stop()

    def _fork(self, theirs: socket.socket) -> tuple[int, int | None]:
        self._start()
        assert self._control
        socket.send_fds(self._control, [b"fork"], [theirs.fileno()])
        answer, fds, _, _ = socket.recv_fds(self._control, 64, 1)
        if not answer:
            raise OSError("the server of code processes ended")
        if not answer.isdigit():
            raise RefusedError(f"no process could be forked: {answer.decode(errors='replace')}")
        return int(answer), fds[0] if fds else None

    def _start(self) -> None:
        if self._server and self._server.poll() is None:
            return
        self._stop()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(FORK_TIMEOUT_S)
        # Nothing of the service's secrets: neither its environment nor its memory.
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        with theirs:
            environment |= dict.fromkeys(_ONE_THREAD, "1")  # theirs would not be there after a fork
            environment["PYTHONHASHSEED"] = "0"  # so that a set has the same order where a block runs again
            self._server = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "app.agents.code.zygote", str(theirs.fileno()), self._order],
                env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C is for the service, which ends it
            )

    def _stop(self) -> None:
        if self._control:
            self._control.close()  # its end: the server kills what it forked, and goes
            self._control = None
        if self._server:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(1)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)  # it, and all that it forked
            self._server.wait()
            self._server = None


class Child:
    """One process, and the socket to it. `pidfd` stands for exactly this process, where the system has such."""

    def __init__(self, sock: socket.socket, pid: int, pidfd: int | None) -> None:
        self.sock = sock
        self._pid = pid
        self._pidfd = pidfd
        self._alive = True

    def cpu_s(self) -> float:
        """Tell how much CPU time it has used; 0 where the system does not say."""
        try:
            fields = Path(f"/proc/{self._pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """End it, whatever it does. Safe to call twice."""
        if not self._alive:
            return
        self._alive = False
        self.sock.close()
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd is None:
                os.kill(self._pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        if self._pidfd is not None:
            os.close(self._pidfd)
