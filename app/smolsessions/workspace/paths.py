"""Paths that a model names: checked part by part, and opened beneath a root by directory file descriptors.

No system call gets a path of more than one part, and none follows a link. So a check holds for the opened file.
"""

from __future__ import annotations

import os
import secrets
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

MAX_CHARS = 1024
MAX_DEPTH = 32
MAX_NAME_BYTES = 255
TEMPORARY = ".smolsessions-"
"""Prefix of files that are being written. A crash may leave one behind."""
ABSENT = "there is no file of that name that you may use"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SEPARATORS = frozenset("/\\:")  # of parts, drives and streams, on some file system
_REFUSED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # control, invisible, half characters, line ends


class ToolDenied(Exception):  # noqa: N818 - a denial is an expected answer, and this is its name in the interface
    """The workspace refuses this. The message is for the model, and tells nothing about hidden files."""


class NotRegularError(OSError):
    """A link, a device, or a file with a second name."""


def parts_of(path: object) -> tuple[str, ...]:
    """Split a path beneath the root. Raises `ToolDenied` for one that is not plain."""
    if type(path) is not str or not path:
        raise ToolDenied("a path is a text such as notes/plan.md")
    parts = tuple(part for part in path.split("/") if part != ".")
    if len(path) > MAX_CHARS or len(parts) > MAX_DEPTH:
        raise ToolDenied(f"a path has at most {MAX_CHARS} characters and {MAX_DEPTH} parts")
    if not parts or not all(map(is_plain, parts)):
        raise ToolDenied(
            "a path is relative to the workspace, with / between plain names: no .. and no leading / or ~, no "
            "backslash or colon, no control or invisible character, no name that ends with a dot or a blank"
        )
    return parts


def is_plain(name: str) -> bool:
    """Return whether a name of a file or folder means the same on every file system, and is none of the service's."""
    if not name or name[0] == "~" or name[-1] == "." or name[-1].isspace() or _SEPARATORS & set(name):
        return False
    if any(unicodedata.category(letter) in _REFUSED_CATEGORIES for letter in name):
        return False
    return len(name.encode()) <= MAX_NAME_BYTES and not folded(name).startswith(TEMPORARY)


def folded(text: str) -> str:
    """Return a text as a file system without case and with other Unicode forms compares it."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


@contextmanager
def opened_folder(root: Path, parts: Sequence[str] = (), *, create: bool = False) -> Iterator[int]:
    """Open a folder beneath the root. Raises `OSError`, also if a part is a link. `create` makes missing folders."""
    if create:
        root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
    folder = os.open(root, _FOLDER)
    try:
        for part in parts:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=folder)
            inner = open_folder(part, folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def open_folder(name: str, folder: int) -> int:
    """Open a folder in an open folder. Raises `OSError`, also if it is a link."""
    return os.open(name, _FOLDER, dir_fd=folder)


def read_file(name: str, folder: int, most: int) -> bytes | None:
    """Read a regular file with one name of an open folder. Returns None if it is larger than `most` bytes.

    Raises `OSError` for anything else, such as a link, a device or a file with a second name.
    """
    _check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False))  # to open a device may already change it
    with open(os.open(name, _READ, dir_fd=folder), "rb") as file:  # noqa: PTH123 - a descriptor
        found = os.fstat(file.fileno())
        _check_regular(found)
        data = file.read(most + 1) if found.st_size <= most else None
    return data if data is None or len(data) <= most else None


def write_file(name: str, folder: int, data: bytes) -> None:
    """Replace a file of an open folder as a whole, or make it. Raises `OSError`."""
    mode = 0o600
    with suppress(FileNotFoundError):
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        _check_regular(found)
        mode = stat.S_IMODE(found.st_mode) & 0o666
    temporary = f"{TEMPORARY}{secrets.token_hex(8)}"
    try:
        with open(os.open(temporary, _WRITE, 0o600, dir_fd=folder), "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:  # also an interrupt: half a file would stay
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _check_regular(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        raise NotRegularError("this is no regular file with one name")
