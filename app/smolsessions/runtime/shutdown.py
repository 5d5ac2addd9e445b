"""How a process is told to end: once, and then once more, in a hurry."""

from __future__ import annotations

import asyncio

from smolsessions.runtime.reaper import SIGNALS


class Shutdown:
    """What was asked for so far."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        self._was_signalled = False

    def ask(self) -> None:
        self.asked.set()

    def hurry(self) -> None:
        self.asked.set()
        self.hurried.set()

    def on_signals(self) -> None:
        """Take the first signal as a request and any later one as the wish to hurry."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        # Only signals count: one that goes to all processes of a group must not hurry those that were told by another.
        if self._was_signalled:
            self.hurry()
        self._was_signalled = True
        self.ask()
