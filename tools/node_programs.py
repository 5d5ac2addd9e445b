"""Programs of npm that check `openapi.yaml`, installed once from their lock file into `tools/node`."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tools" / "node"
RULES = "recommended-strict"


class NoNodeError(Exception):
    """This machine has no node, or its npm reaches no registry."""


def programs() -> Path:
    """Return the folder of the programs. Raises `NoNodeError`."""
    if not (npm := shutil.which("npm")) or not shutil.which("node"):
        raise NoNodeError("this machine has no node and npm")
    ready = FOLDER / "node_modules" / ".package-lock.json"
    with (FOLDER / "package.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits for the first installation
        if not ready.exists() or ready.stat().st_mtime < (FOLDER / "package-lock.json").stat().st_mtime:
            command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
            made = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False, timeout=300)
            if made.returncode:
                raise NoNodeError(f"npm ci failed in {FOLDER}: {made.stderr.strip() or made.stdout.strip()}")
            ready.touch()
    return FOLDER / "node_modules" / ".bin"


def lint(document: Path) -> subprocess.CompletedProcess[str]:
    """Check an OpenAPI document by Redocly's strict rules. Raises `NoNodeError`."""
    command = [str(programs() / "redocly"), "lint", "--extends", RULES, "--format", "stylish", str(document)]
    quiet = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}
    return subprocess.run(
        command, cwd=FOLDER, env=os.environ | quiet, capture_output=True, text=True, check=False, timeout=120
    )


def main() -> None:
    try:
        linted = lint(ROOT / "openapi.yaml")
    except NoNodeError as error:
        sys.stdout.write(f"openapi.yaml is not linted: {error}\n")
        return
    if linted.returncode:
        sys.exit(f"openapi.yaml breaks Redocly's {RULES} rules:\n{linted.stdout}{linted.stderr}")


if __name__ == "__main__":
    main()
