"""Waiting for a condition, and a file that holds a tool call until a test opens it."""

import os
import time
from collections.abc import Callable
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
