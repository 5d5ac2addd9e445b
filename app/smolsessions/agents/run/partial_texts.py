"""Readers of a model's text while it is still being written: fields of a JSON object, and code between tags."""

from __future__ import annotations

from typing import Literal

from jiter import from_json

from smolsessions.agents.values.json_forms import json_text, utf8_text
from smolsessions.core.events import MessageChannel

SMALL_CHARS = 4096


class PartialJson:
    """Incremental reader of the values under some keys of a JSON object.

    A text is returned as it grows, any other value as JSON at the end. Malformed JSON yields nothing more.

    The work is in proportion to the length: inside a text, a fragment is parsed alone. Elsewhere the rest is parsed
    again once it has grown by an eighth, so a text behind a large value may come a little later.
    """

    def __init__(self, *keys: str) -> None:
        self._keys = keys
        self._text = ""
        self._unread: list[str] = []
        self._chars = self._read_at = 0
        self._returned: dict[str, str] = {}
        self._others: dict[str, object] = {}  # values of no text, before `_text`
        self._names: set[str] = set()  # those before `_text`, and the one that it begins with

    def feed(self, fragment: str) -> list[tuple[str, str]]:
        """Return pairs of a key and the text that this fragment adds to its value, in order."""
        self._unread.append(fragment)
        self._chars += len(fragment)
        return self._read() if self._chars >= self._read_at else []

    def end(self) -> list[tuple[str, str]]:
        """Return the rest of the texts, and the values that are no texts, of an object that is whole."""
        pieces, whole = self._read(), self._parsed(self._text)
        values = {} if whole is None else self._others | whole
        self._text = ""
        others = {key: value for key, value in values.items() if key in self._keys and not isinstance(value, str)}
        return pieces + [(key, json_text(value)) for key, value in others.items()]

    def _read(self) -> list[tuple[str, str]]:
        self._text += "".join(self._unread)
        self._unread.clear()
        open_text = self._parsed(self._text + '"}')
        found = open_text or self._parsed(self._text, "trailing-strings") or {}
        pieces = []
        for key, value in found.items():
            known = self._returned.get(key, "")
            if key in self._keys and isinstance(value, str) and value.startswith(known) and value != known:
                pieces.append((key, value[len(known) :]))
                self._returned[key] = value
        if open_text:  # later fragments belong to the last text
            key = next(reversed(open_text))
            self._others |= {name: value for name, value in found.items() if not isinstance(value, str)}
            self._text, self._returned[key] = f'{{{json_text(key)}: "', ""
            self._names |= found.keys()
        self._chars = len(self._text)
        self._read_at = self._chars * 9 // 8 if self._chars > SMALL_CHARS else 0
        return pieces

    def _parsed(self, text: str, partial_mode: Literal[False, "trailing-strings"] = False) -> dict[str, object] | None:
        """Return an object, or None if the text is none, or repeats a key."""
        try:
            found = from_json(utf8_text(text).encode(), partial_mode=partial_mode, catch_duplicate_keys=True)
        except ValueError:
            return None
        is_object = isinstance(found, dict) and self._names.isdisjoint(list(found)[1:])
        return found if is_object else None


class CodeSplitter:
    r"""Incremental reader that splits text into thoughts and code at a CodeAgent's `code_block_tags`.

    Tags are literal. One line break after an opening tag, and one before a closing tag or the end, is no part of the
    code. A blank line (`\n\n`) joins the code of several blocks, as in smolagents. A closing tag outside a block is
    thought. A block need not be closed: the closing tag is a stop sequence, so providers seldom send it.
    """

    def __init__(self, opening: str, closing: str) -> None:
        self._opening, self._closing = opening, closing
        self._tag = opening  # the next one
        self._in_code = False
        self._fresh = False  # nothing of this block was returned, not even its first line break
        self._has_code = False
        self._joint = ""  # goes before the next code
        self._held = ""

    def feed(self, fragment: str) -> list[tuple[MessageChannel, str]]:
        """Return the pieces that this fragment adds, in order. A possible beginning of a tag waits."""
        text, at = self._held + fragment, 0
        pieces: list[tuple[MessageChannel, str]] = []
        while self._tag and (found := text.find(self._tag, at)) >= 0:
            pieces.append(self._piece(text[at:found], is_last=True))
            at = found + len(self._tag)
            self._in_code = self._fresh = not self._in_code
            self._tag = self._closing if self._in_code else self._opening
            self._joint = "\n\n" if self._has_code else ""
        tag = f"\n{self._tag}" if self._in_code else self._tag
        # The longest end of the text that may begin a tag: a proper prefix of it.
        begun = (size for each in {tag, self._tag} for size in range(1, len(each)) if text.endswith(each[:size], at))
        end = len(text) - max(begun, default=0)
        self._held = text[end:]
        return [piece for piece in [*pieces, self._piece(text[at:end])] if piece[1]]

    def end(self) -> list[tuple[MessageChannel, str]]:
        held, self._held = self._held, ""
        return [piece for piece in [self._piece(held, is_last=True)] if piece[1]]

    def _piece(self, text: str, *, is_last: bool = False) -> tuple[MessageChannel, str]:
        if not self._in_code or not text:
            return "thought", text
        text = text.removeprefix("\n") if self._fresh else text
        self._fresh = False
        text = text.removesuffix("\n") if is_last else text
        if text:
            text, self._joint, self._has_code = self._joint + text, "", True
        return "code", text
