"""Mutation runner: `make mutants` changes one line of the package at a time and runs the tests that should fail.

`tools/mutations/*.toml` list them. An entry is:
    name    sentence that names the broken promise
    file    path beneath app/smolsessions
    old     text that occurs once in the file
    new     text in its place
    tests   arguments of pytest: the tests that should fail
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parent.parent
LISTS = ROOT / "tools" / "mutations"
PACKAGE = Path("app", "smolsessions")
TIMEOUT_S = 300
JOBS = 3  # a test waits more than it computes
PASSED, FAILED = 0, 1  # statuses of pytest


@dataclass(frozen=True)
class Mutation:
    """Change of one place in the package, and the tests that should notice it."""

    name: str
    file: str
    old: str
    new: str
    tests: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("lists", nargs="*", help="names of lists in tools/mutations, without .toml; all by default")
    parser.add_argument("--only", default="", metavar="TEXT", help="only mutations whose name contains this text")
    parser.add_argument("--trust", action="store_true", help="do not run the tests without a mutation first")
    asked = parser.parse_args()
    mutations = [each for each in read_mutations(asked.lists) if asked.only in each.name]
    with tempfile.TemporaryDirectory() as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(JOBS):
            trees.put(copy_tree(Path(folder) / str(number)))
        tests = sorted({test for mutation in mutations for test in mutation.tests})
        print(f"{len(mutations)} mutations; first their {len(tests)} tests without any", flush=True)
        for _, group in () if asked.trust else groupby(tests, lambda test: test.partition("/")[0]):
            if run_tests(Path(folder) / "0", [*group], "-n", "4", "--dist", "worksteal") != PASSED:
                sys.exit("these tests fail without a mutation")
        with ThreadPoolExecutor(JOBS) as pool:
            outcomes = list(pool.map(partial(try_mutation, trees), mutations))
    print(f"{outcomes.count('killed')} killed, {len(outcomes) - outcomes.count('killed')} not")
    sys.exit(outcomes.count("killed") < len(outcomes))


def read_mutations(names: list[str]) -> list[Mutation]:
    """Return the mutations of the lists. Their texts must fit the code."""
    paths = [LISTS / f"{name}.toml" for name in names] or sorted(LISTS.glob("*.toml"))
    mutations = [Mutation(**entry) for path in paths for entry in tomllib.loads(path.read_text())["mutation"]]
    for each in mutations:
        found = (ROOT / PACKAGE / each.file).read_text().count(each.old)
        if found != 1:
            sys.exit(f"{each.name}: its old text occurs {found} times in {each.file}, not once")
    return mutations


def copy_tree(tree: Path) -> Path:
    """Copy what git knows or would add: a killed run leaves the checkout as it was."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]:
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


def try_mutation(trees: SimpleQueue[Path], mutation: Mutation) -> str:
    """Apply the mutation to a free tree, run its tests, and print and return the outcome."""
    tree = trees.get()
    path = tree / PACKAGE / mutation.file
    text = path.read_text()
    path.write_text(text.replace(mutation.old, mutation.new))
    began = time.monotonic()
    try:
        status = run_tests(tree, mutation.tests, "-x")
    finally:
        path.write_text(text)
        trees.put(tree)
    outcome = {PASSED: "survived", FAILED: "killed"}.get(status, f"pytest ended with status {status}")
    print(f"{outcome:9} {time.monotonic() - began:5.1f} s  {mutation.name}", flush=True)
    return outcome


def run_tests(tree: Path, tests: list[str], *options: str) -> int:
    """Run tests in the tree, on its code. Tests that do not end count as failed. Return pytest's status."""
    code = os.pathsep.join([str(tree / "app"), str(tree)])
    environment = os.environ | {"PYTHONPATH": code, "PYTHONDONTWRITEBYTECODE": "1"}
    if "-x" in options:
        environment["TESTS_PATIENCE_S"] = "30"
    command = [sys.executable, "-m", "pytest", "-m", "not alone", "-p", "no:cacheprovider", *options, *tests]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=tree, env=environment, start_new_session=True, **pipe) as process:  # type: ignore[call-overload]
        try:
            output, _ = process.communicate(timeout=TIMEOUT_S if "-x" in options else None)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return FAILED
    if process.returncode not in {PASSED, FAILED} or ("-x" not in options and process.returncode):
        print(output[-3000:], flush=True)
    return int(process.returncode)


if __name__ == "__main__":
    main()
