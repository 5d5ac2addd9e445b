"""What a JSON object says under some of its keys, while it is still being written: a model's arguments as they come."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Literal

from smolsessions.agents.values.json_forms import utf8_text

if TYPE_CHECKING:
    from collections.abc import Callable

    Reader = Callable[["PartialJson", str, int], int]

_SPACE = re.compile(r"[ \t\n\r]*")
_RUN = re.compile(r'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')  # to a quote, or an escape that is cut
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{0,4})?')
_SCALAR_CHARS = re.compile(r"[-+.0-9A-Za-z]*")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null|NaN|-?Infinity")
_VALUE = '{["-0123456789tfnNI'  # what a value begins with; NaN and Infinity as json.loads takes them


class PartialJson:
    r"""The values under the given top-level keys of a JSON object that arrives in fragments, cut anywhere.

    A string is given decoded, any other value as its JSON text. Of a key that comes twice the first value is given.
    All that is given is valid text: half of a surrogate pair becomes U+FFFD, its halves may be a fragment apart.
    What is no JSON object, or no longer one, gives nothing more and raises nothing; as for `json.loads`, a line break
    in a string that is not written `\n` is such a case. A number may have been given before it turns out to be none.
    """

    def __init__(self, *keys: str) -> None:
        self._wanted = set(keys)
        self._read: Reader | None = PartialJson._read_mark  # reads what comes next; None: nothing more is given
        self._allowed = "{"  # marks that may come next
        self._closers: list[str] = []  # of the objects and arrays that are open
        self._escape = ""  # what came of an escape that is cut
        self._scalar: list[str] = []
        self._keep: Literal["nothing", "decoded", "raw"] = "nothing"
        self._kept: list[str] = []
        self._key = ""
        self._in_wanted = False
        self._pairs = _Pairs()
        self._given: list[tuple[str, str]] = []

    def feed(self, fragment: str) -> list[tuple[str, str]]:
        """Give the keys and what this fragment adds to their texts, in order."""
        at = 0
        while self._read and at < len(fragment):
            raw = self._keep == "raw"
            end = self._read(self, fragment, at)
            if raw or self._keep == "raw":  # also the mark that begins the value, and the one that ends it
                self._kept.append(fragment[at:end])
            if self._in_wanted and self._keep == "nothing":
                self._end_wanted()
            at = end
        if self._in_wanted:
            self._give(self._pairs.join(self._take_kept()))
        given, self._given = self._given, []
        return given

    def end(self) -> list[tuple[str, str]]:
        """Give what was held back, as no more comes: U+FFFD for half of a surrogate pair."""
        self._read = None
        self._give(self._pairs.end())
        given, self._given = self._given, []
        return given

    def _read_mark(self, fragment: str, at: int) -> int:
        """Read white space, or what stands between strings and scalars, or how one of them begins."""
        if end := _end(_SPACE, fragment, at):
            return end
        mark = fragment[at]
        if mark not in self._allowed:
            return self._give_up(at)
        if mark in "}]":
            self._closers.pop()
            self._end_value()
        elif mark == ":":
            self._allowed = _VALUE
        elif mark == ",":
            self._allowed = '"' if self._closers[-1] == "}" else _VALUE
        elif "[" not in self._allowed and mark == '"':  # where no array may stand, a key does
            self._begin_key()
        else:
            return self._begin_value(mark, at)
        return at + 1

    def _begin_key(self) -> None:
        self._read, self._allowed = PartialJson._read_string, ":"
        if len(self._closers) == 1:
            self._keep = "decoded"

    def _begin_value(self, mark: str, at: int) -> int:
        if len(self._closers) == 1 and self._key in self._wanted:
            self._wanted.remove(self._key)
            self._in_wanted = True
            self._keep = "decoded" if mark == '"' else "raw"
        if mark in "{[":
            self._closers.append("}" if mark == "{" else "]")
            self._allowed = '"}' if mark == "{" else _VALUE + "]"
        elif mark == '"':
            self._read, self._allowed = PartialJson._read_string, ""
        else:
            self._read = PartialJson._read_scalar
            return at
        return at + 1

    def _end_value(self) -> None:
        self._read = PartialJson._read_mark
        self._allowed = "," + self._closers[-1] if self._closers else ""
        if len(self._closers) == 1:
            self._keep = "nothing"

    def _read_string(self, fragment: str, at: int) -> int:
        if end := _end(_RUN, fragment, at):
            self._hear(fragment[at:end])
            return end
        if fragment[at] == "\\":
            self._read, self._escape = PartialJson._read_escape, "\\"
        elif fragment[at] == '"':
            self._end_string()
        else:
            return self._give_up(at)
        return at + 1

    def _read_escape(self, fragment: str, at: int) -> int:
        came = len(self._escape)
        escape = self._escape + fragment[at : at + len(r"\uFFFF") - came]
        end = _end(_ESCAPE, escape, 0)
        if end == came:
            return self._give_up(at)
        self._escape = escape[:end]
        if end == (len(r"\uFFFF") if escape[1] == "u" else len(r"\n")):
            self._read = PartialJson._read_string
            self._hear(self._escape)
        return at + end - came

    def _end_string(self) -> None:
        if self._allowed != ":":
            self._end_value()
            return
        self._read = PartialJson._read_mark
        if len(self._closers) == 1:
            self._key, self._keep = _paired(self._take_kept()), "nothing"

    def _read_scalar(self, fragment: str, at: int) -> int:
        if end := _end(_SCALAR_CHARS, fragment, at):
            self._scalar.append(fragment[at:end])
            return end
        if not _SCALAR.fullmatch("".join(self._scalar)):
            return self._give_up(at)
        self._scalar.clear()
        self._end_value()
        return at

    def _hear(self, text: str) -> None:
        if self._keep == "decoded":
            self._kept.append(json.loads(f'"{text}"') if "\\" in text else text)

    def _take_kept(self) -> str:
        kept = "".join(self._kept)
        self._kept.clear()
        return kept

    def _give(self, text: str) -> None:
        if text:
            self._given.append((self._key, text))

    def _end_wanted(self) -> None:
        self._give(self._pairs.join(self._take_kept()) + self._pairs.end())
        self._in_wanted = False
        if not self._wanted:
            self._read = None

    def _give_up(self, at: int) -> int:
        self._read = None
        return at


class _Pairs:
    """Joins the halves of surrogate pairs across pieces of a text; a half alone becomes U+FFFD."""

    def __init__(self) -> None:
        self._half = ""

    def join(self, text: str) -> str:
        text = self._half + text
        self._half = text[-1] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return utf8_text(text[:-1] if self._half else text)

    def end(self) -> str:
        half, self._half = self._half, ""
        return utf8_text(half)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Give where the match at this place ends; 0 if it is empty."""
    match = pattern.match(text, at)
    return match.end() if match and match.end() > at else 0


