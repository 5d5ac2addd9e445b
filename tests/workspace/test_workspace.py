"""The layer beneath the workspace tools, on real files: access, hostile paths, bounds and races."""

import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any, cast

import pytest

from smolsessions.workspace import Bounds, ToolDenied, Workspace
from tests.support.data import data
from tests.support.tiers import mostly_deep

#: of a workspace, and of a hidden file in it: none is read or written, and no search takes one
PATHS, PATTERNS, EXPRESSIONS = json.loads(data("hostile_paths.json")).values()
SECRET = "the secret"
HIDDEN = ["secrets/**", "*.key", "schlüssel", "straße/**", "other/**"]
ABSENT = "there is no file of that name that you may use"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make a workspace with everything that a hostile path may want."""
    outside = tmp_path / "outside.txt"
    outside.write_text(SECRET)
    root = tmp_path / "root"
    for folder in ("notes", "secrets", "other", "docs", "many"):
        (root / folder).mkdir(parents=True)
    (root / "notes/a.md").write_text("first line\nsecond line\n")
    (root / "docs/b.md").write_text("read me\n")
    for hidden in ("secrets/key.txt", "notes/token.key", "other/a.md"):
        (root / hidden).write_text(SECRET)
    (root / "notes/link.md").symlink_to(outside)
    (root / "notes/again.md").symlink_to("link.md")
    (root / "notes/linked").symlink_to("/etc")
    (root / "notes/inner.md").symlink_to("a.md")
    (root / "notes/hard.md").hardlink_to(outside)
    os.mkfifo(root / "notes/fifo")
    with socket.socket(socket.AF_UNIX) as listening, chdir(root / "notes"):  # a long path does not fit
        listening.bind("socket")
    return root


@pytest.fixture
def files(root: Path) -> Workspace:
    return Workspace(root, editable=["notes/**"], readonly=["docs/**"], hidden=HIDDEN[:-1])


def denial(act: Any, *arguments: Any) -> str:
    with pytest.raises(ToolDenied) as caught:
        act(*arguments)
    return str(caught.value)


def denial_or_none(files: Workspace, path: str) -> str | None:
    try:
        files.write(path, "")
    except ToolDenied as denied:
        return str(denied)
    return None


@pytest.mark.parametrize("lists", [{"editable": ["notes/**"], "readonly": ["docs/**"]}, {"editable": ["**"]}])
def test_a_hostile_path_reads_and_changes_nothing(root: Path, lists: dict[str, list[str]]) -> None:
    files = Workspace(root, hidden=HIDDEN, **lists)  # type: ignore[arg-type]  # the lists alone

    def everything() -> dict[str, bytes]:
        found = [each for each in root.parent.rglob("*") if each.is_file() and not each.is_symlink()]
        return {str(each): each.read_bytes() for each in found}

    before = everything()
    for name, path in PATHS.items():
        assert SECRET not in denial(files.read, path), name
        assert SECRET not in denial(files.edit, path, SECRET, "gone"), name
        denial(files.write, path, "overwritten")
        assert everything() == before, name


def test_hostile_patterns_expressions_and_values_are_denied(files: Workspace) -> None:
    for pattern in PATTERNS.values():
        denial(files.glob, pattern)
        denial(files.grep, "a", pattern)
    for expression in EXPRESSIONS.values():
        assert "pattern" in denial(files.grep, expression)
    for value in (None, 5, b"notes/a.md", ["notes/a.md"], Path("notes/a.md")):
        for act in (files.read, files.glob, files.grep):
            denial(act, value)
        denial(files.write, value, "x")
        denial(files.write, "notes/x.md", value)
        denial(files.edit, "notes/a.md", value, "x")
        denial(files.edit, "notes/a.md", "first", value)
        denial(files.grep, "a", value or 5)


def test_searches_find_only_what_may_be_read_and_enter_no_link(files: Workspace) -> None:
    assert files.glob("**") == ["docs/b.md", "notes/a.md"]
    assert files.glob("*.md") == files.glob("**/*.md") == ["docs/b.md", "notes/a.md"]
    assert files.glob("notes/*") == files.glob("notes/") == ["notes/a.md"]
    assert files.glob("secrets/**") == files.glob("*.key") == []
    assert files.grep(SECRET) == []
    assert [tuple(match) for match in files.grep("l[a-z]ne$", "notes/**")] == [
        ("notes/a.md", 1, "first line"),
        ("notes/a.md", 2, "second line"),
    ]
    assert files.grep("(?i)READ", "*.txt") == []


def test_hidden_wins_over_editable_and_this_over_readonly(tmp_path: Path) -> None:
    files = Workspace(tmp_path, editable=["a/**", "b/**"], readonly=["**"], hidden=["a/x", "b/"])
    assert {path: files.access.of(path) for path in ("a/x", "a/X/y", "a/y", "b/c", "b", "c")} == {
        "a/x": "hidden",
        "a/X/y": "hidden",
        "a/y": "editable",
        "b/c": "hidden",
        "b": "hidden",
        "c": "readonly",
    }
    assert Workspace(tmp_path).access.of("c") == "unlisted"


@pytest.mark.parametrize("kind", ["editable", "readonly", "hidden"])
def test_a_pattern_that_is_no_use_is_refused(tmp_path: Path, kind: str) -> None:
    useless: list[Any] = ["!a", "#a", "", " ", "../a", "a/../b", "./a", "a//b", "a\\*", "[z-a]", "/", 5, "a\n"]
    for pattern in useless:
        with pytest.raises(ValueError, match=f"{kind}, entry 1: it "):
            Workspace(tmp_path, **cast("dict[str, Any]", {kind: [pattern]}))


def test_an_edit_replaces_exactly_one_match(files: Workspace) -> None:
    files.write("notes/e.md", "aaa b")
    assert "more than once" in denial(files.edit, "notes/e.md", "aa", "x")  # they overlap
    assert "does not hold" in denial(files.edit, "notes/e.md", "c", "x")
    assert "not empty" in denial(files.edit, "notes/e.md", "", "x")
    assert "absent" not in denial(files.edit, "notes/none.md", "a", "x")
    files.edit("notes/e.md", "aaa", "\\1")
    assert files.read("notes/e.md") == "\\1 b"


def test_sizes_and_counts_are_bounded(root: Path) -> None:
    files = Workspace(root, editable=["many/**"], bounds=Bounds(total_bytes=600_000, entries=30))
    largest = "x" * 256 * 1024
    files.write("many/1", largest)
    assert files.read("many/1") == largest
    assert "256 KiB" in denial(files.write, "many/2", largest + "x")
    assert "256 KiB" in denial(files.write, "many/2", "ä" * 256 * 1024)
    files.write("many/2", largest)
    assert "full" in denial(files.write, "many/3", largest)
    files.write("many/1", "short")
    files.write("many/3", largest)
    denials = {denial_or_none(files, f"many/d{number}/a") for number in range(40)}
    assert denials == {None, "the workspace is full: it has room for 30 files and folders"}
    assert 25 <= len(list(root.rglob("*"))) <= 30
    files.write("many/3", "an old file can still be changed")
    (root / "many/large").write_bytes(b"x" * (256 * 1024 + 1))
    (root / "many/binary").write_bytes(b"a\0b")
    (root / "many/latin").write_bytes(b"\xff")
    assert "larger" in denial(files.read, "many/large")
    assert denial(files.read, "many/binary") == denial(files.read, "many/latin") == "the file is no text in UTF-8"
    assert "half" in denial(files.write, "many/1", "\ud800")
    assert "NUL" in denial(files.write, "many/1", "\0")


def test_a_search_is_cut_at_its_bounds_and_says_so(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number:03}.txt").write_text("a\n" * 2)
    files = Workspace(tmp_path, readonly=["**"])
    assert (len(files.glob()), files.glob().is_whole, files.glob("00*").is_whole) == (200, False, True)
    assert (len(files.grep("a")), files.grep("a").is_whole, files.grep("a", "00*").is_whole) == (200, False, True)
    few = Workspace(tmp_path, readonly=["**"], bounds=Bounds(searched_entries=10))
    assert (len(few.glob()), few.glob().is_whole) == (10, False)


SLOW = ["(a+)+$", "(x+x+)+y", "(?:[a-z]{500})(?:[a-z]{500})(?:[a-z]{500})z", "(.*a){500}b"]


@pytest.mark.parametrize("expression", mostly_deep(SLOW, fast=["(a+)+$", "(.*a){500}b"]))
def test_a_catastrophic_expression_ends_in_time(tmp_path: Path, expression: str) -> None:
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text(("a" * 100_000 + "!\n") * 2)
    files, start = Workspace(tmp_path, readonly=["**"], bounds=Bounds(search_s=0.5)), time.process_time()
    files.grep(expression)
    assert time.process_time() - start < 2


def test_a_catastrophic_glob_ends_in_time(tmp_path: Path) -> None:
    (tmp_path / "/".join(["a" * 60] * 15)).mkdir(parents=True)
    (tmp_path / "/".join(["a" * 60] * 15) / "f").touch()
    files, start = Workspace(tmp_path, readonly=["**"], hidden=["**/a*a*a*a*a*a*a*a*a*b/**"]), time.process_time()
    assert files.glob("**/" + "*a" * 80 + "*b") == []
    assert files.glob("**/f") == ["/".join(["a" * 60] * 15 + ["f"])]
    assert time.process_time() - start < 2


def test_a_root_that_is_absent_or_a_link_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    for root in (tmp_path / "absent", tmp_path / "link"):
        files = Workspace(root, editable=["**"])
        assert (denial(files.read, "hostname"), files.glob()) == (ABSENT, [])
    denial(files.write, "new", "x")
    made = Workspace(tmp_path / "made/on demand", editable=["**"])
    made.write("a", "x")
    assert made.glob() == ["a"]


def test_a_file_is_replaced_as_a_whole_and_keeps_its_mode(files: Workspace, root: Path) -> None:
    (root / "notes/a.md").chmod(0o640)
    with (root / "notes/a.md").open() as reader:
        files.write("notes/a.md", "new")
        assert reader.read() == "first line\nsecond line\n"
    assert (root / "notes/a.md").stat().st_mode & 0o777 == 0o640
    (root / "notes/.smolsessions-left").write_text("by a crash")
    os.utime(root / "notes/.smolsessions-left", (0, 0))
    files.write("notes/a.md", "newer")
    assert not (root / "notes/.smolsessions-left").exists()


SWAP = """
import ctypes, itertools, os, sys
os.chdir(sys.argv[1])
exchange = ctypes.CDLL(None).renameat2
for names in itertools.cycle([(b"d", b"link"), (b"real/f", b"real/link"), (b"d/f", b"d/hard")]):
    if exchange(-100, names[0], -100, names[1], 2):
        sys.exit("no exchange here")
