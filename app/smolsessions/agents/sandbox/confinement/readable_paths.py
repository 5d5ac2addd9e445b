"""Allow-list of the paths that model-written code may read. Mounts and Landlock rules are built from it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

DEVICES = ("/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")
_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"),
    *("/etc/alternatives", "/etc/fonts", "/etc/group", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"),
    *("/etc/localtime", "/etc/mime.types", "/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd", "/etc/timezone"),
)
_ROOT = Path("/")


@dataclass
class ReadablePaths:
    """Readable paths. A folder that contains a hidden path is only listed, with its other entries in `whole`."""

    whole: list[Path] = field(default_factory=list)
    """Files, and folders with everything in them."""
    listed: list[Path] = field(default_factory=list)
    """Folders of which only the entries in `whole` are readable."""

    @classmethod
    def excluding(cls, hidden: Iterable[Path], folders: Iterable[Path] = ()) -> ReadablePaths:
        """Include Python, its packages, the agents' folders, `folders`, and parts of the system."""
        imported = [Path(entry) for entry in import_path()]
        libraries = map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)))
        installed = [Path(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
        wanted = [path.absolute() for path in (*map(Path, _SYSTEM), *installed, *libraries, *folders)]
        walk = _Walk(_hidden_folders(hidden, {path.resolve() for path in (*wanted, *imported)}))
        for path in wanted:
            walk.add(path)
        for path in imported:
            walk.add(path, names_with_dot=False)  # .env, .git and .ssh are no modules
        return cls(sorted(walk.whole), sorted(walk.listed))


def import_path() -> list[str]:
    """Return the folders that modules are imported from."""
    return [entry for entry in sys.path if os.path.isabs(entry) and os.path.isdir(entry)]  # noqa: PTH112, PTH117 - no error


class _Walk:
    def __init__(self, hidden: set[Path]) -> None:
        self.whole: set[Path] = set()
        self.listed: set[Path] = set()
        self._hidden = hidden
        self._expanded: set[Path] = set()

    def add(self, path: Path, *, names_with_dot: bool = True) -> None:
        """Add a path, or its entries if one below it is hidden."""
        real = path.resolve()
        if real == _ROOT or real in self._expanded or not self.whole.isdisjoint((path, *path.parents)):
            return
        if not os.access(real, os.R_OK) or not self._hidden.isdisjoint((real, *real.parents)):
            return
        entries = sorted(os.listdir(real)) if real.is_dir() else []  # noqa: PTH208 - names
        kept = [name for name in entries if names_with_dot or not name.startswith(".")]
        if len(kept) == len(entries) and not any(real in hidden.parents for hidden in self._hidden):
            self.whole.add(path)
            return
        self._expanded.add(real)
        self.listed.add(path)
        for name in kept:
            self.add(path / name)


def _hidden_folders(hidden: Iterable[Path], wanted: set[Path]) -> set[Path]:
    """Hide a file's whole folder, since a new file may replace it and its neighbours may be secrets as well."""
    closed = set()
    for path in hidden:
        for found in (path.absolute(), path.resolve()):
            is_itself = found.is_dir() or any(found.parent in (folder, *folder.parents) for folder in wanted)
            closed.add(found if is_itself else found.parent)
    return closed
