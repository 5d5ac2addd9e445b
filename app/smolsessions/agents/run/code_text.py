"""What a CodeAgent's model says, told apart into thought and code while it is still being written."""

from __future__ import annotations

from typing import Literal

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
