"""Shutdown of a process: requested once, then forced by a second request."""

from __future__ import annotations

import asyncio
import signal

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STREAMS_S = 5
FORCED_S = 5  # for a thread that ignores a stop, and for returning its lease
CLOSE_S = FORCED_S + STREAMS_S + 8  # longest time from the end of the drain to the end of the process


class Shutdown:
    """The requests so far, as events that can be awaited."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.forced = asyncio.Event()
        self.retired = asyncio.Event()
        self._was_signalled = False

    def request(self) -> None:
        self.requested.set()

    def retire(self) -> None:
        """End after the running turns, as other processes take over."""
        self.retired.set()

    def force(self) -> None:
        self.requested.set()
        self.forced.set()

    def on_signals(self) -> None:
        """Take the first signal as a request, and any later one as a forced shutdown."""

        def on_signal() -> None:
            # Only signals count. One to a whole process group must not force a process that its supervisor asked too.
            if self._was_signalled:
                self.force()
            self._was_signalled = True
            self.request()

        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, on_signal)
