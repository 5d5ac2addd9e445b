"""Fork server for the processes that run model-written code. `fork_client.py` starts it without any secrets."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
from pathlib import Path

from smolsessions.agents.sandbox import child, guard
from smolsessions.agents.sandbox.clock import CLOCKS
from smolsessions.agents.sandbox.confinement.levels import Confinement
from smolsessions.agents.sandbox.process_group import ProcessGroup

WARM_UPS = 10  # they save 2 ms of a turn's first block


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    arguments = json.loads(sys.argv[2])
    CLOCKS.install()  # before a module takes a function by name
    for name in arguments["preload"]:
        with contextlib.suppress(BaseException):  # code that imports the module gets the error
            importlib.import_module(name)
    with contextlib.suppress(OSError):  # if memory runs out, the kernel ends code before the service
        Path("/proc/self/oom_score_adj").write_text("1000")
    guard.install()
    child.warm_up(WARM_UPS)
    confinement = Confinement(map(Path, arguments["hidden"]), map(Path, arguments["folders"]))
    os.chdir("/")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the processes
    gc.freeze()
    with contextlib.suppress(BrokenPipeError):  # the service has ended
        control.send(confinement.level.encode())
        _Server(control, confinement).serve()


class _Server:
    """Forks on request until the service ends, and then kills all that it forked."""

    def __init__(self, control: socket.socket, confinement: Confinement) -> None:
        self._control = control
        self._confinement = confinement
        self._forked: list[ProcessGroup] = []

    def serve(self) -> None:
        try:
            while True:
                request, fds, _, _ = socket.recv_fds(self._control, 64, 1)
                if not request:
                    return
                if fds:
                    self._fork(fds[0])
                    os.close(fds[0])
                else:
                    self._control.send(b"too many open files")
        except ConnectionError:  # the service was killed
            pass
        finally:
            for group in self._forked:
                group.kill()

    def _fork(self, fd: int) -> None:
        self._forked = [group for group in self._forked if group.is_alive()]
        pid = None
        try:
            pid = self._confinement.fork()
            if pid == 0:
                status = 1
                try:
                    os.setsid()  # its own group: a signal to the group reaches no other process
                    self._control.close()
                    for group in self._forked:
                        group.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    null = os.open(os.devnull, os.O_RDWR)  # model-written code must not write to the service's log
                    for number in range(3):
                        os.dup2(null, number)
                    os.close(null)
                    child.serve(socket.socket(fileno=fd), self._confinement)
                    status = 0
                finally:
                    os._exit(status)
            group = ProcessGroup(pid, os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None)
        except OSError as error:
            if pid:  # the process has died already, or too many files are open
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._control.send(str(error).encode()[:60])
            return
        self._forked.append(group)
        socket.send_fds(self._control, [b"%d" % pid], [] if group.pidfd is None else [group.pidfd])


if __name__ == "__main__":
    main()
