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
from typing import TYPE_CHECKING, cast, get_args

from smolsessions.agents.sandbox.confinement.levels import CONFINED, Level
from smolsessions.agents.sandbox.process_group import ProcessGroup

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


_MEANS: dict[Level, str] = {
    "namespaces": "namespaces",
    "landlock": "Landlock",
    "uid": "another uid alone: it may read what every user may",
    "none": "no means of this system: it may read what the service's user may, keys and stored conversations among it",
}


class RefusedError(OSError):
    """The server is well, and could not fork now."""


class ForkClient:
    """Forks processes on demand, for any thread. Its server starts with the first one, and again when it has died."""

    def __init__(
        self,
        preload: Iterable[str],
        hidden: Iterable[Path] = (),
        folders: Iterable[Path] = (),
        *,
        must_confine: bool = False,
    ) -> None:
        """The server starts with `start` or the first `fork`.

        Args:
            preload: modules that are imported once, for all.
            hidden: files and folders out of the code's sight.
            folders: which it may read besides Python, its packages and the agents' folders.
            must_confine: refuse to fork if neither namespaces nor Landlock confine what is forked.
        """
        paths = {"hidden": hidden, "folders": folders}
        self._order = json.dumps(
            {"preload": list(preload)} | {name: [str(path.absolute()) for path in paths[name]] for name in paths}
        )
        self._must_confine = must_confine
        self._level: Level | None = None
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Start the server; it comes up while others go on, and its level of confinement is logged."""
        with self._lock:
            self._start()
        threading.Thread(target=self.level, name="code-confinement", daemon=True).start()

    def level(self) -> Level | None:
        """Return the level of confinement, once the server is up; None while there is no server."""
        if self._level is None:
            with self._lock, contextlib.suppress(OSError):
                if self._server:  # else it was closed, or a fork that failed has ended it
                    self._greet()
        return self._level

    def fork(self) -> ChildProcess:
        """Give a fresh process. Raises `OSError` where there can be none."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                return ChildProcess(ours, self._fork(theirs))
            except RefusedError:
                ours.close()
                raise
            except OSError:
                log.warning(
                    "the server of code processes is gone; starting another", extra={"action": "fork_server.lost"}
                )
                self._stop()
                try:
                    return ChildProcess(ours, self._fork(theirs))
                except OSError:
                    ours.close()
                    raise

    def close(self) -> None:
        """End the server, and with it every process."""
        if control := self._control:
            with contextlib.suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)  # frees the lock where a thread waits for the server to be up
        with self._lock:
            self._stop()

    def _fork(self, theirs: socket.socket) -> ProcessGroup:
        self._greet()
        assert self._control
        socket.send_fds(self._control, [b"fork"], [theirs.fileno()])
        answer, fds, _, _ = socket.recv_fds(self._control, 64, 1)
        if not answer:
            raise OSError("the server of code processes ended")
        if not answer.isdigit():
            raise RefusedError(f"no process could be forked: {answer.decode(errors='replace')}")
        return ProcessGroup(int(answer), fds[0] if fds else None)

    def _greet(self) -> None:
        """Start the server if there is none, and wait until it tells its level."""
        self._start()
        if self._level is not None:
            return
        assert self._control
        told = self._control.recv(64).decode()
        if told not in get_args(Level):
            raise OSError("the server of code processes ended")
        self._level = cast("Level", told)
        _say(self._level)
        if self._must_confine and self._level not in CONFINED:
            self._stop()
            raise RefusedError("no process for code may be forked without confinement")

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
                [sys.executable, "-m", "smolsessions.agents.sandbox.fork_server", str(theirs.fileno()), self._order],
                env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C is for the service, which ends it
            )

    def _stop(self) -> None:
        self._level = None
        if self._control:
            self._control.close()  # its end: the server kills what it forked, and goes
            self._control = None
        if self._server:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(1)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)  # with it end the processes that it forked
            self._server.wait()
            self._server = None


def _say(level: Level) -> None:
    grade = logging.INFO if level in CONFINED else logging.WARNING
    mend = "" if level in CONFINED else "; docs/security.md says what to do"
    log.log(grade, "model-written code is confined by %s%s", _MEANS[level], mend, extra={"action": "code.confined"})


class ChildProcess:
    """One process, and the socket to it."""

    def __init__(self, sock: socket.socket, group: ProcessGroup) -> None:
        self.sock = sock
        self._group = group
        self._alive = True

    def cpu_s(self) -> float:
        """Tell how much CPU time it has used; 0 where the system does not say."""
        try:
            fields = Path(f"/proc/{self._group.pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """End it and what it started, whatever they do. Safe to call twice."""
        if not self._alive:
            return
        self._alive = False
        self.sock.close()
        self._group.kill()
