"""Calls of the C library that raise `OSError`, and the numbers of `prctl`."""

from __future__ import annotations

import ctypes
import os
from typing import Any

LIBC: Any = ctypes.CDLL(None, use_errno=True)
SET_DEATH_SIGNAL, SET_DUMPABLE, SET_SECCOMP, SET_NO_NEW_PRIVILEGES = 1, 4, 22, 38


def call(name: str, *args: Any) -> int:
    result: int = getattr(LIBC, name)(*args)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
