"""Linux namespaces for model-written code: no network, and a root folder that holds only its readable paths."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
from pathlib import Path
from typing import Any

from smolsessions.agents.sandbox.confinement.libc import SET_DUMPABLE, call
from smolsessions.agents.sandbox.confinement.readable_paths import DEVICES, ReadablePaths

NEW_MOUNTS, NEW_IPC, NEW_USERS, NEW_PIDS, NEW_NET = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
BIND, RECURSIVE, PRIVATE, DETACH = 4096, 16384, 1 << 18, 2
READ_ONLY, NO_SUID, NO_DEVICES = 1, 2, 4
MOUNT_SETATTR, CURRENT_FOLDER, WITH_ALL_BELOW = 442, -100, 0x8000
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41}
_CLONE = {"x86_64": 56, "aarch64": 220}
_NEW_ROOT = Path("/proc")  # a mount point that always exists; the processes see nothing of the real one
_EMPTY = ("proc", "tmp")


def enter(readable: ReadablePaths) -> None:
    """Move this process, which has one thread, into new namespaces. Raises `OSError`, possibly half moved."""
    uid, gid = os.getuid(), os.getgid()
    wanted = NEW_NET | NEW_MOUNTS | NEW_IPC
    try:
        call("unshare", wanted)
    except OSError:  # without the right to make them, a user namespace may grant it
        call("unshare", NEW_USERS | wanted)
        call("prctl", SET_DUMPABLE, 1, 0, 0, 0)  # otherwise root owns these files of /proc
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    call("mount", None, b"/", None, RECURSIVE | PRIVATE, None)
    call("mount", b"none", os.fsencode(_NEW_ROOT), b"tmpfs", NO_SUID | NO_DEVICES, b"mode=755")
    for folder in (*readable.listed, *map(Path, _EMPTY)):
        _in_new_root(folder).mkdir(parents=True, exist_ok=True)
    for path in readable.whole:
        _mount(path, READ_ONLY | NO_SUID | NO_DEVICES)
    for device in map(Path, DEVICES):
        if device.exists():
            _mount(device, READ_ONLY | NO_SUID)
    os.chdir(_NEW_ROOT)
    call("syscall", _PIVOT_ROOT[platform.machine()], b".", b".")
    call("umount2", b".", DETACH)  # the old root, which lies over the new one
    os.chdir("/")
    _set_attributes(b"/", READ_ONLY | NO_SUID)


def fork() -> int:
    """Fork as `os.fork` does, into a new namespace of processes if this architecture's `clone` is known."""
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


def _mount(path: Path, attributes: int) -> None:
    mount_point = _in_new_root(path)
    if path.is_dir():
        mount_point.mkdir(parents=True, exist_ok=True)
    else:
        mount_point.parent.mkdir(parents=True, exist_ok=True)
        mount_point.touch()
    target = os.fsencode(mount_point)
    call("mount", os.fsencode(path), target, None, BIND | RECURSIVE, None)
    _set_attributes(target, attributes)


def _in_new_root(path: Path) -> Path:
    return _NEW_ROOT / path.relative_to(path.anchor)


def _set_attributes(path: bytes, attributes: int) -> None:
    argument = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    call("syscall", MOUNT_SETATTR, CURRENT_FOLDER, path, WITH_ALL_BELOW, argument, ctypes.sizeof(argument))
