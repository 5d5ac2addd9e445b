"""The example of memory policies, run as a user runs it."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.service import ROOT

TIMEOUT_S = 50
POLICIES = ["no_pruning", "keep_last_n_steps", "prune_old_observations", "token_budget", "summarize", "chain"]
ROW = re.compile(r"^(\w+) +(\d+) +(\d+) +([\d,]+) +([\d,]+) +(\d+) +[\d.]+$", re.MULTILINE)


@pytest.fixture
def short() -> Iterator[Path]:
    """Yield a folder with a short name, because the path of the store's socket in it has a limit."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def demo(folder: Path, *options: str) -> tuple[int, str, str]:
    """Run the example to its end, in a folder of its own that also holds the service's data."""
    command = [sys.executable, str(ROOT / "examples" / "memory_demo.py"), *options]
    environment = {**os.environ, "TMPDIR": str(folder), "SMOLSESSIONS_PORT": "1", "SMOLSESSIONS_AGENTS": "none"}
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return ended.returncode, ended.stdout, ended.stderr


def rows(output: str) -> dict[tuple[str, int], tuple[int, ...]]:
    """Return messages, characters, tokens and steps left out, by policy and turn."""
    found = {}
    for name, turn, *figures in ROW.findall(output):
        found[name, int(turn)] = tuple(int(figure.replace(",", "")) for figure in figures)
    return found


def test_the_example_shows_the_omissions_and_the_whole_record(short: Path) -> None:
    status, output, errors = demo(short, "--turns", "25")
    assert (status, errors) == (0, ""), output
    found = rows(output)
    assert list(found) == [(name, turn) for name in POLICIES for turn in (1, 10, 25)]
    assert output.count("the record is whole: 75 of 75 steps in …/steps") == len(POLICIES)
    assert "no LLM" in output
    whole = {turn: found["no_pruning", turn] for turn in (1, 10, 25)}
    assert (whole[25][0], whole[25][3]) == (2 + 24 * 5 + 2, 0)  # system and task, five a turn, the last call and report
    for name in POLICIES[1:]:
        assert found[name, 1] == whole[1], name
        assert found[name, 25][1] < 0.6 * whole[25][1], name
    assert found["prune_old_observations", 25][3] == 0
    assert found["token_budget", 25][2] <= 6000
    assert all(found[name, 25][3] > 20 for name in ("keep_last_n_steps", "token_budget", "summarize"))
    assert ", and 0 summaries" not in output
    assert re.search(r", and \d+ summaries", output)
    left = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in left if str(short) in " ".join(command or [])]
    assert list(short.iterdir()) == []


def test_the_example_accepts_one_policy_and_refuses_nonsense(short: Path) -> None:
    status, output, errors = demo(short, "--turns", "2", "--policy", "chain")
    assert (status, errors, list(rows(output))) == (0, "", [("chain", 1), ("chain", 2)]), output
    for options, word in (
        (["--turns", "0"], "from 1 to 1000"),
        (["--turns", "x"], "invalid"),
        (["--policy", "x"], "x"),
    ):
        status, output, errors = demo(short, *options)
        assert (status, output, word in errors) == (2, "", True), errors


def test_the_example_quotes_a_service_that_does_not_start(short: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "memory_demo.py"), "--turns", "1"]
    broken = {**os.environ, "PYTHONPATH": str(short)}
    (short / "redis.py").write_text("raise RuntimeError('the store library is broken')\n")
    ended = subprocess.run(command, env=broken, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "the service did not start" in ended.stderr
    assert "the store library is broken" in ended.stderr
