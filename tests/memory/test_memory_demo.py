"""The example of memory policies, run as a user runs it."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.support.service import ROOT
from tests.support.tiers import deep

POLICIES = ["no_pruning", "keep_last_n_steps", "prune_old_observations", "token_budget", "summarize", "chain"]
ROW = re.compile(r"^(\w+) +(\d+) +(\d+) +([\d,]+) +([\d,]+) +(\d+) +[\d.]+$", re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "names"), [(["--policy", "chain"], ["chain"]), pytest.param([], POLICIES, marks=deep)]
)
def test_the_example_shows_the_sizes_of_prompts_and_leaves_nothing_behind(options: list[str], names: list[str]) -> None:
    """The folder has a short name, because the path of the store's socket in it has a limit."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "examples" / "memory_demo.py"), "--turns", "11", *options]
        environment = {**os.environ, "TMPDIR": folder, "SMOLSESSIONS_PORT": "1", "SMOLSESSIONS_AGENTS": "none"}
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
        assert [(row[0], row[1]) for row in ROW.findall(ended.stdout)] == [
            (n, t) for n in names for t in ("1", "10", "11")
        ]
        assert ended.stdout.count("the record is whole: 33 of 33 steps in …/steps") == len(names)
        left = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
        assert not [command for command in left if folder in " ".join(command or [])]
        assert list(Path(folder).iterdir()) == []