"""


def test_a_process_that_swaps_files_and_links_lets_nothing_out(tmp_path: Path) -> None:
    root, secret, another = tmp_path / "root", tmp_path / "secret/f", tmp_path / "secret/another"
    for folder in ("root/d", "root/real", "secret"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "f").write_text("open")
    secret.write_text(SECRET)
    another.write_text(SECRET)
    (root / "link").symlink_to(secret.parent)
    (root / "real/link").symlink_to(secret)
    (root / "d/hard").hardlink_to(another)
    (secret.parent / "hard").write_text("another")
    files, seen = Workspace(root, editable=["new/**", "d/new"], readonly=["**"]), Counter[str]()
    reads = [lambda: files.read("d/f"), lambda: files.read("real/f")]
    with subprocess.Popen([sys.executable, "-c", SWAP, str(root)]) as swapper:
        for acts in (reads, [*reads, lambda: str(files.grep(".")), write_new(files)]):
            end = time.monotonic() + 0.5
            while time.monotonic() < end or (
                acts is not reads and min(seen["open"], seen[ABSENT], seen["written"]) <= 20
            ):
                for act in acts:
                    found = answer_of(act)
                    assert SECRET not in found
                    seen[found] += 1
        assert swapper.poll() is None
        swapper.kill()
    assert {each.name for each in secret.parent.iterdir()} == {"f", "hard", "another"}
    assert (seen["open"] > 20, seen[ABSENT] > 20, seen["written"] > 20) == (True, True, True), seen


def answer_of(act: Callable[[], str]) -> str:
    try:
        return act()
    except ToolDenied as denied:
        return str(denied)


def write_new(files: Workspace) -> Callable[[], str]:
    def write() -> str:
        files.write("d/new", "mine")
        return "written"

    return write
