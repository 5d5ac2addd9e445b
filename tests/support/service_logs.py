"""Plugin: a failed test prints the last lines of the services' logs that were written meanwhile."""

import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

LAST_LINES = 20
_logs: set[Path] = set()
_began = pytest.StashKey[float]()


def note_log(path: Path) -> None:
    _logs.add(path)


def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_began] = time.time()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for path in sorted(_logs):
            with suppress(OSError):
                if path.stat().st_mtime >= item.stash[_began]:
                    lines = path.read_text(errors="replace").splitlines()[-LAST_LINES:]
                    report.sections.append((f"last lines of {path}", "\n".join(lines)))
    return report
