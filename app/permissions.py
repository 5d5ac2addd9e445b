"""Permissions of the service's own files."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from app.errors import StartError

if TYPE_CHECKING:
    from pathlib import Path


def check_private(path: Path, kind: str) -> None:
    """Raise `StartError` if all users of the machine may read a file or folder.

    A shared folder with the sticky bit passes, such as the image's volume. One of its users cannot close it, and the
    files with data in it are private by themselves.
    """
    mode = path.stat().st_mode
    if mode & stat.S_IROTH and not mode & stat.S_ISVTX:
        raise StartError(
            f"all users of this machine may read the {kind} {path}: run `chmod o-rwx {path}`, and replace the keys if "
            "others may have read them"
        )
