"""Folders of conversations: one below the service's directory for each, made at its first file."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from smolsessions.core.errors import StartError
from smolsessions.workspace.bounds import Bounds
from smolsessions.workspace.paths import ToolDenied, opened_folder, parts_of, read_file, write_file
from smolsessions.workspace.walk import Walk

MARK = ".identity"
_MARK = re.compile("[0-9a-f]{32}")
_DELETED, _NEW = ".smolsessions-deleted-", ".smolsessions-new-"
_READ_S = 30.0
MOST_TIMES = 2  # the bytes that a workspace may hold: several writes at once may pass that bound
_MARK_S = 2.0
_PENDING_S = 600  # the files of a new conversation are there a moment before the conversation


class ConversationFolders:
    """Folders of conversations below one directory, which all processes of a store share (`WorkspaceFolders`)."""

    def __init__(self, base: Path) -> None:
        self.base = base.absolute()
        self._bounds = Bounds()

    def of(self, owner: str, conversation_id: str) -> Path:
        return self.base / _encoded(owner) / _encoded(conversation_id)

    def mark(self) -> str:
        """Return the identity of the directory, which its first process writes. Raises `OSError`, `StartError`."""
        self.base.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.base / MARK
        if self.is_used() and not path.exists():
            raise StartError(
                f"SMOLSESSIONS_WORKSPACES_DIR {self.base} holds files, but not {MARK} of workspaces: name an empty "
                "directory, as the files of conversations that the store does not know are deleted"
            )
        with suppress(FileExistsError), path.open("x") as file:
            file.write(secrets.token_hex(16))
        end = time.monotonic() + _MARK_S
        while not _MARK.fullmatch(found := path.read_text().strip()):  # another process is writing it
            if time.monotonic() > end:
                raise OSError(f"{path} holds no identity")
            time.sleep(0.05)
        return found

    def is_used(self) -> bool:
        """Return whether the directory holds files. Those of a file system do not count. Raises `OSError`."""
        return any(path.name[0] != "." and path.name != "lost+found" for path in self.base.iterdir())

    def files(self, owner: str, conversation_id: str) -> tuple[dict[str, bytes], dict[str, str]]:
        found: dict[str, bytes] = {}
        left_out: dict[str, str] = {}
        bounds, size = self._bounds, 0
        walk = Walk(self.of(owner, conversation_id), bounds.searched_entries, _READ_S)
        for file in walk.files():
            with suppress(OSError):
                data = read_file(file.name, file.folder, bounds.file_bytes)
                if data is None:
                    left_out[file.path] = f"is larger than {bounds.file_bytes} bytes"
                    continue
                size += len(data)
                if size > MOST_TIMES * bounds.total_bytes:
                    left_out[""] = f"holds more than {MOST_TIMES * bounds.total_bytes} bytes"
                    break
                found[file.path] = data
        if not walk.is_whole:
            left_out[""] = f"holds more than {bounds.searched_entries} files and folders, or is read too slowly"
        return found, left_out

    def listed(self, owner: str, conversation_id: str) -> tuple[dict[str, tuple[int, float]], bool]:
        found = {}
        walk = Walk(self.of(owner, conversation_id), self._bounds.searched_entries, _READ_S)
        for file in walk.files():
            with suppress(OSError):
                stat = os.stat(file.name, dir_fd=file.folder, follow_symlinks=False)
                if stat.st_size <= self._bounds.file_bytes:
                    found[file.path] = stat.st_size, stat.st_mtime
        return found, walk.is_whole

    def file(self, owner: str, conversation_id: str, path: str) -> bytes | None:
        with suppress(OSError, ToolDenied):
            parts = parts_of(path)
            if "/".join(parts) == path:
                with opened_folder(self.of(owner, conversation_id), parts[:-1]) as folder:
                    return read_file(parts[-1], folder, self._bounds.file_bytes)
        return None

    def refusal(self, files: Mapping[str, bytes]) -> tuple[str, str] | None:
        bounds, folders = self._bounds, set[str]()
        for path, data in files.items():
            try:
                parts = parts_of(path)
            except ToolDenied as denial:
                return path, f"is no path that a workspace has: {denial}"
            if "/".join(parts) != path:
                return path, "is not the shortest form of its path"
            if len(data) > bounds.file_bytes:
                return path, f"is larger than {bounds.file_bytes} bytes"
            folders |= {"/".join(parts[:end]) for end in range(1, len(parts))}
        if both := folders & files.keys():
            return min(both), "is a file and a folder"
        if len(files) + len(folders) > bounds.entries or sum(map(len, files.values())) > bounds.total_bytes:
            return "", f"holds more than {bounds.entries} files and folders or {bounds.total_bytes} bytes"
        return None

    def create(self, owner: str, conversation_id: str, files: Mapping[str, bytes]) -> Callable[[], None]:
        new, before = (self.base / f"{kind}{secrets.token_hex(8)}" for kind in (_NEW, _DELETED))
        place = self.of(owner, conversation_id)
        try:
            for path, data in files.items():
                parts = parts_of(path)
                with opened_folder(new, parts[:-1], create=True) as folder:
                    write_file(parts[-1], folder, data)
            os.utime(new)
            place.parent.mkdir(mode=0o700, exist_ok=True)
            with suppress(FileNotFoundError):  # else of a process that was killed before it wrote their conversation
                place.rename(before)
            new.rename(place)
        finally:
            shutil.rmtree(new, ignore_errors=True)

        def restore() -> None:
            self.delete(owner, conversation_id)
            with suppress(FileNotFoundError):
                before.rename(place)

        return restore

    def delete(self, owner: str, conversation_id: str) -> None:
        gone = self.base / f"{_DELETED}{secrets.token_hex(8)}"
        with suppress(FileNotFoundError):
            self.of(owner, conversation_id).rename(gone)  # at once for other processes
            shutil.rmtree(gone, ignore_errors=True)

    def conversations(self) -> Iterator[tuple[str, str]]:
        """Yield owner and id of each folder that is not pending. Removes what killed processes left."""

        def is_pending(folder: Path) -> bool:
            try:
                return time.time() - folder.stat().st_mtime < _PENDING_S
            except FileNotFoundError:  # renamed meanwhile
                return True

        for owner in sorted(self.base.iterdir()):
            if owner.name.startswith(_DELETED) or (owner.name.startswith(_NEW) and not is_pending(owner)):
                shutil.rmtree(owner, ignore_errors=True)
            elif self.base / _encoded(unquote(owner.name)) == owner and owner.is_dir():
                for folder in sorted(owner.iterdir()):
                    names = unquote(owner.name), unquote(folder.name)
                    if self.of(*names) == folder and not is_pending(folder):
                        yield names


def _encoded(name: str) -> str:
    """Encode a name as one of a folder, which differs from others on every file system, too."""

    def escaped(letter: re.Match[str]) -> str:
        return "".join(f"%{byte:02x}" for byte in letter[0].encode(errors="replace"))

    return re.sub("[^a-z0-9_-]", escaped, name)
