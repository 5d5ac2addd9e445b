"""Clean-ups of executors: slow calls of foreign code, in threads that the end of the process waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_running: set[threading.Thread] = set()


def in_background(clean_up: Callable[[], object]) -> None:
    """Run a clean-up in a thread of its own."""

    def run() -> None:
        try:
            clean_up()
        finally:
            _running.discard(threading.current_thread())

    thread = threading.Thread(target=run, name="cleanup", daemon=True)
    _running.add(thread)
    thread.start()


def wait_for_clean_ups(limit_s: float) -> None:
    """Wait until all clean-ups have ended, within a limit."""
    end = time.monotonic() + limit_s
    for thread in list(_running):
        thread.join(max(0.0, end - time.monotonic()))
