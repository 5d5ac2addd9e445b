"""Process group of one process for model-written code and of all processes that the code started."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from dataclasses import dataclass

WHOLE_GROUP = 4  # a flag of pidfd_send_signal, from Linux 6.9 on


@dataclass
class ProcessGroup:
    """A group by its first process. A `pidfd` cannot be mistaken for a later process with the same pid."""

    pid: int
    pidfd: int | None

    def is_alive(self) -> bool:
        """Closes the descriptor of a group that has ended."""
        try:
            self._signal(0)
        except ProcessLookupError:
            self.close()
            return False
        except PermissionError:
            pass
        return True

    def kill(self) -> None:
        """Kill all processes of the group and close it. Must be called only once."""
        with contextlib.suppress(ProcessLookupError):
            self._signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)

    def _signal(self, number: int) -> None:
        if sys.platform == "linux" and self.pidfd is not None:
            try:
                signal.pidfd_send_signal(self.pidfd, number, None, WHOLE_GROUP)
            except ProcessLookupError:
                raise
            except OSError:  # an older kernel
                pass
            else:
                return
        os.killpg(self.pid, number)
