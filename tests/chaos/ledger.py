"""Ledger of the runs of models and tools: a file outside the service, with one line for each begin and each end.

The folder holds `now`, which names the round (calm or wild) and its pace, because services outlive rounds.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FOLDER = "SMOLCHAOS_LEDGER"


@dataclass(frozen=True)
class Line:
    """One line. `at` is the machine's wall clock in seconds. `key` names the same call in every round."""

    at: float
    kind: str
    phase: str
    pid: int
    key: str
    given: str

    @property
    def turn(self) -> str:
        return self.key.partition("/")[0]


@contextmanager
def counted(kind: str, key: str, given: str = "") -> Iterator[None]:
    """Count a run of a model or a tool. An interrupted run has no end."""
    _note(kind, "begun", key, given)
    yield
    _note(kind, "done", key, given)


def wait(ms: float) -> None:
    time.sleep(seconds(ms))


def seconds(ms: float) -> float:
    _, pace = _now(_folder())
    return ms / 1000 * pace


def begin_round(folder: Path, name: str, pace: float) -> None:
    """Write the following lines to the file of a new round."""
    folder.mkdir(exist_ok=True)
    (folder / "now.new").write_text(f"{name} {pace}")
    (folder / "now.new").replace(folder / "now")


def read(folder: Path, name: str) -> list[Line]:
    if not (folder / name).exists():
        return []
    rows = (row.split("\t") for row in (folder / name).read_text().splitlines())
    return [Line(float(at), kind, phase, int(pid), key, given) for at, kind, phase, pid, key, given in rows]


def _note(kind: str, phase: str, key: str, given: str) -> None:
    folder = _folder()
    name, _ = _now(folder)
    line = f"{time.time():.6f}\t{kind}\t{phase}\t{os.getpid()}\t{key}\t{given}\n"
    file = os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())  # a single write, so that lines of many processes never mix
    finally:
        os.close(file)


def _folder() -> Path:
    return Path(os.environ[FOLDER])


def _now(folder: Path) -> tuple[str, float]:
    name, pace = (folder / "now").read_text().split()
    return name, float(pace)
