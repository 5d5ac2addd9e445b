"""Waiting for a condition or the end of a program, and a file that holds a tool call until a test opens it."""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE_S = float(os.environ.get("TESTS_PATIENCE_S", "120"))
"""A loaded machine is slow, and a wait that succeeds costs no more. A mutation's tests wait less."""


@dataclass
class Gate:
    path: Path

    @property
    def script(self) -> dict[str, Any]:
        return {"call": [["wait_for", {"path": str(self.path)}]]}

    def reached(self) -> None:
        wait_until(lambda: self.path.with_name(f"{self.path.name}.started").exists())

    def open(self) -> None:
        self.path.touch()


def wait_until(
    condition: Callable[[], object], within_s: float = PATIENCE_S, what: str = "this did not come to pass"
) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def run_program(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, within a time limit. Return its status, output and errors."""
    options = {"capture_output": True, "text": True, "check": False, "timeout": PATIENCE_S} | options
    return subprocess.run(command, **options)  # noqa: PLW1510 - among the options
