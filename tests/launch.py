"""Launcher: starts a program as another user, or on a kernel that seems to lack some means of confinement.

python tests/launch.py [--uid 12345] PROGRAM …
"""

from __future__ import annotations

import argparse
import ctypes
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

NEW_MOUNTS, BIND, RECURSIVE, PRIVATE = 0x20000, 4096, 16384, 1 << 18
ROOT = Path(__file__).parent.parent
_libc: Any = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--uid", type=int, default=0)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    if asked.uid:
        _become(asked.uid)
    os.execv(asked.program[0], asked.program)


def _become(uid: int) -> None:
    _check(_libc.unshare(NEW_MOUNTS))
    _check(_libc.mount(None, b"/", None, RECURSIVE | PRIVATE, None))
    _reveal({Path(sys.base_prefix), Path(sys.prefix), ROOT})
    os.chdir(Path.cwd())
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _reveal(paths: set[Path]) -> None:
    """Mount these folders again where a parent folder keeps other users out. A chroot would forbid namespaces."""
    closed: dict[Path, list[Path]] = {}
    for path in paths:
        for parent in reversed(path.parents):
            if not parent.stat().st_mode & stat.S_IXOTH:
                closed.setdefault(parent, []).append(path)
                break
    for parent, inside in closed.items():
        staged = [(path, Path(tempfile.mkdtemp())) for path in inside]
        for path, stage in staged:
            _bind(path, stage)
        _check(_libc.mount(b"none", os.fsencode(parent), b"tmpfs", 0, b"mode=755"))
        for path, stage in staged:
            path.mkdir(parents=True, exist_ok=True)
            _bind(stage, path)


def _bind(source: Path, target: Path) -> None:
    _check(_libc.mount(os.fsencode(source), os.fsencode(target), None, BIND | RECURSIVE, None))


def _check(status: int) -> None:
    if status != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    main()
