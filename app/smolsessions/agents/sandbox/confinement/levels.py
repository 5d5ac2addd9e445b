"""Confinement of the processes for model-written code, as far as the platform allows: docs/security.md."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from smolsessions.agents.sandbox.confinement import landlock, namespaces, seccomp
from smolsessions.agents.sandbox.confinement.readable_paths import ReadablePaths, import_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Level = Literal["namespaces", "landlock", "uid", "none"]
CONFINED: frozenset[Level] = frozenset({"namespaces", "landlock"})
"""The levels that keep code from the service's files, network and processes, whoever the service runs as."""

MB = 1024 * 1024
SET_DEATH_SIGNAL, SET_DUMPABLE, SET_NO_NEW_PRIVILEGES = 1, 4, 38
CAPABILITIES_VERSION = 0x20080522
FIRST_UID, UIDS = 2_000_000_000, 100_000_000  # no distribution gives these to users, nor container engines


class Confinement:
    """Restrictions of all processes that one server forks. Made once, in that server, while it has one thread."""

    def __init__(self, hidden: Iterable[Path], folders: Iterable[Path] = ()) -> None:
        """Make the strongest that the platform gives; code may read these folders, and nothing that is hidden."""
        self._used = _address_space()
        self._libc: Any = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self._apart, self._rules, self._filters, self._forked = False, None, None, 0
        if self._libc:
            readable = ReadablePaths.outside(hidden, folders)
            self._apart = _works(lambda: namespaces.enter(readable))
            if self._apart:
                namespaces.enter(readable)
            elif landlock.version():
                self._rules = landlock.Rules(readable)
            self._libc.prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
            self._filters = self._make_filters() if seccomp.has_filter() else None
            if self._filters and not _works(self._filters[False].install):
                self._filters = None
        keep_memory_private()
        self._own_uids = os.getuid() == 0 and _works(_become_stranger)

    @property
    def level(self) -> Level:
        """The strongest means that holds. Landlock alone leaves most of the network open: it counts with a filter."""
        if self._apart:
            return "namespaces"
        if self._rules and self._filters:
            return "landlock"
        return "uid" if self._own_uids else "none"

    def fork(self) -> int:
        """Fork as `os.fork` does, into a process that sees no other one, where that can be."""
        self._forked += 1
        return namespaces.fork() if self._apart else os.fork()

    def confine(self, *, memory_mb: float, processes: int, open_files: int) -> None:
        """Bound the process that this is: its rights, its memory beyond what it began with, and what it may open."""
        if self._own_uids:
            _take_uid(FIRST_UID + self._forked % UIDS)
        _bound(resource.RLIMIT_AS, self._used + int(memory_mb * MB))
        _bound(resource.RLIMIT_NOFILE, open_files)
        _bound(resource.RLIMIT_FSIZE, 0)  # no file can be written
        _bound(resource.RLIMIT_CORE, 0)
        _bound(resource.RLIMIT_NPROC, processes)
        if self._libc:
            header, nothing = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0), (ctypes.c_uint32 * 6)()
            self._libc.capset(header, nothing)
            self._libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)  # after the uid, whose change clears it
            self._libc.prctl(SET_DUMPABLE, 0, 0, 0, 0)
        if self._rules:
            self._rules.restrict()
        if self._filters:
            self._filters[processes > 0].install()

    def _make_filters(self) -> dict[bool, seccomp.Filter]:
        """Make a filter for agents whose code may start processes, and one for others."""
        version = self._rules.version if self._rules else 0
        writes = self._apart or version >= landlock.TRUNCATES
        signals = self._apart or version >= landlock.SCOPES
        return {some: seccomp.Filter(processes=some, writes=writes, signals=signals) for some in (False, True)}


def keep_memory_private() -> None:
    """Let no other process of the same user read this one's memory and environment."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_DUMPABLE, 0, 0, 0, 0)


def _become_stranger() -> None:
    """Take a uid that owns nothing. Raises `OSError` if it cannot import what the service imports."""
    _take_uid(FIRST_UID)
    for folder in import_path():
        os.listdir(folder)  # noqa: PTH208 - shorter


def _take_uid(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _works(attempt: Callable[[], None]) -> bool:
    """Try something in a fork: what is half done cannot be undone."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            attempt()
            status = 0
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
