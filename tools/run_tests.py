"""Runs the tests of a tier: `make test`, `make test-deep`, `make quick` and `make affected`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).parent.parent
FAST = "not deep and not alone"
WORKERS = os.environ.get("TESTS_WORKERS", "4")  # two of them on two cores leave the waiting of the tests exposed
PARALLEL = ("-n", WORKERS, "--dist", "worksteal")
FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
MOST_REPEATED = 3
NO_TESTS = 5  # pytest's status
SLOW = ("environments", "preloaded", "service", "store_server", "stores")  # parts of tests.support that start processes
PLACES = {  # of the tests of a package, if its name is not that of their folder
    "agents.run": ["agents", "worker"],
    "agents.memory": ["memory"],
    "agents.sandbox": ["sandbox"],
    "agents.values": ["values"],
    "agents.transfer": ["transfer"],
    "core": ["web", "worker", "store"],
    "wire": ["web", "client"],
    "settings": ["runtime"],
    "roles": ["runtime"],
    "wiring": ["runtime"],
    "evaluation": ["client"],
    "agent_options": ["agents"],
    "caller": ["agents"],
}
OTHERS = {
    "deploy/": "tests/deploy",
    "Dockerfile": "tests/deploy",
    "docs/": "tests/docs",
    "README": "tests/docs",
    "openapi.yaml": "tests/web/test_openapi.py",
}
BROWSER = ("-n", "2", "--dist", "worksteal")  # Chromium is several processes
EVERYTHING = {"tests": PARALLEL, "browser_tests": BROWSER}


def main() -> None:
    tiers = {"fast": run_fast, "deep": run_deep, "quick": run_quick, "affected": run_affected}
    sys.exit(tiers[sys.argv[1]]())


def run_fast() -> int:
    return _first_failure([run_twice(folder, *options, "-m", FAST) for folder, options in EVERYTHING.items()])


def run_deep() -> int:
    parallel = (pytest(folder, *options, "-m", "deep and not alone") for folder, options in EVERYTHING.items())
    return _first_failure([*parallel, pytest("tests", "-m", "alone")])


def run_quick() -> int:
    """Run the modules of tests that start no service and no store."""
    sys.path.insert(0, str(ROOT))
    graph = grimp.build_graph("tests")
    slow = {module for each in SLOW for module in graph.find_downstream_modules(f"tests.support.{each}")}
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    unit = [path for path in paths if ".".join(path.relative_to(ROOT).with_suffix("").parts) not in slow]
    return pytest(*map(str, unit), *PARALLEL, "-m", FAST)


def run_affected() -> int:
    """Run the tests of the packages that changed since main, and of those that import the changed modules."""
    changed = _changed_files()
    places = affected_places(changed)
    if not places:
        sys.stdout.write("no test depends on what changed since main\n")
        return 0
    sys.stdout.write(f"{len(changed)} files changed since main; running {' '.join(places)}\n")
    return pytest(*places, *PARALLEL, "-m", FAST)


def run_twice(folder: str, *options: str) -> int:
    """Run tests. Up to three failed ones run once more, alone, and are named as unsteady if they pass then."""
    status = pytest(folder, *options)
    failed = [name for name in json.loads(FAILED.read_text()) if name.startswith(f"{folder}/")] if status == 1 else []
    if not 0 < len(failed) <= MOST_REPEATED:
        return status
    sys.stdout.write(f"\n{len(failed)} failed, and run once more, alone:\n")
    status = pytest(*failed, "-m", FAST)
    if not status:
        names = "\n".join(f"UNSTEADY {name}" for name in failed)
        sys.stdout.write(f"\nThese passed alone. Each is a defect of the test or of the service:\n{names}\n")
    return status


def pytest(*options: str) -> int:
    sys.stdout.flush()
    return subprocess.run([sys.executable, "-m", "pytest", *options], cwd=ROOT, check=False).returncode


def affected_places(changed: list[str]) -> list[str]:
    """Return the folders and modules of tests to run for changed files of the repository."""
    places: set[str] = set()
    packages: set[str] = set()
    for name in changed:
        path = Path(name)
        if path.parts[:2] == ("app", "smolsessions"):
            packages.add(_package(".".join(path.with_suffix("").parts[2:])))
            if "page" in path.parts:
                places.add("browser_tests")
        elif path.parts[:2] == ("tests", "support") or name in {"pyproject.toml", "tests/conftest.py"}:
            return [*EVERYTHING]
        elif path.parts[0] in {"tests", "browser_tests"} and path.name.startswith("test_"):
            places.add(name)
        else:
            places |= {place for start, place in OTHERS.items() if name.startswith(start)}
    for package in packages | _importers(packages):
        places |= {f"tests/{folder}" for folder in PLACES.get(package, [package])}
    return sorted(place for place in places if (ROOT / place).exists())


def _importers(packages: set[str]) -> set[str]:
    """Return the packages that import one of these. `wiring` imports all of them, and is left out."""
    graph = grimp.build_graph("smolsessions")
    found = set()
    for module in graph.modules:
        imported = {_package(each) for each in graph.find_modules_directly_imported_by(module)}
        if not imported.isdisjoint(packages):
            found.add(_package(module))
    return found - {"wiring"}


def _package(module: str) -> str:
    """Return the package that a module belongs to, as `PLACES` names it."""
    module = module.removeprefix("smolsessions.")
    return next((name for name in PLACES if f"{module}.".startswith(f"{name}.")), module.split(".")[0])


def _changed_files() -> list[str]:
    base = _git("merge-base", "HEAD", "origin/main") or _git("merge-base", "HEAD", "main")
    untracked = _git("ls-files", "--others", "--exclude-standard")
    return [*_git("diff", "--name-only", base[0] if base else "HEAD"), *untracked]


def _git(*command: str) -> list[str]:
    done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[:-1]


def _first_failure(statuses: list[int]) -> int:
    return next((status for status in statuses if status not in {0, NO_TESTS}), 0)


if __name__ == "__main__":
    main()
