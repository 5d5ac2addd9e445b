"""Files of the operator and of the service: their text, their permissions, and the length of a socket's path."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from smolsessions.core.errors import StartError

SOCKET_PATH_BYTES = 100  # macOS takes 103, Linux 107
MOST_BYTES = 4 * 1024 * 1024  # of a configuration, a template or a tool


def read_text(path: Path, name: str) -> str:
    """Return the text of a file. Raises `StartError`, whose sentence begins with the name."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            most = f"{MOST_BYTES // 1024**2} MiB"
            raise StartError(f"{name} is not a regular file, or it is larger than {most}: name another path")
        data = path.read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise StartError(f"{name} cannot be read ({error.strerror}): correct the path or its permissions") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise StartError(f"{name}, line {line}: not UTF-8: save the file in this encoding") from None


def check_private(path: Path, kind: str) -> None:
    """Raise `StartError` if all users of the machine may read a file or folder. A link counts by its target."""
    if open_to_all(path.stat()):
        raise StartError(
            f"all users of this machine may read the {kind} {path}: run `chmod o-rwx {path}`, and replace the "
            "secrets in it if others may have read them"
        )


def open_to_all(found: os.stat_result) -> bool:
    """Return whether all users of the machine may read a file or folder.

    A shared folder with the sticky bit does not count, such as the image's volume. One of its users cannot close it,
    and the files with data in it are private by themselves.
    """
    is_shared = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    return bool(found.st_mode & stat.S_IROTH) and not is_shared
