"""The embedded store's folder: one owner at a time, an orphan's end, and a place for the socket."""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, BinaryIO

from smolsessions.core.errors import StartError
from smolsessions.core.files import SOCKET_PATH_BYTES, check_private

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHER_FOLDER = "set SMOLSESSIONS_DATA_DIR to another folder"


@contextmanager
def held(folder: Path, grace_s: float) -> Iterator[BinaryIO]:
    """Hold the folder; yield the lock that the server is to inherit.

    Two locks: who gets the service's but not the server's knows that the owner is dead and only its server is left,
    without trusting a process id, which may be reused, or mean another process in another container.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_private(folder, "data folder")
            service = stack.enter_context((folder / "lock").open("a+b"))
            server = stack.enter_context((folder / "server.lock").open("a+b"))
            if not _lock(service):
                owner = (folder / "lock").read_text() or "unknown"
                raise StartError(f"the data folder {folder} is in use by process {owner}; stop it or {OTHER_FOLDER}")
            (folder / "lock").write_text(str(os.getpid()))
            _end_orphan(folder, server, grace_s)
        except OSError as error:
            raise unusable(folder, error) from error
        yield server


def _end_orphan(folder: Path, lock: BinaryIO, grace_s: float) -> None:
    """End the server of a dead service: it may be ending already, or not have noticed (no platform but Linux tells)."""
    pid, _, recorded = os.fsdecode((folder / "server.lock").read_bytes()).partition(" ")
    socket_path = Path(recorded) if recorded else folder / "store.sock"
    deadline = time.monotonic() + grace_s
    while not _lock(lock):
        if time.monotonic() > deadline:
            raise StartError(
                f"the data folder {folder} is in use by process {pid or 'unknown'}, the store of a service that is "
                f"gone; it does not end when asked to: kill it or {OTHER_FOLDER}"
            )
        ask(socket_path, b"SHUTDOWN NOSAVE")  # saves no snapshot; the append-only file is completed all the same
        time.sleep(0.02)
    if socket_path.parent != folder:
        with suppress(OSError):  # not empty: in use, by the service that this folder is a copy of
            socket_path.parent.rmdir()


def _lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unusable(folder: Path, error: OSError) -> StartError:
    return StartError(
        f"the data folder {folder} cannot be used ({error.strerror}); make it a folder that this user can write, on a "
        f"disk with room, or {OTHER_FOLDER}"
    )


@contextmanager
def socket_place(folder: Path) -> Iterator[Path]:
    """Yield where the socket goes: in the data folder, or in a private one where that path is too long."""
    with ExitStack() as stack:
        path = folder / "store.sock"
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
            path = Path(stack.enter_context(TemporaryDirectory(prefix="smolsessions-")), "store.sock")
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
            raise StartError(f"{path} is too long for a socket; set SMOLSESSIONS_DATA_DIR or TMPDIR to a shorter one")
        stack.callback(path.unlink, missing_ok=True)
        yield path


def ask(socket_path: Path, command: bytes) -> bytes:
    """The start of the server's answer; empty when it gives none."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1)
        connection.connect(str(socket_path))
        connection.sendall(command + b"\r\n")
        return connection.recv(4096)
    return b""
