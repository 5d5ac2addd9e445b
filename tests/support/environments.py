"""Environments that differ from the one of the tests in one thing: the Python, or a package."""

import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.support.debian import skip
from tests.support.service import PATIENCE_S, ROOT, run_program

OLDEST_SMOLAGENTS = Path(__file__).parents[1] / "data" / "smolagents-oldest.lock"
GENERATOR = OLDEST_SMOLAGENTS.with_name("openapi-python-client.lock")
AGENT_EVAL = OLDEST_SMOLAGENTS.with_name("pytest-agent-eval.lock")
DEBIAN = "/usr/bin/python3"
OPENAI_CLIENTS = OLDEST_SMOLAGENTS.with_name("openai-clients.lock")
LITELLM = OLDEST_SMOLAGENTS.with_name("litellm.lock")
UV = str(Path(sys.executable).with_name("uv"))  # links files from its cache: a second, where pip takes a minute
INSTALL = (UV, "pip", "install", "--quiet", "--link-mode", "hardlink")
LOCKED = ("--no-deps", "--require-hashes", "--only-binary", ":all:")


def environment(folder: Path, lock: Path = ROOT / "requirements.lock", python: str = sys.executable) -> str:
    """Return the Python of a new environment that shares the tests' packages, except those of the lock file."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True, timeout=PATIENCE_S)
    packages = sysconfig.get_path("purelib", vars={"base": str(folder)})
    with (folder / packages / "tests.pth").open("w") as paths:
        paths.write(f"{sysconfig.get_path('purelib')}\n{ROOT / 'app'}\n")
    made = str(folder / "bin" / "python")
    installed = run_program([*INSTALL, *LOCKED, "--python", made, "-r", str(lock)])
    assert not installed.returncode, installed.stderr
    return made


def debians(folder: Path) -> str:
    """Return the Python of an environment of Debian's own Python, or skip the test."""
    ask = "import sys; print(*sys.version_info[:2], sep='.')"
    try:
        version = run_program([DEBIAN, "-c", ask], check=True).stdout
    except FileNotFoundError:
        skip(f"this machine has no {DEBIAN}")
    ours = sysconfig.get_python_version()
    if version.strip() != ours:
        skip(f"{DEBIAN} is Python {version.strip()}, and the packages here are built for {ours}")
    return environment(folder, python=DEBIAN)
