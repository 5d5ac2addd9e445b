"""Landlock: a process gives up file, TCP and signal rights. It needs no privilege (Linux 5.13)."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path

from smolsessions.agents.sandbox.confinement.libc import call
from smolsessions.agents.sandbox.confinement.readable_paths import DEVICES, ReadablePaths

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same on all architectures
GET_VERSION, PATH_BENEATH = 1, 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
BIND_AND_CONNECT_TCP, ABSTRACT_SOCKETS_AND_SIGNALS = 0b11, 0b11
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # number of rights by the kernel's version; 16 from version 5 on
TRUNCATES, CONNECTS, SCOPES = 3, 4, 6
"""The first versions that cover truncation, TCP, and signals with abstract sockets."""


class Ruleset:
    """Ruleset for later processes: they may read these files, and write to devices that store nothing."""

    def __init__(self, readable: ReadablePaths) -> None:
        """Raises `OSError` if the system has no Landlock."""
        self.version = version()
        if self.version < 1:
            raise OSError("there is no Landlock")
        attributes = attributes_for(self.version)
        self._fd = call("syscall", CREATE_RULESET, attributes, len(attributes), 0)
        for path in readable.whole:
            self._allow(path, READ_FILE | EXECUTE | READ_DIR)
        for path in readable.listed:
            self._allow(path, READ_DIR)
        for name in DEVICES:
            self._allow(name, READ_FILE | WRITE_FILE)

    def restrict(self) -> None:
        """Put this process and all that it starts under the ruleset."""
        call("syscall", RESTRICT_SELF, self._fd, 0)
        os.close(self._fd)

    def _allow(self, path: Path | str, rights: int) -> None:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return  # it was removed meanwhile
        try:
            if not os.path.isdir(fd):  # noqa: PTH112 - a descriptor
                rights &= ~READ_DIR
            call("syscall", ADD_RULE, self._fd, PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
        finally:
            os.close(fd)


def attributes_for(version: int) -> bytes:
    """Return the attributes of a ruleset that covers every right of this version."""
    rights = (1 << _FILE_RIGHTS.get(version, 16)) - 1
    attributes = struct.pack("=QQQ", rights, BIND_AND_CONNECT_TCP, ABSTRACT_SOCKETS_AND_SIGNALS)
    return attributes[: 8 if version < CONNECTS else 16 if version < SCOPES else 24]


def version() -> int:
    """Return the version of the kernel's Landlock, 0 without Landlock."""
    if sys.platform != "linux":
        return 0
    return max(0, int(ctypes.CDLL(None).syscall(CREATE_RULESET, None, 0, GET_VERSION)))
