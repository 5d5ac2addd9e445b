"""The service's own files: their permissions, and the length of a socket's path."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from smolsessions.core.errors import StartError

SOCKET_PATH_BYTES = 100  # macOS takes 103, Linux 107


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
