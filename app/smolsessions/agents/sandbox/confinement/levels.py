"""Confinement of the processes for model-written code by the means of the platform. See docs/security.md."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from smolsessions.agents.sandbox.confinement import landlock, namespaces, seccomp
from smolsessions.agents.sandbox.confinement.libc import SET_DEATH_SIGNAL, SET_DUMPABLE, SET_NO_NEW_PRIVILEGES
from smolsessions.agents.sandbox.confinement.readable_paths import ReadablePaths, import_path
from smolsessions.agents.sandbox.limits import MB, CodeLimits

Level = Literal["namespaces", "landlock", "uid", "none"]
CONFINED: frozenset[Level] = frozenset({"namespaces", "landlock"})
"""Levels that protect the service's files, network and processes from code, whatever user the service runs as."""

CAPABILITIES_VERSION = 0x20080522
FIRST_UID, UIDS = 2_000_000_000, 100_000_000  # neither distributions nor container engines assign these


class Confinement:
    """Restrictions of all processes that one server forks. Made once, in that server, while it has one thread."""

    def __init__(self, hidden: Iterable[Path], folders: Iterable[Path] = ()) -> None:
        """Take the strongest means of the platform. Code may read `folders` and nothing that is hidden."""
        self._initial_bytes = 0
        with contextlib.suppress(OSError, ValueError):
            pages = int(Path("/proc/self/statm").read_bytes().split()[0])
            self._initial_bytes = pages * os.sysconf("SC_PAGESIZE")
        self._libc: Any = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self._in_namespaces, self._ruleset, self._filters, self._forks = False, None, None, 0
        if self._libc:
            readable = ReadablePaths.excluding(hidden, folders)
            self._in_namespaces = _works(lambda: namespaces.enter(readable))
            if self._in_namespaces:
                namespaces.enter(readable)
            elif landlock.version():
                self._ruleset = landlock.Ruleset(readable)
            self._libc.prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
            version = self._ruleset.version if self._ruleset else 0
            writes = self._in_namespaces or version >= landlock.TRUNCATES
            signals = self._in_namespaces or version >= landlock.SCOPES
            if seccomp.has_filter():  # one for agents whose code may start processes, and one for the others
                filters = {may: seccomp.Filter(processes=may, writes=writes, signals=signals) for may in (False, True)}
                self._filters = filters if _works(filters[False].install) else None
        keep_memory_private()
        imported = import_path()  # as this user sees them: to a stranger, a folder in a closed one does not exist

        def become_stranger() -> None:
            _take_uid(FIRST_UID)
            for folder in imported:
                os.listdir(folder)  # noqa: PTH208 - shorter

        self._own_uids = os.getuid() == 0 and _works(become_stranger)

    @property
    def level(self) -> Level:
        """The strongest working means. Landlock alone leaves most of the network open, so it needs the filter."""
        if self._in_namespaces:
            return "namespaces"
        if self._ruleset and self._filters:
            return "landlock"
        return "uid" if self._own_uids else "none"

    def fork(self) -> int:
        """Fork as `os.fork` does, into a process that sees no other one if namespaces work."""
        self._forks += 1
        return namespaces.fork() if self._in_namespaces else os.fork()

    def drop_rights(self) -> None:
        """Take from this process, for good, every right that no agent's code has."""
        if self._own_uids:
            _take_uid(FIRST_UID + self._forks % UIDS)
        if self._libc:
            header, nothing = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0), (ctypes.c_uint32 * 6)()
            self._libc.capset(header, nothing)
            self._libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)  # after the uid, whose change clears it
            self._libc.prctl(SET_DUMPABLE, 0, 0, 0, 0)
        if self._ruleset:
            self._ruleset.restrict()

    def confine(self, limits: CodeLimits) -> None:
        """Restrict this process for good: its memory beyond the initial one, its files, processes and system calls."""
        _limit(resource.RLIMIT_AS, self._initial_bytes + int(limits.memory_mb * MB))
        _limit(resource.RLIMIT_NOFILE, limits.open_files)
        _limit(resource.RLIMIT_FSIZE, 0)  # no file can be written
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_NPROC, limits.processes)
        if self._filters:
            self._filters[limits.processes > 0].install()


def keep_memory_private() -> None:
    """Keep other processes of the same user from reading this one's memory and environment."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_DUMPABLE, 0, 0, 0, 0)


def _take_uid(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _works(attempt: Callable[[], None]) -> bool:
    """Try a function in a fork, since a partial failure cannot be undone."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            attempt()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (value, value))
