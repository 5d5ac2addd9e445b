"""Plain English in docstrings, comments and docs: refuses the phrases that make a sentence hard to read.

python tools/check_english.py [PATH …]   (default: everything here)

The phrases are in PHRASES, each with its remedy. Code, quotations, headings and questions are left alone.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
DEFAULT = (
    "app",
    "benchmarks",
    "browser_tests",
    "docs",
    "examples",
    "tests",
    "tools",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)
MOST_WORDS = 36  # of a sentence; the aim is some 20

VERBS = (
    "is|are|was|were|has|have|had|can|cannot|may|must|does|did|do|goes|comes|came|stands|lies|runs|holds|needs|differs"
)

PHRASES = {
    r"^Gives?\b": "write Return or Yield",
    r"^(What|Who|Where)\b": "open with the noun",
    rf"\b(what|where) ({VERBS})\b(?! wrong)": "name the thing",
    r"\b([Ww]hoever|[Nn]obody|[Ss]omebody)\b": "name the process, the caller or the reader",
    r"\b[Bb]ut for\b": "write except",
    r"\b[Tt]here (is|are|was|were)\b": "make the thing the subject",
    r"\b(heeds?|heeded|comes? to pass|be told|is told|are told|was told)\b": "use the term of the field",
    r";": "write two sentences",
}
IN_DOCSTRINGS = {";"}  # refused there alone; the docstring of an error is its sentence for users, and may hold one

Line = tuple[int, str, bool]  # its number, a sentence, and whether it is a docstring's


def main() -> int:
    """Print each refused sentence with its place and its remedy. The exit status is 1 if one was found."""
    paths = [Path(word) for word in sys.argv[1:]] or [ROOT / name for name in DEFAULT]
    inside = (file for path in paths for file in ([path] if path.is_file() else path.rglob("*")))
    files = sorted(file for file in inside if "node_modules" not in file.parts)
    found = 0
    for file in files:
        if file.suffix not in {".py", ".md"} or "__pycache__" in file.parts:
            continue
        for number, text, is_docstring in (_of_docs if file.suffix == ".md" else _of_python)(file):
            for remedy in _remedies(text, is_docstring=is_docstring):
                sys.stdout.write(f"{file}:{number}: {remedy}: {text}\n")
                found += 1
    return 1 if found else 0


def _remedies(text: str, *, is_docstring: bool) -> Iterator[str]:
    plain = re.sub(r"`[^`]*`|\"[^\"]*\"|\([^()]*\)", "x", text)
    for phrase, remedy in PHRASES.items():
        is_meant = is_docstring or phrase not in IN_DOCSTRINGS
        if is_meant and not plain.endswith("?") and re.search(phrase, plain):
            yield remedy
    if len(plain.split()) > MOST_WORDS:
        yield f"more than {MOST_WORDS} words: split it"


def _of_python(file: Path) -> Iterator[Line]:
    source = file.read_text()
    for node in ast.walk(ast.parse(source)):
        if any(isinstance(each, ast.Name) and each.id == "tool" for each in getattr(node, "decorator_list", ())):
            continue  # the description of a tool is part of prompts
        is_error = isinstance(node, ast.ClassDef) and node.name.endswith("Error")
        for child in ast.iter_child_nodes(node):
            if (
                isinstance(child, ast.Expr)
                and isinstance(child.value, ast.Constant)
                and isinstance(child.value.value, str)
            ):
                yield from ((*line, not is_error) for line in _sentences(child.lineno, child.value.value))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("# ")
        if token.type == tokenize.COMMENT and not text.startswith(("noqa", "type:", "pragma", "!")):
            yield token.start[0], text, False


def _of_docs(file: Path) -> Iterator[Line]:
    text = re.sub(r"```.*?```", lambda match: "\n" * match[0].count("\n"), file.read_text(), flags=re.DOTALL)
    number = 1
    for paragraph in re.split(r"(\n\s*\n|\n(?=[-|#>*]|\d+\. ))", text):
        if paragraph.strip() and not paragraph.lstrip().startswith(("|", "#")):
            text = re.sub(r"^[-#>*\d. ]+", "", paragraph.strip())
            yield from ((*line, False) for line in _sentences(number, text))
        number += paragraph.count("\n")


def _sentences(number: int, text: str) -> Iterator[tuple[int, str]]:
    """Yield each sentence with the number of the line that it begins in."""
    for block in re.split(r"(\n\s*\n|\n(?= *[-*] |    ))", text):
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`¹²³⁴])", block.replace("**", "").strip()):
            words = " ".join(sentence.split())
            if words and not words.startswith(">>>"):
                yield number + text[: text.find(sentence)].count("\n"), words


if __name__ == "__main__":
    sys.exit(main())
