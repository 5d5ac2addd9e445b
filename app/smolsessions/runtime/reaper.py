"""Before the service in a container: what killed processes leave behind comes to its first process, and ends there.

That one is this file run alone: a bare interpreter is a fraction of the service's memory, and holds no secret.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

FIRST = 1
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
GET_CHILD_SUBREAPER = 37  # of prctl
DIED_OF = 128  # and the signal's number: a shell's word for a status


def stand_before() -> None:
    """Where orphans come to this process, go on in a child of it; it passes signals on, reaps, and ends as that does.

    It does nothing else, for whoever reaps all that there is takes the ends of children from those that wait for them:
    asyncio, the embedded store's keeper, an agent's tool.
    """
    if not _is_given_orphans():
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until it is known whom to pass them on to
    child = os.fork()
    if child:
        libraries = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
        os.execve(sys.executable, [sys.executable, "-I", "-S", __file__, str(child)], libraries)  # noqa: S606 - our own
    os.setsid()  # a terminal's Ctrl-C comes to the first process alone, which passes it on once
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _is_given_orphans() -> bool:
    if os.getpid() == FIRST:
        return True
    if sys.platform != "linux":
        return False
    import ctypes  # noqa: PLC0415 - the first process needs none of it

    answer = ctypes.c_int(0)
    return ctypes.CDLL(None).prctl(GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0) == 0 and bool(answer.value)


def _reap_until_end_of(child: int) -> int:
    """Reap, and pass signals on, until the child is reaped; give its status."""

    def pass_on(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in SIGNALS:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            return DIED_OF - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(_reap_until_end_of(int(sys.argv[1])))
