"""Seccomp filter for model-written code: a BPF program that refuses system calls. It needs no rights.

It is a list of refusals: what Python's libraries call is not known beforehand, and most of it is harmless.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smolsessions.agents.sandbox.confinement import system_calls as calls

if TYPE_CHECKING:
    from collections.abc import Collection

SET_SECCOMP, FILTER_MODE = 22, 2
LOAD, AND, EQUAL, AT_LEAST, RETURN = 0x20, 0x54, 0x15, 0x35, 0x06  # of words, with a constant
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16
ALLOW, FAIL, KILL = 0x7FFF0000, 0x00050000, 0x80000000
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
OPENS_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
STREAM, SEQUENCE, KIND_OF_SOCKET = 1, 5, 0xF
NEW_NAMESPACES = 0x7E020000
SET_OWNER, SET_OWNERS_SIGNAL, SET_OWNER_EXTENDED = 8, 10, 15  # fcntl
SET_DEATH_SIGNAL, SET_DUMPABLE = 1, 4  # prctl
# ioctl: all others, those of file systems above all, may change what a descriptor for reading stands for
IS_TERMINAL, WINDOW_SIZE, BYTES_TO_READ, SET_BLOCKING = 0x5401, 0x5413, 0x541B, 0x5421
SET_CLOSE_ON_EXEC, UNSET_CLOSE_ON_EXEC = 0x5451, 0x5450


@dataclass(frozen=True)
class _Check:
    """One argument of a call, and its values: `only` these pass, or these do not."""

    argument: int
    values: Collection[int]
    only: bool = True
    mask: int = 0xFFFFFFFF
    error: int = errno.EPERM


def has_filter() -> bool:
    """Tell whether there are filters for this machine."""
    return sys.platform == "linux" and platform.machine() in _ARCHITECTURES


class Filter:
    """A filter for processes to come; a process adds its own id (a program that is made anew takes it 1 ms)."""

    def __init__(self, *, processes: bool, writes: bool, signals: bool) -> None:
        """Refuse all but what is left to other means.

        Args:
            processes: starting processes, threads and programs.
            writes: opening files for writing.
            signals: signals; else a process can signal itself alone.
        """
        machine = platform.machine()
        self._known = calls.numbers(calls.CHECKED, machine)
        self._signals = signals
        refused = _refused(machine, processes=processes, writes=writes)
        self._start = b"".join(
            (
                *(_step(LOAD, ARCHITECTURE_AT), _step(EQUAL, _ARCHITECTURES[machine], 1), _step(RETURN, KILL)),
                *(_step(LOAD, NUMBER_AT), _step(AT_LEAST, calls.NEWEST + 1, 0, 1), _fail(errno.ENOSYS)),
                *(_step(EQUAL, number, 0, 1) + _fail(error) for number, error in refused.items()),
                self._checks(_checks(processes=processes, writes=writes)),
            )
        )

    def install(self) -> None:
        """Install the filter in this process, for good. Raises `OSError`."""
        own = self._checks(_own_checks(os.getpid(), signals=self._signals))
        program = self._start + own + _step(RETURN, ALLOW)
        instructions = ctypes.create_string_buffer(program, len(program))
        header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(instructions))
        libc: Any = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(SET_SECCOMP, FILTER_MODE, header, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def _checks(self, checks: dict[str, _Check]) -> bytes:
        return b"".join(_checked(self._known[name], check) for name, check in checks.items() if name in self._known)


def _refused(machine: str, *, processes: bool, writes: bool) -> dict[int, int]:
    known = calls.numbers(calls.CHECKED, machine)
    refused = dict.fromkeys(calls.numbers(calls.NETWORK, machine).values(), errno.EACCES)
    for group in (calls.SHARED_MEMORY, calls.CHANGES, calls.PROCESSES, calls.KERNEL):
        refused |= dict.fromkeys(calls.numbers(group, machine).values(), errno.EPERM)
    refused[known["clone3"]] = errno.ENOSYS  # its arguments are out of a filter's sight; libraries fall back to `clone`
    if not writes:
        refused[known["openat2"]] = errno.ENOSYS
    if not processes:
        started = ("fork", "vfork", "clone", "execve", "execveat")
        refused |= {known[name]: errno.EAGAIN for name in started if name in known}
    return refused


def _checks(*, processes: bool, writes: bool) -> dict[str, _Check]:
    owners = (SET_OWNER, SET_OWNERS_SIGNAL, SET_OWNER_EXTENDED)
    asked = (IS_TERMINAL, WINDOW_SIZE, BYTES_TO_READ, SET_BLOCKING, SET_CLOSE_ON_EXEC, UNSET_CLOSE_ON_EXEC)
    checks = {
        "fcntl": _Check(1, owners, only=False),  # a signal to any process, when a socket has news
        "ioctl": _Check(1, asked, error=errno.ENOTTY),
        "prctl": _Check(0, (SET_DEATH_SIGNAL, SET_DUMPABLE), only=False),  # as the service has set them
        "socketpair": _Check(1, (STREAM, SEQUENCE), mask=KIND_OF_SOCKET),  # a datagram goes to any address
    }
    if not writes:
        closed = _Check(1, (0,), mask=OPENS_TO_WRITE, error=errno.EACCES)
        checks |= {"open": closed, "openat": _Check(2, (0,), mask=OPENS_TO_WRITE, error=errno.EACCES)}
    if processes:
        checks["clone"] = _Check(0, (0,), mask=NEW_NAMESPACES)
    return checks


def _own_checks(pid: int, *, signals: bool) -> dict[str, _Check]:
    itself = _Check(0, (0, pid))
    if signals:
        return {"prlimit64": itself}
    names = ("tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
    return {"prlimit64": itself, "kill": itself} | dict.fromkeys(names, _Check(0, (pid,)))


def _checked(number: int, check: _Check) -> bytes:
    """Compare the lower half of an argument: the kernel takes no more of these."""
    body = [_step(LOAD, ARGUMENTS_AT + 8 * check.argument), _step(AND, check.mask)]
    left = len(check.values)
    for value in check.values:
        body.append(_step(EQUAL, value, left))
        left -= 1
    ends = (_fail(check.error), _step(RETURN, ALLOW))
    body += ends if check.only else reversed(ends)
    return _step(EQUAL, number, 0, len(body)) + b"".join(body)


def _fail(error: int) -> bytes:
    return _step(RETURN, FAIL | error)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
