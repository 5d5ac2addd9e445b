"""Lines that a person types while the program does something else."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MAX_LINE = 4096  # of a terminal that edits the line itself


@contextmanager
def typed_lines(take: Callable[[str], None]) -> Iterator[None]:
    """Call `take` with each line that is typed meanwhile, in a thread of its own. Does nothing without a terminal.

    Unfinished lines are left to the next `input`.
    """
    if not sys.stdin.isatty():
        yield
        return
    keyboard = sys.stdin.fileno()
    wakes, wake = os.pipe()

    def read() -> None:
        while select.select([keyboard, wakes], [], [])[0] == [keyboard]:
            line = os.read(keyboard, MAX_LINE)
            if not line:  # Ctrl-D
                return
            take(line.decode(errors="replace").rstrip("\r\n"))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield
    finally:
        os.write(wake, b".")
        reader.join()
        os.close(wake)
        os.close(wakes)
