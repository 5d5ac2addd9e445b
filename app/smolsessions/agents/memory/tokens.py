"""How many tokens a text is for a model, estimated: without a vocabulary, which every model has one of its own of.

Counting stands on what tokenizers of today have in common: they cut a text into words, runs of signs and single digits
or short groups of them, then take frequent pieces of these as one. The weights were fitted to two of them; how far off
the estimate is, by the kind of text, is printed by `tests/memory/test_tokens.py`.
"""

from __future__ import annotations

from string import ascii_letters, ascii_uppercase, digits, punctuation
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smolagents.models import ChatMessage

MESSAGE_TOKENS = 4
"""What a message costs beside its text: its role, and the signs around it."""
IMAGE_TOKENS = 1000
"""What an image costs; models count it by its size, from about a hundred to a few thousand."""

_WORD, _LETTER, _CAPITAL = 0.44, 0.1, 0.95
_FOREIGN = 0.05  # more for each letter of a language that is written with accents
_ACCENT = 0.53
_DIGIT, _SIGNS, _SIGN, _LINES = 0.87, 0.85, 0.13, 1.4
_MOST_ACCENTED = 0.01  # accents among the letters: from here on a text counts as foreign as a whole
_THAI, _VIETNAMESE = (b"\xe0\xb8", b"\xe0\xb9"), (b"\xe1\xba", b"\xe1\xbb")
_THAI_LESS = 0.19

# By the first byte of a character in UTF-8: what each character of a script costs.
_SCRIPTS = (
    (0xCE, 0xCF, 0.37),  # Greek
    (0xD0, 0xD5, 0.24),  # Cyrillic, Armenian
    (0xD6, 0xD7, 0.43),  # Hebrew
    (0xD8, 0xDF, 0.27),  # Arabic
    (0xE0, 0xE0, 0.45),  # those of India, Thai
    (0xE1, 0xE1, 0.64),  # Georgian, Khmer, …; also the Latin letters of Vietnamese
    (0xE2, 0xE2, 1.2),  # quotation marks, arrows, mathematics
    (0xE3, 0xE3, 0.52),  # kana
    (0xE4, 0xE9, 0.51),  # Chinese characters
    (0xEA, 0xED, 0.5),  # hangul
    (0xEE, 0xEF, 0.9),  # wide forms
    (0xF0, 0xF4, 2.2),  # emoji, rare characters
)


def estimate(text: str) -> int:
    """Estimate the tokens of a text in any language, in some ten microseconds for a thousand characters of English."""
    if not text:
        return 0
    data = text.encode(errors="replace")
    classes = data.translate(_CLASSES)
    tokens = (
        _WORD * _runs(data, _IS_LETTER)
        + _CAPITAL * classes.count(_UPPER)
        + _DIGIT * classes.count(_NUMBER)
        + (_SIGNS - _SIGN) * _runs(data, _IS_SIGN)
        + _SIGN * classes.count(_MARK)
        + _LINES * (data.count(b"\n") - data.count(b"\n\n"))
    )
    letters = len(data) - len(data.translate(None, _LETTERS))
    accents = 0
    if not text.isascii():
        scripts = data.translate(_CLASSES, _NO_FIRST)
        vietnamese = sum(map(data.count, _VIETNAMESE)) if _TALL in scripts else 0
        thai = sum(map(data.count, _THAI)) if _INDIAN in scripts else 0
        accents = scripts.count(_ACCENTED) + vietnamese
        tokens += _ACCENT * accents - _SCRIPTS[_TALL][-1] * vietnamese - _THAI_LESS * thai
        tokens += sum(cost * scripts.count(script) for script, (_, _, cost) in enumerate(_SCRIPTS))
    foreign = min(1.0, accents / (_MOST_ACCENTED * letters + 1))
    return max(1, round(tokens + (_LETTER + _FOREIGN * foreign) * letters))


def estimate_messages(messages: Sequence[ChatMessage]) -> int:
    """Estimate the tokens of messages as a model is sent them: their texts, and a constant for each and each image."""
    return sum(MESSAGE_TOKENS + _content(message.content) for message in messages)


def _content(content: object) -> int:
    if isinstance(content, str):
        return estimate(content)
    if not isinstance(content, list):
        return 0
    return sum(estimate(str(part["text"])) if "text" in part else IMAGE_TOKENS for part in content)


def _runs(data: bytes, is_one: bytes) -> int:
    marks = data.translate(is_one)
    return marks.count(b"\0\1") + marks.startswith(b"\1")


def _table(value_of: Callable[[int], int]) -> bytes:
    return bytes(map(value_of, range(256)))


def _class_of(byte: int) -> int:
    for script, (first, last, _) in enumerate(_SCRIPTS):
        if first <= byte <= last:
            return script
    return next((kind for kind, members in _KINDS.items() if byte in members), _OTHER)


_CAPITALS = ascii_uppercase.encode()
_LETTERS = ascii_letters.encode()
_UPPER, _NUMBER, _MARK, _ACCENTED, _OTHER = range(len(_SCRIPTS), len(_SCRIPTS) + 5)
_KINDS = {
    _UPPER: _CAPITALS,
    _NUMBER: digits.encode(),
    _MARK: punctuation.encode(),
    _ACCENTED: range(0xC3, 0xCC),  # the first bytes of Latin letters
}
_BEYOND_ASCII = range(0x80, 0x100)
_CLASSES = _table(_class_of)
_IS_LETTER = _table(lambda byte: byte in _LETTERS or byte in _BEYOND_ASCII)
_IS_SIGN = _table(lambda byte: _CLASSES[byte] == _MARK)
_NO_FIRST = bytes([*range(0xC3), *range(0xF5, 0x100)])
_INDIAN, _TALL = (_class_of(byte) for byte in (0xE0, 0xE1))
