"""Walk over the files of a workspace, in order, bounded in entries, depth and time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from smolsessions.workspace.paths import MAX_DEPTH, TEMPORARY, is_plain, open_folder, opened_folder

LEFT_BEHIND_S = 60


class FoundFile(NamedTuple):
    """File of a walk. `folder` is open until the walk goes on."""

    path: str
    name: str
    folder: int


class Walk:
    """One walk. It enters no link and no folder that `skips`, and yields only regular files with plain names."""

    def __init__(self, root: Path, most: int, seconds: float, skips: Callable[[str], bool] = lambda _: False) -> None:
        self._root = root
        self._left = most
        self._end = time.monotonic() + seconds
        self._skips = skips
        self.is_whole = True

    @property
    def is_late(self) -> bool:
        late = time.monotonic() > self._end
        self.is_whole &= not late
        return late

    def files(self) -> Iterator[FoundFile]:
        """Yield the files, by name within each folder. A root that is absent has no files."""
        with suppress(OSError), opened_folder(self._root) as folder:
            yield from self._files_in(folder, "", 1)

    def _files_in(self, folder: int, prefix: str, depth: int) -> Iterator[FoundFile]:
        for name, is_folder in sorted(self._entries(folder)):
            if self.is_late:
                return
            path = prefix + name
            if not is_folder:
                yield FoundFile(path, name, folder)
            elif depth < MAX_DEPTH and not self._skips(path):
                with suppress(OSError):  # it became a link, or is closed to this process
                    inner = open_folder(name, folder)
                    try:
                        yield from self._files_in(inner, f"{path}/", depth + 1)
                    finally:
                        os.close(inner)

    def _entries(self, folder: int) -> list[tuple[str, bool]]:
        """Return the names of files and folders, as far as the bound of entries allows."""
        found = []
        with os.scandir(folder) as entries:
            for entry in entries:
                self._left -= 1
                if self._left < 0:
                    self.is_whole = False
                    break
                with suppress(OSError):  # it is gone again
                    is_folder = entry.is_dir(follow_symlinks=False)
                    is_file = entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_nlink == 1
                    if (is_folder or is_file) and is_plain(entry.name):
                        found.append((entry.name, is_folder))
        return found


def usage(root: Path) -> tuple[int, int]:
    """Return the number of files and folders beneath a root, and the bytes of the files. Removes what crashes left."""
    count = size = 0
    for _, folders, files, folder in os.fwalk(root, onerror=None):
        count += len(folders) + len(files)
        for name in files:
            with suppress(FileNotFoundError):
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                size += found.st_size
                if name.startswith(TEMPORARY) and found.st_mtime < time.time() - LEFT_BEHIND_S:
                    os.unlink(name, dir_fd=folder)
    return count, size
