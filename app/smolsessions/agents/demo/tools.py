"""Tools of the demo agents. Each is bounded and stateless, and answers in one line."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from smolagents import Tool

NOTED = "Noted: "
EXPRESSION_CHARS = 200
NOTE_CHARS = 500
TEXT_CHARS = 1_000_000
RESULT_LIMIT = 10**300

Number = int | float

# Han and kana are written without spaces: each character counts as a word, as word processors count them.
_UNSPACED = re.compile("[\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_SENTENCE_END = re.compile(r"""[.!?…؟।॥۔።]["'”’»)\]]{0,3}(?=\s|$)|[。！？｡]""")  # noqa: RUF001
_AREAS = ("Europe", "America", "Asia", "Africa", "Australia", "Pacific", "Atlantic")
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def _inputs(nullable: bool = False, **described: str) -> dict[str, dict[str, Any]]:
    extra = {"nullable": True} if nullable else {}
    return {name: {"type": "string", "description": text, **extra} for name, text in described.items()}


class Calculator(Tool):
    name = "calculator"
    description = "Evaluates an arithmetic expression of numbers, + - * / // % ** and parentheses."
    inputs = _inputs(expression="For example: (12 + 3) * 7")
    output_type = "string"

    def forward(self, expression: str) -> str:
        if len(expression) > EXPRESSION_CHARS:
            raise ValueError(f"An expression may have at most {EXPRESSION_CHARS} characters.")
        try:
            value = _evaluate(ast.parse(expression.strip(), mode="eval").body)
        except (SyntaxError, RecursionError, MemoryError):
            raise ValueError(f"{expression!r} is not an arithmetic expression.") from None
        except ZeroDivisionError:
            raise ValueError(f"Division by zero in {expression}.") from None
        except OverflowError:
            raise ValueError(f"The result of {expression} is too large.") from None
        return f"{value:.12g}" if isinstance(value, float) else str(value)


def _evaluate(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _evaluate(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            a, b = _evaluate(left), _evaluate(right)
            # Checked first: 9 ** 9 ** 9 would hold the interpreter lock for minutes.
            is_whole = isinstance(a, int) and isinstance(b, int) and abs(a) > 1
            if isinstance(op, ast.Pow) and is_whole and b * math.log2(abs(a)) > RESULT_LIMIT.bit_length():
                raise OverflowError
            return _bounded(_BINARY[type(op)](a, b))
    raise ValueError("Only numbers, + - * / // % ** and parentheses can be calculated.")


def _bounded(value: Any) -> Number:
    if isinstance(value, complex):
        raise ValueError("The result is not a real number.")  # noqa: TRY004
    number: Number = value
    if not math.isfinite(number) or abs(number) > RESULT_LIMIT:
        raise OverflowError
    return number


class Clock(Tool):
    name = "clock"
    description = "Tells the current date and time."
    inputs = _inputs(time_zone="IANA name such as Europe/Berlin, or its city alone; UTC without it", nullable=True)
    output_type = "string"

    def forward(self, time_zone: str | None = None) -> str:
        name = time_zone or "UTC"
        key = name.strip().replace(" ", "_")
        for candidate in (key, *(f"{area}/{key.title()}" for area in _AREAS)):
            with suppress(KeyError, ValueError, OSError):
                zone = UTC if name.upper() in {"UTC", "GMT"} else ZoneInfo(candidate)
                return f"{datetime.now(zone):%Y-%m-%d %H:%M:%S %Z (%A)}"
        raise ValueError(f"Unknown time zone {name!r}: give an IANA name such as Europe/Berlin.")


class Note(Tool):
    name = "note"
    description = "Takes a note. It is kept as this call's result in the conversation, and nowhere else."
    inputs = _inputs(text=f"The note, at most {NOTE_CHARS} characters")
    output_type = "string"

    def forward(self, text: str) -> str:
        line = " ".join(text.split())
        if not line:
            raise ValueError("An empty note was not kept.")
        if len(line) > NOTE_CHARS:
            raise ValueError(f"A note may have at most {NOTE_CHARS} characters; this one has {len(line)}.")
        return NOTED + line


class TextStats(Tool):
    name = "text_stats"
    description = (
        "Counts the characters (code points), words, sentences and lines of a text in any script. A Han or kana "
        "character counts as a word; Thai and other scripts without spaces between words are counted by their spaces."
    )
    inputs = _inputs(text="The text itself")
    output_type = "string"

    def forward(self, text: str) -> str:
        if len(text) > TEXT_CHARS:
            raise ValueError(f"A text may have at most {TEXT_CHARS} characters.")
        counts = {
            "character": len(text),
            "word": _count_spoken(_UNSPACED.sub(r" \g<0> ", text).split()),
            "sentence": _count_spoken(_SENTENCE_END.split(text)),
            "line": len(text.splitlines()),
        }
        return ", ".join(f"{count} {unit}{'' if count == 1 else 's'}" for unit, count in counts.items())


def _count_spoken(pieces: list[str]) -> int:
    return sum(any(map(str.isalnum, piece)) for piece in pieces)


TOOLS: tuple[Callable[[], Tool], ...] = (Calculator, Clock, Note, TextStats)
