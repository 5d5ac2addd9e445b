"""Code blocks of the docs, and a reader who follows a page: writes its files, runs its commands, compares its answers.

A comment before a block marks it: `<!-- no-run: REASON -->`, or `<!-- run by tests/….py -->` for a block that another
test runs. `<!-- model: [["stock", {"item": "pears"}], "Three."] -->` scripts calls and answers of the provider.
A block with `title="NAME"` is a file.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from tests.support.preloaded import PYTHONPATH, ROOT, ForkedProcess, fork
from tests.support.waiting import PATIENCE_S, run_program

LANGUAGES = {"python", "sh", "js", "toml", "yaml", "json", "dockerfile", "text"}
DATA: dict[str, Callable[[str], Any]] = {
    "toml": tomllib.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "json": json.loads,
}
MARK = re.compile(r"(no-run: |run by |model: )(.*)", re.DOTALL)
PART = re.compile(r"<!--\s*(.*?)\s*-->|^( *)```(\w*)([^\n]*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
SERVER = re.compile(
    r"^(?P<settings>(?:[A-Z_]+=\S* )*)smolsessions (?P<command>(?:serve|web|work)\b[^\n#&]*)"
    r"(?:& echo \$! > (?P<file>\S+))?"
)
SKIPPED = re.compile(r"^(pip install|python3? -m venv|source \.venv)\b")  # all is there
CURL = """curl() {
  case "$*" in
    *http_code*) command curl "$@" ;;  # the page shows the status
    *) command curl --fail-with-body -w "\n" "$@" ;;  # a refused request fails the block
  esac
}"""
PORTS = ("8000", "8001", "6400")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    title: str
    text: str
    marks: tuple[tuple[str, str], ...]

    def mark(self, kind: str) -> str | None:
        return next((text for name, text in self.marks if name.strip(": ") == kind), None)

    @property
    def has_reader(self) -> bool:
        """True if a reader can do as the block says, so that only a mark excuses it from being run."""
        return self.language in LANGUAGES

    @property
    def is_run_here(self) -> bool:
        return self.mark("no-run") is None and self.mark("run by") is None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line} ({self.language})"


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of code, of any language or of none. A drawing is no code."""
    text = page.read_text("utf-8")
    marks: list[tuple[str, str]] = []
    end = 0
    for part in PART.finditer(text):
        if text[end : part.start()].strip():
            marks = []  # prose came between
        end = part.end()
        comment, indent, language, info, code = part.groups()
        if comment is not None:
            marks += [(found[1], found[2]) for found in [MARK.fullmatch(comment)] if found]
            continue
        if language != "mermaid":
            title = re.search(r'title="([^"]+)"', info)
            lines = "".join(line.removeprefix(indent) for line in code.splitlines(keepends=True))
            number = text.count("\n", 0, part.start()) + 1
            yield Block(page, number, language, title[1] if title else "", lines, tuple(marks))
        marks = []


