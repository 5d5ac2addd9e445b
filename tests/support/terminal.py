"""The command line in a pseudo-terminal, as a person has it."""

import codecs
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.preloaded import PYTHONPATH
from tests.support.waiting import PATIENCE_S

AGAIN_S = 5
CTRL_C, CTRL_D = b"\x03", b"\x04"

INTERRUPTIBLE = """import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.SIG_DFL)  # a job in the background inherits another
os.setsid()
if os.isatty(0):
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Program that becomes its arguments, led by the terminal if it has one."""


class Terminal:
    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor = descriptor
        self.process = process
        self.seen = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end within a character

    def type(self, keys: bytes) -> None:
        os.write(self._descriptor, keys)

    def reply(self, pattern: str, keys: str | bytes) -> None:
        self.wait_for(pattern)
        self.type(keys if isinstance(keys, bytes) else keys.encode() + b"\n")

    def wait_for(self, pattern: str, again: bytes = b"") -> str:
        """Return the match of a pattern in the output so far, which is then forgotten up to its end.

        `again` is typed every few seconds until then: Python's `input` loses a Ctrl-C that comes just before it waits.
        """
        began = time.monotonic()
        typed_at = began
        while not (match := re.search(pattern, self.seen)):
            assert time.monotonic() < began + PATIENCE_S, self.seen
            if again and time.monotonic() > typed_at + AGAIN_S:
                typed_at = time.monotonic()
                self.type(again)
            if select.select([self._descriptor], [], [], 0.1)[0]:
                with suppress(OSError):  # the end of the program
                    self.seen += self._decoder.decode(os.read(self._descriptor, 65536))
        self.seen = self.seen[match.end() :]
        return match[match.lastindex or 0]


@contextmanager
def terminal_of(folder: Path, *program: str, **environment: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SMOLSESSIONS_")}
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *program],
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=inherited | {"PYTHONPATH": PYTHONPATH, "TERM": "xterm", "COLUMNS": "200"} | environment,
    )
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        process.terminate()
        os.close(ours)  # an interactive shell ends with its terminal alone
        process.wait(PATIENCE_S)


def command(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "smolsessions", *arguments)
