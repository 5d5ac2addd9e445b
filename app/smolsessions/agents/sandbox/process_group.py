"""Process group of one process for model-written code: it, and all that its code started."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

OF_GROUP = 4  # a flag of pidfd_send_signal, from Linux 6.9 on


class ProcessGroup:
    """A group by its first process; `pidfd` stands for exactly this one, if the system has such descriptors."""

    def __init__(self, pid: int, pidfd: int | None) -> None:
        self.pid = pid
        self.pidfd = pidfd

    def is_alive(self) -> bool:
        """Tell whether a process of the group is there. Close the descriptor of a group that has ended."""
        try:
            self._signal(0)
        except ProcessLookupError:
            self.close()
            return False
        except PermissionError:
            return True
        return True

    def kill(self) -> None:
        """End all processes of the group; nothing if there are none any more. Call it once."""
        with contextlib.suppress(ProcessLookupError):
            self._signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)

    def _signal(self, number: int) -> None:
        if sys.platform == "linux" and self.pidfd is not None:
            try:
                signal.pidfd_send_signal(self.pidfd, number, None, OF_GROUP)
            except ProcessLookupError:
                raise
            except OSError:  # an older kernel
                pass
            else:
                return
        os.killpg(self.pid, number)