@dataclass
class Reader:
    """Reader of one page, in a folder of its own. `ports` are those that stand for the page's."""

    folder: Path
    ports: dict[str, str]
    provider: str
    servers: dict[str, ForkedProcess | subprocess.Popen[str]] = field(default_factory=dict)
    output: str = ""

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / ".state").write_text("")
        return self

    def __exit__(self, *_: object) -> None:
        for port in list(self.servers):
            self._stop(port)
        for file in self.folder.rglob("store.pid"):
            with suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGTERM)

    def follow(self, block: Block) -> None:
        text = self._here(block.text)
        if block.title:
            (self._cwd() / block.title).write_text(text)
        elif block.language == "sh":
            self._shell(text, block)
        elif block.language == "python":
            self._run([sys.executable, "-"], text, block)
        elif block.language == "js":
            if shutil.which("node"):
                self._run(["node", "--input-type=module", "-"], text, block)
        else:
            self._compare(text, block)

    def _compare(self, text: str, block: Block) -> None:
        """Compare data or text behind a command with the output of that command."""
        if block.language == "text":
            assert_like(text.strip(), self.output, str(block))
        elif block.language in DATA:
            data = DATA[block.language](text)
            if block.language == "json" and self.output:
                assert_like(data, json.loads(self.output.splitlines()[-1]), str(block))
        self.output = ""

    def log(self) -> str:
        return "".join(file.read_text() for file in self.folder.glob("*.log"))

    def _here(self, text: str) -> str:
        for port, own in self.ports.items():
            text = re.sub(rf"\b{port}\b", own, text)
        return text

    def _shell(self, text: str, block: Block) -> None:
        waiting: list[str] = []
        for line in self._here(text).replace("\\\n", " ").splitlines():
            if served := SERVER.match(line):
                self._run_lines(waiting, block)
                pid = self.serve(served["settings"], served["command"], block)
                if served["file"]:
                    (self._cwd() / served["file"]).write_text(str(pid))
            elif not SKIPPED.match(line):
                waiting.append(line)
        self._run_lines(waiting, block)

    def _run_lines(self, lines: list[str], block: Block) -> None:
        if any(lines):
            state = shlex.quote(str(self.folder / ".state"))
            script = "\n".join(
                ["set -eo pipefail", CURL, f". {state}", *lines, f"{{ export -p; echo cd $PWD; }} > {state}"]
            )
            self._run(["bash", "-c", script], "", block)
            lines.clear()

    def _run(self, command: list[str], text: str, block: Block) -> None:
        ended = run_program(command, input=text, cwd=self._cwd(), env=self._environment())
        assert ended.returncode == 0, f"{block}: {ended.stdout}{ended.stderr}{self.log()}"
        self.output = ended.stdout.strip()

    def serve(self, settings: str, command: str, block: Block) -> int:
        """Start a service, in place of one on the same port. Return its process id."""
        words = shlex.split(command)
        named = re.search(r"--port[ =](\d+)", command)
        port = named[1] if named else self.ports["8000"]
        self._stop(port)
        environment = self._environment() | dict(word.split("=", 1) for word in shlex.split(settings))
        environment["SMOLSESSIONS_PORT"] = port
        with (self.folder / f"{port}.log").open("a") as log:
            server = fork(tuple(words), environment, self._cwd(), log)
        self.servers[port] = server
        assert server.stdout
        first = server.stdout.readline()
        assert re.search("serves on|health and metrics on", first), f"{block}: {first}{self.log()}"
        return server.pid

    def _stop(self, port: str) -> None:
        if server := self.servers.pop(port, None):
            server.send_signal(signal.SIGTERM)
            server.wait(PATIENCE_S)
            if server.stdout:
                server.stdout.close()

    def _cwd(self) -> Path:
        found = re.findall(r"^cd (.*)$", (self.folder / ".state").read_text(), re.MULTILINE)
        return Path(found[-1]) if found else self.folder

    def _environment(self) -> dict[str, str]:
        hidden = ("SMOLSESSIONS_", "COVERAGE_", "OPENAI_API_KEY")  # a page shows what its commands need
        own = {name: text for name, text in os.environ.items() if not name.startswith(hidden)}
        exported = re.findall(
            r'^declare -x ((?:SMOLSESSIONS|MODEL|OPENAI)\w*)="(.*)"$',
            (self.folder / ".state").read_text(),
            re.MULTILINE,
        )
        return (
            own
            | {
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PYTHONPATH": PYTHONPATH,
                "OPENAI_BASE_URL": self.provider,
                "SMOLSESSIONS_LEASE_S": "1",
                "SMOLSESSIONS_URL": f"http://127.0.0.1:{self.ports['8000']}",
            }
            | dict(exported)
        )


def assert_like(shown: Any, found: Any, place: str) -> None:
    """Compare an answer with the one that a page shows: members may be left out, and … stands for any text."""
    if isinstance(shown, dict):
        assert isinstance(found, dict), f"{place}: {found}"
        for name in shown.keys() - {"…"}:
            assert name in found, f"{place}: no {name} in {found}"
            assert_like(shown[name], found[name], f"{place}: {name}")
    elif isinstance(shown, list):
        assert isinstance(found, list), f"{place}: {found}"
        assert len(shown) == len(found) or "…" in shown, f"{place}: {found}"
        for one, other in zip(shown, found, strict=False):
            assert_like(one, other, place)
    elif isinstance(shown, str) and "…" in shown:
        pattern = ".*".join(map(re.escape, shown.split("…")))
        assert re.fullmatch(pattern, str(found), re.DOTALL), f"{place}: {found}"
    else:
        assert shown == found, f"{place}: {found}"
