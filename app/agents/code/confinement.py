"""What the processes for model-written code are kept from, as far as the platform allows: docs/security.md."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MB = 1024 * 1024
NEW_MOUNTS, NEW_IPC, NEW_USERS, NEW_PIDS, NEW_NET = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
MOUNT_SETATTR, MOUNT_READ_ONLY, HERE, WITH_ALL_BELOW = 442, 1, -100, 0x8000
SET_DEATH_SIGNAL, SET_DUMPABLE, SET_NO_NEW_PRIVILEGES = 1, 4, 38
CAPABILITIES_VERSION = 0x20080522
_CLONE = {"x86_64": 56, "aarch64": 220}


class Walls:
    """The walls around all processes that one server forks. Made once, in that server, while it has one thread."""

    def __init__(self, hidden: Sequence[str]) -> None:
        """Hide these files and folders, `/proc` with the service's environment, and the network."""
        self._used = _address_space()
        self._libc: Any = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self.apart = self._libc is not None and _works(self._enter_namespaces) and self._enter_namespaces()
        """The processes have no network, and see neither what is hidden nor other processes."""
        keep_memory_private()
        if self.apart:
            for path in ("/proc", *hidden):
                self._cover(path)
            self._make_read_only()
        if self._libc:
            self._libc.prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)

    def fork(self) -> int:
        """Fork as `os.fork` does, into a process that sees no other one, where that can be."""
        number = _CLONE.get(platform.machine())
        if not self.apart or number is None:
            return os.fork()
        python: Any = ctypes.PyDLL(None, use_errno=True)
        python.PyOS_BeforeFork()
        pid: int = python.syscall(number, NEW_PIDS | NEW_IPC | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            python.PyOS_AfterFork_Child()
            return 0
        error = ctypes.get_errno()
        python.PyOS_AfterFork_Parent()
        if pid < 0:
            raise OSError(error, os.strerror(error))
        return pid

    def close_in(self, *, memory_mb: float, processes: int, open_files: int) -> None:
        """Bound the process that this is: its rights, its memory beyond what it began with, and what it may open."""
        _bound(resource.RLIMIT_AS, self._used + int(memory_mb * MB))
        _bound(resource.RLIMIT_NOFILE, open_files)
        _bound(resource.RLIMIT_FSIZE, 0)  # no file can be written
        _bound(resource.RLIMIT_CORE, 0)
        _bound(resource.RLIMIT_NPROC, processes)
        if self._libc:
            header, nothing = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0), (ctypes.c_uint32 * 6)()
            self._libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
            self._libc.capset(header, nothing)
            self._libc.prctl(SET_DUMPABLE, 0, 0, 0, 0)

    def _enter_namespaces(self) -> bool:
        wanted = NEW_NET | NEW_MOUNTS
        if self._libc.unshare(wanted) != 0:
            # Without the right to make them, a user namespace may give it.
            uid, gid = os.getuid(), os.getgid()
            if self._libc.unshare(NEW_USERS | wanted) != 0:
                return False
            self._libc.prctl(SET_DUMPABLE, 1, 0, 0, 0)  # else these files of /proc are root's
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        return bool(self._libc.mount(None, b"/", None, RECURSIVE | PRIVATE, None) == 0)

    def _make_read_only(self) -> None:
        """Let no file be changed or removed: bounds on their size do not keep from that."""
        attributes = (ctypes.c_uint64 * 4)(MOUNT_READ_ONLY, 0, 0, 0)
        size = ctypes.sizeof(attributes)
        if self._libc.syscall(MOUNT_SETATTR, HERE, b"/", WITH_ALL_BELOW, attributes, size) != 0:
            self.apart = False

    def _cover(self, path: str) -> None:
        place = Path(path).absolute()
        if place.is_dir():
            flags = READ_ONLY | NO_SUID | NO_DEVICES | NO_EXEC
            failed = self._libc.mount(b"none", os.fsencode(place), b"tmpfs", flags, None)
        else:
            failed = place.exists() and self._libc.mount(b"/dev/null", os.fsencode(place), None, BIND, None)
        if failed:
            self.apart = False


def keep_memory_private() -> None:
    """Let no other process of the same user read this one's memory and environment."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_DUMPABLE, 0, 0, 0, 0)


def _works(attempt: Callable[[], bool]) -> bool:
    """Try something in a fork: a namespace that is half made cannot be left."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if attempt() else 1
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


def _bound(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (limit, limit))


def _address_space() -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_bytes().split()[0]) * os.sysconf("SC_PAGESIZE")
    return 0
