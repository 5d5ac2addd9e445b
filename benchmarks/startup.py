"""Startup time: from `smolsessions serve` on an empty data folder to the first answered turn."""

from __future__ import annotations

import http.client
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.contenders import ROOT, running
from benchmarks.cpu import CORES

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
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            connection.request("POST", "/turn", b'{"message":"What is 12 * 7?"}', {"Content-Type": "application/json"})
            answer = connection.getresponse()
            body = answer.read()
            took_s = time.perf_counter() - begin
            connection.close()
    if answer.status != 200 or b'"finished"' not in body:
        raise RuntimeError(f"the first turn was answered with {answer.status} {body!r}")
    return took_s
