"""Startup time: from `smolsessions serve` on an empty data folder to the first answered turn."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.contenders import ROOT, running
from benchmarks.cpu import CORES
from benchmarks.watching import Caller

COMMAND = [str(Path(sys.executable).with_name("smolsessions")), "serve"]


def measure_startup(times: int) -> list[float]:
    """Return the seconds of each start, with embedded store, demo agent, all cores and Python's compiled files."""
    return [_start() for _ in range(times)]


def _start() -> float:
    with TemporaryDirectory(prefix="smolbench-") as folder:
        command = COMMAND if Path(COMMAND[0]).exists() else [sys.executable, "-m", "smolsessions", "serve"]
        cwd = Path(folder) if Path(COMMAND[0]).exists() else ROOT
        begin = time.perf_counter()
        with running(command, CORES, {"PORT": "0", "DATA_DIR": f"{folder}/data"}, cwd) as server:
            with closing(Caller(server)) as caller:
                turn = caller.ask("POST", "/turn", {"message": "What is 12 * 7?"})
            took_s = time.perf_counter() - begin
    if turn["status"] != "finished":
        raise RuntimeError(f"the first turn is {turn}")
    return took_s
