"""The server that the processes for model-written code are forked from. Run by `nursery.py`, with nothing to hide."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys

from app.agents.code import child, guard
from app.agents.code.confinement import Walls

OPEN_SENTENCE = (
    "this system gives model-written code no namespaces of its own: the network, and what the service may read and "
    "write, are open to code that gets out of smolagents' interpreter; docs/security.md says what to do"
)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    order = json.loads(sys.argv[2])
    for name in order["preload"]:
        # What cannot be imported here is an error of the code that imports it, as in any process.
        with contextlib.suppress(BaseException):
            importlib.import_module(name)
    guard.install()
    walls = Walls(order["hidden"])
    if not walls.apart:
        sys.stderr.write(f"smolsessions: {OPEN_SENTENCE}\n")
    os.chdir("/")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    gc.collect()
    gc.freeze()
    try:
        _serve(control, walls)
    finally:
        os.killpg(0, signal.SIGKILL)  # the service is gone: so is all that we forked, and we


def _serve(control: socket.socket, walls: Walls) -> None:
    while True:
        request, fds, _, _ = socket.recv_fds(control, 64, 1)
        if not request:
            return
        if fds:
            _fork(control, fds[0], walls)
            os.close(fds[0])
        else:
            control.send(b"too many open files")


def _fork(control: socket.socket, fd: int, walls: Walls) -> None:
    try:
        pid = walls.fork()
    except OSError as error:
        control.send(str(error).encode()[:60])
        return
    if pid == 0:
        status = 1
        try:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _be_silent()
            child.serve(socket.socket(fileno=fd), walls)
            status = 0
        finally:
            os._exit(status)
    if not hasattr(os, "pidfd_open"):
        control.send(b"%d" % pid)
        return
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:  # it has died already, or there are too many files
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        control.send(str(error).encode()[:60])
        return
    socket.send_fds(control, [b"%d" % pid], [pidfd])
    os.close(pidfd)


def _be_silent() -> None:
    """Keep model-written code from writing the service's log."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    os.close(nowhere)


if __name__ == "__main__":
    main()