def _paired(key: str) -> str:
    """Join surrogate pairs, which two escapes may have brought, and leave a half as it is."""
    return key if key.isascii() else key.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


Channel = Literal["thought", "code"]


class CodeSplitter:
    r"""Text that arrives in fragments, cut anywhere, split at a CodeAgent's `code_block_tags`, which are not given.

    Tags are taken literally. One line break after an opening tag, and one before a closing tag or the end, is no part
    of the code. As smolagents does when it runs them, a blank line (`\n\n`) joins the code of several blocks, so that
    joining the pieces of one channel gives code that reads right. A closing tag that closes nothing is thought.
    A block need not be closed: the closing tag is a stop sequence, and so seldom arrives.
    """

    def __init__(self, opening: str, closing: str) -> None:
        self._opening, self._closing = opening, closing
        self._in_code = False
        self._fresh = False  # nothing of this block was given, not even its first line break
        self._gave_code = False
        self._joint = ""  # what goes before the next code
        self._held = ""
        self._given: list[tuple[Channel, str]] = []

    def feed(self, fragment: str) -> list[tuple[Channel, str]]:
        """Give what this fragment adds, in order; what may be the beginning of a tag waits."""
        text, at = self._held + fragment, 0
        while (found := self._find(text, at)) >= 0:
            self._give(text[at:found], last=True)
            at = found + len(self._closing if self._in_code else self._opening)
            self._switch()
        hold = self._begun(text[at:])
        self._give(text[at : len(text) - hold], last=False)
        self._held = text[len(text) - hold :]
        return self._taken()

    def end(self) -> list[tuple[Channel, str]]:
        """Give what was held back, as no more comes."""
        self._give(self._held, last=True)
        self._held = ""
        return self._taken()

    def _find(self, text: str, start: int) -> int:
        tag = self._closing if self._in_code else self._opening
        return text.find(tag, start) if tag else -1

    def _switch(self) -> None:
        self._in_code = self._fresh = not self._in_code
        self._joint = "\n\n" if self._gave_code else ""

    def _begun(self, text: str) -> int:
        """Give how many characters at the end may belong to a tag, or to the line break before a closing one."""
        tags = (self._closing, "\n" + self._closing) if self._in_code else (self._opening,)
        return max(_overlap(text, tag) for tag in tags)

    def _give(self, text: str, *, last: bool) -> None:
        if not self._in_code:
            self._add("thought", text)
        elif text:
            text = text.removeprefix("\n") if self._fresh else text
            self._fresh = False
            self._add("code", text.removesuffix("\n") if last else text)

    def _add(self, channel: Channel, text: str) -> None:
        if not text:
            return
        if channel == "code":
            text, self._joint, self._gave_code = self._joint + text, "", True
        self._given.append((channel, text))

    def _taken(self) -> list[tuple[Channel, str]]:
        given, self._given = self._given, []
        return given


def _overlap(text: str, tag: str) -> int:
    """Give how long the longest end of the text is with which the tag begins, short of the whole tag."""
    lengths = range(min(len(text), len(tag) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(tag[:length])), 0)
