"""Access list of a workspace: gitignore patterns that say which files an agent may write, read, or not notice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

from smolsessions.workspace.paths import ToolDenied, folded, is_plain

Access = Literal["hidden", "editable", "readonly", "unlisted"]
MAX_PATTERN_CHARS = 256


class AccessList:
    """Access by path. Hidden patterns win over editable ones, these over readonly ones, and the rest is denied."""

    def __init__(self, editable: Sequence[str], readonly: Sequence[str], hidden: Sequence[str]) -> None:
        """Raises `ValueError` with a sentence about a pattern that is no use."""
        self.editable, self.readonly = tuple(editable), tuple(readonly)
        self._editable = _compiled("editable", editable)
        self._readonly = _compiled("readonly", readonly)
        self._hidden = _compiled("hidden", hidden)
        self._hidden_folded = _compiled("hidden", [folded(pattern) for pattern in hidden])

    def of(self, path: str) -> Access:
        if self._is_hidden(path) or self._is_hidden(path + "/"):  # secrets/ hides a file of that name, too
            return "hidden"
        if self._editable.match_file(path):
            return "editable"
        return "readonly" if self._readonly.match_file(path) else "unlisted"

    def shows(self, path: str) -> bool:
        return self.of(path) in {"editable", "readonly"}

    def hides_folder(self, path: str) -> bool:
        return self._is_hidden(path + "/")

    def _is_hidden(self, path: str) -> bool:
        # A file system may take another case or Unicode form for the same name.
        return bool(self._hidden.match_file(path) or self._hidden_folded.match_file(folded(path)))


def compiled_glob(pattern: object) -> Any:
    """Compile the pattern of a search, which a model wrote. Raises `ToolDenied`."""
    if type(pattern) is not str:
        raise ToolDenied("a pattern is a text such as notes/**/*.md")
    if pattern.startswith("/"):
        raise ToolDenied("a pattern is relative to the workspace, without a / at its beginning")
    if flaw := _flaw(pattern):
        raise ToolDenied(f"the pattern {flaw}")
    return _spec([pattern])


def _compiled(kind: str, patterns: Sequence[str]) -> Any:
    for number, pattern in enumerate(patterns, 1):
        if flaw := _flaw(pattern):
            raise ValueError(f"{kind}, entry {number}: it {flaw}")
    return _spec(patterns)


def _spec(patterns: Sequence[str]) -> Any:
    from pathspec import GitIgnoreSpec  # noqa: PLC0415 - an optional dependency

    return GitIgnoreSpec.from_lines(patterns, backend="re2")  # takes linear time: models write patterns, too


def _flaw(pattern: object) -> str:
    """Return why gitignore would not take a pattern as it is meant, or nothing."""
    if type(pattern) is not str or not pattern.strip() or len(pattern) > MAX_PATTERN_CHARS:
        return f"is not a text of 1 to {MAX_PATTERN_CHARS} characters; write one such as notes/**"
    if pattern[0] == "!":
        return "begins with !, which would undo others; list what is meant instead"
    if pattern[0] == "#":
        return "begins with #, which makes it a comment; write [#] for this character"
    parts = pattern.removeprefix("/").removesuffix("/").split("/")
    if not all(map(is_plain, parts)):
        return (
            "has a part that no path has (.., ., //, a backslash, a colon, a control character, a blank at an end); "
            "leave it out"
        )
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern  # noqa: PLC0415 - an optional dependency

    with suppress(re.error, ValueError):
        if GitIgnoreSpecPattern(pattern).include:
            return ""
    return "matches nothing; correct its brackets"
