"""Programs of Debian packages and of npm for tests, installed if this runs as root and apt-get is available."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.waiting import run_program
from tools import node_programs

INSTALL_S = 300
PROGRAMS = {  # of a package, in the order of preference
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "tini": ("tini",),
    "user-mode-linux": ("linux.uml",),
}


def path_or_skip(package: str) -> str:
    """Return the path of a program. Without it the test is skipped. In CI (`CI=true`) the test fails instead."""
    path, reason = find(package)
    if not path:
        skip(f"the tests need Debian's package {package}: {reason}")
    return path


def skip(reason: str) -> NoReturn:
    """Skip the test. In CI (`CI=true`) it fails instead."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def npm_packages() -> Path:
    """Return the folder of the packages of npm, with their programs in `.bin`, or skip the test."""
    try:
        return node_programs.programs().parent
    except node_programs.NoNodeError as error:
        skip(str(error))


@cache
def find(package: str) -> tuple[str | None, str]:
    names = PROGRAMS[package]
    if path := _on_path(names):
        return path, ""
    with (Path(tempfile.gettempdir()) / "smolsessions-tests-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # apt-get fails if another process of pytest installs at the same time
        reason = "" if _on_path(names) else _install(package)
    return _on_path(names), reason


def _on_path(names: tuple[str, ...]) -> str | None:
    return next(filter(None, map(shutil.which, names)), None)


def _install(package: str) -> str:
    """Install the package if possible. Return the obstacle otherwise."""
    apt_get = shutil.which("apt-get")
    if not apt_get or os.geteuid() != 0:
        return "it is not installed, and installing it takes root and apt-get"
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", package]):
        try:
            done = run_program([apt_get, "-qq", *command], env=quiet, timeout=INSTALL_S)
        except subprocess.TimeoutExpired:
            return f"apt-get {command[0]} took longer than {INSTALL_S} s"
        if done.returncode and command[0] == "install":
            return f"apt-get install {package} failed: {done.stderr.strip()[-300:]}"
    return f"apt-get installed {package}, but its program is not on the PATH"


def main() -> None:
    """Install all of them before the tests, whose time limits have no room for it."""
    for package in PROGRAMS:
        path, reason = find(package)
        if not path:
            sys.stdout.write(f"the tests that need Debian's package {package} are skipped: {reason}\n")


if __name__ == "__main__":
    main()
