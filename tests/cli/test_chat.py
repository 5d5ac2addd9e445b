"""Command `chat` in a pseudo-terminal, and through pipes."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from tests.support.service import ROOT, Service
from tests.support.turns import ECHO, ENDLESS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOON_S = 30.0
CTRL_C, CTRL_D = b"\x03", b"\x04"

LED_BY_TERMINAL = """import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Terminal:
    """A person at a terminal."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor = descriptor
        self.process = process
        self.seen = ""

    def type(self, keys: bytes) -> None:
        os.write(self._descriptor, keys)

    def wait_for(self, pattern: str) -> str:
        """Return the match of a pattern in the output so far, which is then forgotten up to its end."""
        deadline = time.monotonic() + SOON_S
        while not (match := re.search(pattern, self.seen)):
            assert time.monotonic() < deadline, self.seen
            if select.select([self._descriptor], [], [], 0.1)[0]:
                with suppress(OSError):  # the end of the program
                    self.seen += os.read(self._descriptor, 65536).decode()
        self.seen = self.seen[match.end() :]
        return match[match.lastindex or 0]


@contextmanager
def chatting(folder: Path, *arguments: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SMOLSESSIONS_")}
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            LED_BY_TERMINAL,
            "-m",
            "smolsessions",
            "chat",
            *arguments,
        ],
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment | {"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "200"},
    )
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        process.terminate()
        process.wait(SOON_S)
        os.close(ours)


@pytest.mark.timeout(150)
def test_ctrl_c_stops_the_turn_and_the_chat_goes_on_and_is_resumed(service: Service, tmp_path: Path) -> None:
    url = str(service.client.base_url)
    with chatting(tmp_path, "streamed", "--url", url) as terminal:
        terminal.wait_for("agents: .*streamed")
        terminal.wait_for("\n> ")
        terminal.type(json.dumps([ENDLESS]).encode() + b"\n")
        terminal.wait_for("on and on on and on")
        terminal.type(CTRL_C)
        terminal.wait_for("stopped; its finished steps are kept")
        terminal.wait_for("> ")
        terminal.type(json.dumps([ECHO, {"say": "still here"}]).encode() + b"\n")
        terminal.wait_for("→ streamed: echo")
        terminal.wait_for("✓ ")
        terminal.wait_for("still here")
        terminal.wait_for("> ")
        terminal.type(CTRL_D)
        conversation = terminal.wait_for(r"--conversation (\w+)")
        assert terminal.process.wait(SOON_S) == 0
    statuses = [turn["status"] for turn in service.get(f"/conversations/{conversation}/turns")["items"]]
    assert statuses == ["cancelled", "finished"]
    with chatting(tmp_path, "--conversation", conversation, "--url", url) as terminal:
        terminal.wait_for("stopped; its finished steps are kept")
        terminal.wait_for("still here")


@pytest.mark.timeout(150)
def test_a_chat_starts_a_service_which_survives_ctrl_c_and_ends_with_it(tmp_path: Path) -> None:
    with chatting(tmp_path, "tests.support.streaming:make_streamed", "--no-demo-agents") as terminal:
        terminal.wait_for(r"agents: streamed \(default\)")
        terminal.type(json.dumps([ENDLESS]).encode() + b"\n")
        terminal.wait_for("on and on on and on")
        terminal.type(CTRL_C)
        terminal.wait_for("stopped; its finished steps are kept")
        terminal.wait_for("> ")
        terminal.type(json.dumps([{"say": "after it"}]).encode() + b"\n")
        terminal.wait_for("after it")
        terminal.process.terminate()
        assert terminal.process.wait(SOON_S) == 128 + 15
    with Service(tmp_path, {"DATA_DIR": str(tmp_path / "smolsessions-data")}, forked=False) as later:
        assert later.get("/conversations")["items"], "nothing holds the data folder any more"


def test_a_pipe_gets_the_answers_without_colour(service: Service, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "smolsessions", "chat", "scripted", "--url", str(service.client.base_url)],
        input='[{"say": "one"}]\n[{"say": "two"}]\n',
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == 0, ended.stderr
    assert re.search("\none\n(.*\n)*two\n", ended.stdout), ended.stdout
    assert "\x1b" not in ended.stdout + ended.stderr
