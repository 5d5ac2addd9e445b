"""Workspace: the files beneath a root that an access list lets an agent read, write and search."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

from smolsessions.workspace.access import AccessList, compiled_glob
from smolsessions.workspace.bounds import Bounds, Found, Match, T
from smolsessions.workspace.paths import ABSENT, ToolDenied, opened_folder, parts_of, read_file, write_file
from smolsessions.workspace.walk import FoundFile, Walk, usage

log = logging.getLogger(__name__)

UNWRITTEN = {"action": "workspace.unwritten"}
MAX_REGEX_CHARS = 1000
REGEX_MEMORY = 1024 * 1024
SEARCHED_OF_LINE = 4096  # bytes: an expression of this memory takes at most half a second for them
SHOWN_OF_LINE = 300
_KIB = 1024
_FAULTS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE})
"""Errors that the operator fixes."""
_LOCKS = tuple(threading.Lock() for _ in range(64))
"""For writes, by root: an edit reads and writes, and parallel calls share the bounds."""


class Workspace:
    """Files beneath a root. Every refusal is a `ToolDenied`, and a hidden file is refused like one that is absent."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        editable: Sequence[str] = (),
        readonly: Sequence[str] = (),
        hidden: Sequence[str] = (),
        bounds: Bounds | None = None,
    ) -> None:
        """The patterns are gitignore's, without `!`, else `ValueError`. The root is made at the first write."""
        self.root = Path(root).absolute()
        self.access = AccessList(editable, readonly, hidden)
        self._bounds = bounds or Bounds()
        self._lock = _LOCKS[hash(self.root) % len(_LOCKS)]

    def read(self, path: str) -> str:
        parts = parts_of(path)
        if not self.access.shows("/".join(parts)):
            raise ToolDenied(ABSENT)
        return self._text(parts)

    def write(self, path: str, text: str) -> None:
        """Make a file with its folders, or replace it as a whole."""
        parts = self._writable(path)
        data = self._data(text)
        with self._lock:
            self._replace(parts, data)

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace the one place of a file that holds a text."""
        parts = self._writable(path)
        if type(old) is not str or type(new) is not str or not old:
            raise ToolDenied("the old and the new text are texts, and the old one is not empty")
        with self._lock:
            text = self._text(parts)
            place = text.find(old)
            if place < 0:
                raise ToolDenied("the file does not hold the old text; read it, and copy the text exactly")
            if text.find(old, place + 1) >= 0:
                raise ToolDenied("the file holds the old text more than once; take in lines around it")
            self._replace(parts, self._data(text[:place] + new + text[place + len(old) :]))

    def glob(self, pattern: str = "**") -> Found[str]:
        """Return the paths that match a gitignore pattern and that the agent may read, by name."""
        walk = self._walk()
        return self._first(walk, (file.path for file in self._matching(walk, pattern)))

    def grep(self, pattern: str, glob: str = "**") -> Found[Match]:
        """Return the lines that match an RE2 expression, in the files that `glob` matches."""
        expression, walk = _compiled(pattern), self._walk()

        def matches() -> Iterator[Match]:
            for file in self._matching(walk, glob):
                try:
                    data = read_file(file.name, file.folder, self._bounds.searched_bytes)
                except OSError:
                    continue
                walk.is_whole &= data is not None
                lines = BytesIO(data) if data is not None and _decoded(data) is not None else ()
                for number, ended_line in enumerate(lines, 1):
                    if walk.is_late:
                        return
                    line = ended_line.rstrip(b"\r\n")
                    if expression.search(line[:SEARCHED_OF_LINE]):
                        yield Match(file.path, number, _shown(line))

        return self._first(walk, matches())

    def _writable(self, path: str) -> tuple[str, ...]:
        parts = parts_of(path)
        access = self.access.of("/".join(parts))
        if access == "readonly":
            raise ToolDenied("this path is read-only")
        if access != "editable":
            raise ToolDenied("no file of this path may be written")
        return parts

    def _text(self, parts: tuple[str, ...]) -> str:
        try:
            with opened_folder(self.root, parts[:-1]) as folder:
                data = read_file(parts[-1], folder, self._bounds.file_bytes)
        except OSError:
            raise ToolDenied(ABSENT) from None
        if data is None:
            raise ToolDenied(f"the file is larger than {self._bounds.file_bytes // _KIB} KiB; search in it instead")
        text = _decoded(data)
        if text is None:
            raise ToolDenied("the file is no text in UTF-8")
        return text

    def _data(self, text: object) -> bytes:
        if type(text) is not str:
            raise ToolDenied("the content is a text")
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise ToolDenied("the content holds half a character") from None
        if b"\0" in data:
            raise ToolDenied("the content holds a NUL; a file is text")
        if len(data) > self._bounds.file_bytes:
            raise ToolDenied(f"the content is larger than {self._bounds.file_bytes // _KIB} KiB; write several files")
        return data

    def _replace(self, parts: tuple[str, ...], data: bytes) -> None:
        count = used = old = 0
        try:
            try:
                count, used = usage(self.root)
                with opened_folder(self.root, parts[:-1]) as folder:
                    old = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False).st_size
            except FileNotFoundError:
                count += len(parts)
            if count > self._bounds.entries:
                raise ToolDenied(f"the workspace is full: it has room for {self._bounds.entries} files and folders")
            if len(data) > old and used - old + len(data) > self._bounds.total_bytes:
                room = self._bounds.total_bytes // _KIB
                raise ToolDenied(f"the workspace is full: it has room for {room} KiB; shorten other files")
            with opened_folder(self.root, parts[:-1], create=True) as folder:
                write_file(parts[-1], folder, data)
        except OSError as error:
            if error.errno in _FAULTS:
                log.warning("a file of %s cannot be written: %s", self.root, error.strerror, extra=UNWRITTEN)
            raise ToolDenied(
                "the file cannot be written: a part of its path is something else, or there is no room"
            ) from None

    def _walk(self) -> Walk:
        return Walk(self.root, self._bounds.searched_entries, self._bounds.search_s, self.access.hides_folder)

    def _matching(self, walk: Walk, pattern: str) -> Iterator[FoundFile]:
        spec = compiled_glob(pattern)
        return (file for file in walk.files() if spec.match_file(file.path) and self.access.shows(file.path))

    def _first(self, walk: Walk, results: Iterable[T]) -> Found[T]:
        """Return as many results as the bound allows. The search ends there."""
        found = Found(islice(results, self._bounds.matches + 1))
        found.is_whole = walk.is_whole and len(found) <= self._bounds.matches
        del found[self._bounds.matches :]
        return found


def _decoded(data: bytes) -> str | None:
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None


def _shown(line: bytes) -> str:
    text = line[:SEARCHED_OF_LINE].decode(errors="ignore")
    return text if len(text) <= SHOWN_OF_LINE else f"{text[:SHOWN_OF_LINE]} …"


def _compiled(pattern: object) -> Any:
    import re2  # noqa: PLC0415 - an optional dependency

    if type(pattern) is not str or len(pattern) > MAX_REGEX_CHARS:
        raise ToolDenied(f"a pattern is a text of at most {MAX_REGEX_CHARS} characters")
    options = re2.Options()
    options.log_errors, options.max_mem = False, REGEX_MEMORY
    try:
        return re2.compile(pattern.encode(), options)
    except (re2.error, UnicodeEncodeError):
        raise ToolDenied("the pattern is no RE2 expression: look-around and back-references are not known") from None
