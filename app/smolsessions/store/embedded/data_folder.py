"""Data folder of the embedded store: its locks, an orphaned server, and the path of the socket."""

from __future__ import annotations

import errno
import os
import re
import socket
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from smolsessions.core.errors import StartError
from smolsessions.core.files import SOCKET_PATH_BYTES, check_private

if sys.platform != "win32":
    import fcntl

from collections.abc import Iterator

OTHER_FOLDER = "set SMOLSESSIONS_DATA_DIR to another folder"


class FolderInUseError(StartError):
    """Another service uses the data folder."""


@contextmanager
def locked(folder: Path, grace_s: float) -> Iterator[BinaryIO]:
    """Lock the folder, and yield the lock that the server inherits.

    Service and server have one lock each. If only the server's is taken, its service is dead. A process id would be no
    proof: it may be reused, or belong to another container.
    """
    with ExitStack() as stack:
        try:
            is_new = not folder.exists()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if is_new:  # it holds the key that opens the data
                (folder / ".gitignore").write_text("*\n")
            check_private(folder, "data folder")
            service = stack.enter_context((folder / "lock").open("a+b"))
            server = stack.enter_context((folder / "server.lock").open("a+b"))
            if not _lock(service):
                owner = (folder / "lock").read_text() or "unknown"
                in_use = f"the data folder {folder} is in use by process {owner}; stop it or {OTHER_FOLDER}"
                raise FolderInUseError(in_use)
            (folder / "lock").write_text(str(os.getpid()))
            (folder / "address").unlink(missing_ok=True)
            pid, socket_path = recorded_server(folder)
            deadline = time.monotonic() + grace_s
            while not _lock(server):  # the server of a dead service: only Linux signals it the death of its service
                if time.monotonic() > deadline:
                    raise StartError(
                        f"the data folder {folder} is in use by process {pid or 'unknown'}, the store of a service "
                        f"that is gone; it does not end when asked to: kill it or {OTHER_FOLDER}"
                    )
                ask(socket_path, b"SHUTDOWN NOSAVE")  # no snapshot; the append-only file is still completed
                time.sleep(0.02)
            if socket_path.parent != folder:
                with suppress(OSError):  # not empty: in use by the service of which this folder is a copy
                    socket_path.parent.rmdir()
        except OSError as error:
            raise unusable(folder, error) from error
        yield server


def record_address(folder: Path, address: str) -> None:
    """Note where the service of a folder listens, for `address_in`."""
    new = folder / f"address.{os.getpid()}"
    new.write_text(address)
    new.replace(folder / "address")


def address_in(folder: Path, wait_s: float = 0) -> str | None:
    """Return where the service listens that uses a folder now, or will listen in `wait_s`. None: no service does."""
    end = time.monotonic() + wait_s
    with suppress(OSError), (folder / "lock").open("rb") as service:
        while not _lock(service):
            with suppress(OSError, ValueError):  # it has not been written, or is no text
                if re.fullmatch(r"\S+:[0-9]+", address := (folder / "address").read_text()):
                    return address
            if time.monotonic() > end:
                break
            time.sleep(0.1)
    return None


def recorded_server(folder: Path) -> tuple[str, Path]:
    """Return process id and socket of the folder's last server."""
    pid, _, socket_path = os.fsdecode((folder / "server.lock").read_bytes()).partition(" ")
    return pid, Path(socket_path) if socket_path else folder / "store.sock"


def _lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def check_place(folder: Path) -> None:
    """Raise `StartError` if the folder could not be made or written. Writes nothing."""
    place = next(each for each in (folder, *folder.parents) if each.exists())
    for code, is_usable in {errno.EEXIST: place.is_dir(), errno.EACCES: os.access(place, os.W_OK | os.X_OK)}.items():
        if not is_usable:
            raise unusable(folder, OSError(code, os.strerror(code)))


def unusable(folder: Path, error: OSError) -> StartError:
    return StartError(
        f"the data folder {folder} cannot be used ({error.strerror}); make it a folder that this user can write, on a "
        f"disk with room, or {OTHER_FOLDER}"
    )


@contextmanager
def socket_place(folder: Path) -> Iterator[Path]:
    """Yield the path of the socket: in the data folder, or in a private one if that path is too long."""
    with ExitStack() as stack:
        path = folder / "store.sock"
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
            path = Path(stack.enter_context(TemporaryDirectory(prefix="smolsessions-")), "store.sock")
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
            raise StartError(f"{path} is too long for a socket; set SMOLSESSIONS_DATA_DIR or TMPDIR to a shorter one")
        stack.callback(path.unlink, missing_ok=True)
        yield path


def ask(socket_path: Path, command: bytes) -> bytes:
    """Return the start of the server's answer, empty without an answer."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1)
        connection.connect(str(socket_path))
        connection.sendall(command + b"\r\n")
        return connection.recv(4096)
    return b""
