"""The browser that the tests drive: Chromium as the system has it, installed where that can be done."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
INSTALL_S = 300
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def path_or_skip() -> str:
    """Give the path of a Chromium. Without one the tests are skipped; in CI (`CI=true`) that is a failure."""
    path, reason = find()
    if path:
        return path
    sentence = f"there is no Chromium for the tests of the page: {reason}"
    if os.environ.get("CI") == "true":
        pytest.fail(sentence, pytrace=False)
    pytest.skip(sentence)


@cache
def find() -> tuple[str | None, str]:
    """Give its path, or why there is none."""
    if path := _on_path():
        return path, ""
    reason = _install()
    return _on_path(), reason


def _on_path() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


def _install() -> str:
    """Install Debian's package, where this may be done; give what was in the way."""
    apt_get = shutil.which("apt-get")
    if not apt_get or os.geteuid() != 0:
        return "none is installed, and it takes root and apt-get to install one"
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
        try:
            done = subprocess.run(
                [apt_get, "-qq", *command], env=quiet, timeout=INSTALL_S, capture_output=True, text=True, check=False
            )
        except subprocess.TimeoutExpired:
            return f"apt-get {command[0]} took longer than {INSTALL_S} s"
        if done.returncode and command[0] == "install":
            return f"apt-get install chromium failed: {done.stderr.strip()[-300:]}"
    return "apt-get installed a chromium that is not on the PATH"
