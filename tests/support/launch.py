"""Launcher: starts a program as another user, or on a kernel that seems to lack some means of confinement.

python tests/support/launch.py [--uid 12345] [--without namespaces] [--without landlock] PROGRAM …
"""

import argparse
import ctypes
import errno
import os
import platform
import stat
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

NEW_MOUNTS, BIND, RECURSIVE, PRIVATE, DETACH = 0x20000, 4096, 16384, 1 << 18, 2
SET_SECCOMP, FILTER_MODE, SET_NO_NEW_PRIVILEGES = 22, 2, 38
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000
_UNSHARE = {"x86_64": 272}.get(platform.machine(), 97)
_CALLS = {"namespaces": [_UNSHARE], "landlock": [444, 445, 446]}
ROOT = Path(__file__).parents[2]
_libc: Any = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--uid", type=int, default=os.getuid())
    parser.add_argument("--without", action="append", default=[], choices=_CALLS)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    if os.getuid() == 0:
        cwd = Path.cwd()
        _check(_libc.unshare(NEW_MOUNTS))
        _check(_libc.mount(None, b"/", None, RECURSIVE | PRIVATE, None))
        _reveal({Path(sys.base_prefix), Path(sys.prefix), ROOT})
        os.chdir(cwd)
    else:
        _check(_libc.prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _refuse([number for name in asked.without for number in _CALLS[name]])
    if os.getuid() != asked.uid:
        os.setgroups([])
        os.setresgid(asked.uid, asked.uid, asked.uid)
        os.setresuid(asked.uid, asked.uid, asked.uid)
    os.execv(asked.program[0], asked.program)


def _refuse(numbers: list[int]) -> None:
    """Refuse these system calls, as container engines do, to all processes started from here."""
    steps = [(LOAD, 0, 0, 0)]
    for number in numbers:
        steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, FAIL | errno.EPERM)]
    program = b"".join(struct.pack("=HBBI", *step) for step in [*steps, (RETURN, 0, 0, ALLOW)])
    instructions = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(instructions))
    _check(_libc.prctl(SET_SECCOMP, FILTER_MODE, header, 0, 0))


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
            _check(_libc.umount2(os.fsencode(stage), DETACH))
            stage.rmdir()


def _bind(source: Path, target: Path) -> None:
    _check(_libc.mount(os.fsencode(source), os.fsencode(target), None, BIND | RECURSIVE, None))


def _check(status: int) -> None:
    if status != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    main()

ON_LOOPBACK = "127.1"  # an address of this machine alone that the settings do not know as one
