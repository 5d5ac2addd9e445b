"""Landlock: a process gives up its right to files, TCP ports and signals, without any right of its own (Linux 5.13)."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from typing import TYPE_CHECKING, Any

from smolsessions.agents.sandbox.confinement.readable_paths import DEVICES

if TYPE_CHECKING:
    from pathlib import Path

    from smolsessions.agents.sandbox.confinement.readable_paths import ReadablePaths

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same on all architectures
TELL_VERSION, PATH_BENEATH = 1, 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, IOCTL_DEVICE = 1, 2, 4, 8, 1 << 15
BIND_AND_CONNECT_TCP, ABSTRACT_SOCKETS_AND_SIGNALS = 0b11, 0b11
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # how many the kernel knows, by its version; 16 from version 5 on
TRUNCATES, CONNECTS, SCOPES = 3, 4, 6
"""The versions from which truncation, TCP, and signals with abstract sockets, are ruled as well."""


class Rules:
    """Rules for processes to come: they may read these files, and write devices that keep nothing."""

    def __init__(self, readable: ReadablePaths) -> None:
        """Raises `OSError` where the system has no Landlock."""
        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self.version = version()
        if self.version < 1:
            raise OSError("there is no Landlock")
        attributes = attributes_for(self.version)
        self._fd = self._call(CREATE_RULESET, attributes, len(attributes), 0)
        for path in readable.whole:
            self._allow(path, READ_FILE | EXECUTE | READ_DIR)
        for path in readable.listed:
            self._allow(path, READ_DIR)
        for name in DEVICES:
            self._allow(name, READ_FILE | WRITE_FILE)

    def restrict(self) -> None:
        """Put this process, and all that it starts, under the rules."""
        self._call(RESTRICT_SELF, self._fd, 0)
        os.close(self._fd)

    def _allow(self, path: Path | str, rights: int) -> None:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return  # it was removed meanwhile
        try:
            if not os.path.isdir(fd):  # noqa: PTH112 - a descriptor
                rights &= ~READ_DIR
            self._call(ADD_RULE, self._fd, PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
        finally:
            os.close(fd)

    def _call(self, number: int, *args: Any) -> int:
        result: int = self._libc.syscall(number, *args)
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result


def attributes_for(version: int) -> bytes:
    """Rule all that this version can: each knows more rights, and later ones TCP, and then signals."""
    rights = (1 << _FILE_RIGHTS.get(version, 16)) - 1
    given = struct.pack("=QQQ", rights, BIND_AND_CONNECT_TCP, ABSTRACT_SOCKETS_AND_SIGNALS)
    return given[: 8 if version < CONNECTS else 16 if version < SCOPES else 24]


def version() -> int:
    """Tell the version of the kernel's Landlock; 0 where there is none."""
    if sys.platform != "linux":
        return 0
    return max(0, int(ctypes.CDLL(None).syscall(CREATE_RULESET, None, 0, TELL_VERSION)))
