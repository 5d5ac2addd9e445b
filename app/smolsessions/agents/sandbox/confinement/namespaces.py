"""Namespaces for model-written code: no network, and a root of its own that holds what it may read and nothing else."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smolsessions.agents.sandbox.confinement.readable_paths import DEVICES

if TYPE_CHECKING:
    from smolsessions.agents.sandbox.confinement.readable_paths import ReadablePaths

NEW_MOUNTS, NEW_IPC, NEW_USERS, NEW_PIDS, NEW_NET = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
BIND, RECURSIVE, PRIVATE, DETACH = 4096, 16384, 1 << 18, 2
READ_ONLY, NO_SUID, NO_DEVICES = 1, 2, 4
MOUNT_SETATTR, HERE, WITH_ALL_BELOW = 442, -100, 0x8000
SET_DUMPABLE = 4
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41}
_CLONE = {"x86_64": 56, "aarch64": 220}
_STAGE = Path("/proc")  # always there; the processes see none of it
_EMPTY = ("proc", "tmp")


def enter(readable: ReadablePaths) -> None:
    """Move this process, which has one thread, into namespaces of its own. Raises `OSError`, and then is half moved."""
    uid, gid = os.getuid(), os.getgid()
    wanted = NEW_NET | NEW_MOUNTS | NEW_IPC
    try:
        _call("unshare", wanted)
    except OSError:  # without the right to make them, a user namespace may give it
        _call("unshare", NEW_USERS | wanted)
        _call("prctl", SET_DUMPABLE, 1, 0, 0, 0)  # else these files of /proc are root's
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _call("mount", None, b"/", None, RECURSIVE | PRIVATE, None)
    _change_root(readable)


def fork() -> int:
    """Fork as `os.fork` does, into a process that sees no other one, where that can be."""
    number = _CLONE.get(platform.machine())
    if number is None:
        return os.fork()
    python: Any = ctypes.PyDLL(None, use_errno=True)
    python.PyOS_BeforeFork()
    pid: int = python.syscall(number, NEW_PIDS | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    error = ctypes.get_errno()
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(error, os.strerror(error))
    return pid


def _change_root(readable: ReadablePaths) -> None:
    _call("mount", b"none", os.fsencode(_STAGE), b"tmpfs", NO_SUID | NO_DEVICES, b"mode=755")
    for folder in (*readable.listed, *map(Path, _EMPTY)):
        _staged(folder).mkdir(parents=True, exist_ok=True)
    for path in readable.whole:
        _show(path, READ_ONLY | NO_SUID | NO_DEVICES)
    for device in map(Path, DEVICES):
        if device.exists():
            _show(device, READ_ONLY | NO_SUID)
    os.chdir(_STAGE)
    _call("syscall", _PIVOT_ROOT[platform.machine()], b".", b".")
    _call("umount2", b".", DETACH)  # the old root, which lies over the new one
    os.chdir("/")
    _set_attributes(b"/", READ_ONLY | NO_SUID)


def _show(path: Path, attributes: int) -> None:
    place = _staged(path)
    if path.is_dir():
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    target = os.fsencode(place)
    _call("mount", os.fsencode(path), target, None, BIND | RECURSIVE, None)
    _set_attributes(target, attributes)


def _staged(path: Path) -> Path:
    return _STAGE / path.relative_to(path.anchor)


def _set_attributes(path: bytes, attributes: int) -> None:
    given = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    _call("syscall", MOUNT_SETATTR, HERE, path, WITH_ALL_BELOW, given, ctypes.sizeof(given))


def _call(name: str, *args: Any) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*args) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
