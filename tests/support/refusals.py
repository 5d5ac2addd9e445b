"""Starts that the service must refuse. A table of them runs at once, on all cores in parallel."""

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import yaml

from tests.support.data import data
from tests.support.service import ROOT, run

Ending = tuple[int, str, str]


@dataclass(frozen=True)
class Refused:
    """Settings (without their prefix) that cannot work, and the words that the error must contain."""

    settings: Mapping[str, str]
    told: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""  # its working directory, below the table's


def refused(name: str, **values: str) -> dict[str, Refused]:
    """Return the table of a file in tests/data. `<name>` in it stands for a value."""
    text = data(name)
    for each, value in values.items():
        text = text.replace(f"<{each}>", value)
    return {what: Refused(**case) for what, case in yaml.safe_load(text).items()}


@contextmanager
def started(table: Mapping[str, Refused], logs: Path, cwd: Path = ROOT) -> Iterator[dict[str, Future[Ending]]]:
    def start(number: int, case: Refused) -> Ending:
        return run(logs / str(number), dict(case.settings), cwd=cwd / case.folder, **case.environment)

    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        yield {name: pool.submit(start, number, case) for number, (name, case) in enumerate(table.items())}
    finally:
        pool.shutdown(cancel_futures=True)


def sentence_of(ending: Ending) -> str:
    """Check that a start was refused properly, and return the sentence of its error."""
    status, output, errors = ending
    assert "Traceback" not in errors, errors
    assert (status, output) == (2, ""), (status, output, errors)
    _log, found, sentence = errors.partition("smolsessions: ")  # a slow machine may log before it refuses
    assert found, errors
    return found + sentence


def assert_refused(table: Mapping[str, Refused], logs: Path, secrets: Iterable[str]) -> None:
    """Check that each start of a table is refused with its words and without a secret."""
    with started(table, logs) as endings:
        for name, ending in endings.items():
            sentence = sentence_of(ending.result())
            assert [part for part in table[name].told if part not in sentence] == [], (name, sentence)
            assert not [each for each in secrets if each in sentence or quote(each, safe="") in sentence], name
