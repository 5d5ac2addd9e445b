"""`make run` on a machine as a newcomer has it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.service import ROOT


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make as from a shell, also if the tests were started by make."""
    environment = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    }
    command = ["make", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder with the files that `make run` needs."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize(("python", "found"), [("old", "3.9"), ("no-such-python", "missing")])
def test_a_python_that_is_too_old_or_missing_is_named_before_anything_is_installed(
    checkout: Path, python: str, found: str
) -> None:
    old = checkout / "old"
    old.write_text('#!/bin/sh\ncase "$2" in *exit*) exit 1;; esac\necho 3.9\n')
    old.chmod(0o755)
    name = f"./{python}"
    done = make(checkout, "run", f"PYTHON={name}")
    assert done.returncode != 0
    assert done.stdout == (
        f"smolsessions needs Python 3.11 or later, and {name} is {found}: "
        "name another one, as in make PYTHON=python3.12 run\n"
    )
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("answer", ["echo 3.9", "exit 127"], ids=["another Python", "a Python that is gone"])
def test_an_environment_that_another_python_made_is_made_anew(checkout: Path, answer: str) -> None:
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{answer}\n")
    python.chmod(0o755)
    (checkout / ".venv" / "run-ready").touch()
    planned = make(checkout, "-n", "run", f"PYTHON={sys.executable}").stdout
    assert f"{sys.executable} -m venv --clear .venv" in planned
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    assert "-m venv" not in make(checkout, "-n", "run", f"PYTHON={sys.executable}").stdout
