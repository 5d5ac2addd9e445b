"""Allow-list of the paths that model-written code may read. Mounts and Landlock rules are built from it."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import all_suffixes
from pathlib import Path

# A shared mapping of /dev/zero is memory that no limit counts.
DEVICES = ("/dev/full", "/dev/null", "/dev/random", "/dev/urandom")
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
        """Include Python, its packages, the modules of the import path, `folders`, and parts of the system."""
        imported = [Path(entry) for entry in import_path()]
        libraries = map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)))
        installed = [Path(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
        wanted = [path.absolute() for path in (*map(Path, _SYSTEM), *installed, *libraries, *folders)]
        readable, closed = {path.resolve() for path in (*wanted, *imported)}, set()
        for path in hidden:  # with its folder: a new file may replace it, and its neighbours may be secrets as well
            for found in (path.absolute(), path.resolve()):
                is_itself = found.is_dir() or any(found.parent in (folder, *folder.parents) for folder in readable)
                closed.add(found if is_itself else found.parent)
        walk = _Walk(closed)
        for path in wanted:
            walk.add(path)
        for path in imported:
            walk.add_modules(path)
        return cls(sorted(walk.whole), sorted(walk.listed))


def import_path() -> list[str]:
    return [entry for entry in sys.path if os.path.isabs(entry) and os.path.isdir(entry)]  # noqa: PTH112, PTH117 - no error


class _Walk:
    def __init__(self, hidden: set[Path]) -> None:
        self.whole: set[Path] = set()
        self.listed: set[Path] = set()
        self._hidden = hidden
        self._expanded: set[Path] = set()

    def add(self, path: Path) -> None:
        """Add a path, or its entries if one below it is hidden."""
        real = path.resolve()
        if not self._may_add(path, real):
            return
        if any(real in hidden.parents for hidden in self._hidden):
            self._expand(path, real, self.add, _entries(path))
        else:
            self.whole.add(path)

    def add_modules(self, path: Path) -> None:
        """Add the modules and packages of an import folder. A project keeps keys and data beside them."""
        real = path.resolve()
        if self._may_add(path, real):
            self._expand(path, real, self._add_public, filter(_is_importable, _entries(path)))

    def _add_public(self, path: Path) -> None:
        """Add a path without what only its owner may read."""
        real = path.resolve()
        if not self._may_add(path, real) or not _is_public(real):
            return
        below = (Path(folder, name) for folder, *names in os.walk(real) for name in (*names[0], *names[1]))
        if any(real in hidden.parents for hidden in self._hidden) or not all(map(_is_public, below)):
            self._expand(path, real, self._add_public, _entries(path))
        else:
            self.whole.add(path)

    def _may_add(self, path: Path, real: Path) -> bool:
        if real == _ROOT or real in self._expanded or not self.whole.isdisjoint((path, *path.parents)):
            return False
        return os.access(real, os.R_OK) and self._hidden.isdisjoint((real, *real.parents))

    def _expand(self, path: Path, real: Path, add: Callable[[Path], object], entries: Iterable[Path]) -> None:
        self._expanded.add(real)
        self.listed.add(path)
        for entry in entries:
            add(entry)


def _entries(path: Path) -> list[Path]:
    return sorted(path.iterdir())


def _is_importable(path: Path, depth: int = 3) -> bool:
    """True for a module, a folder with modules in it or a little below, and the metadata of an installed package."""
    if path.suffix in {".dist-info", ".egg-info"}:
        return True
    if not path.is_dir():
        return path.name.endswith(tuple(all_suffixes()))
    if not depth or not path.name.isidentifier():
        return False
    with suppress(OSError):
        return any(_is_importable(entry, depth - 1) for entry in path.iterdir())
    return False


def _is_public(path: Path) -> bool:
    """True if every user may read it. A link is as public as what it leads to."""
    try:
        mode = path.stat().st_mode
    except OSError:  # a dangling link shows nothing
        return True
    return bool(mode & stat.S_IROTH) and (not stat.S_ISDIR(mode) or bool(mode & stat.S_IXOTH))
