"""Process that reads a large document: its answers, its bounds and its end."""

import json
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from smolsessions.agents.transfer import document_reader
from smolsessions.agents.transfer.document_reader import DocumentReader
from smolsessions.core.errors import OverloadedError, ShuttingDownError, TooLargeError
from tests.support.documents import CODE, MAX_PIXELS
from tests.support.histories import memory_of
from tests.support.problems import problem
from tests.support.service import PATIENCE_S, PLAIN, Service
from tests.support.transfer import post_import, post_large_import, reader_of

ARGUMENTS = (None, "scripted", {"scripted": CODE}, MAX_PIXELS)
TEXT = memory_of(1) | {"title": "x" * 30_000_000}
NUMBERS = memory_of(0) | {"metadata": [1] * 900_000}  # libraries in Rust end without memory
WRONG: list[Callable[[dict[str, Any]], Any]] = [
    lambda document: document | {"turns": [{}] * 20},
    lambda document: document | {"agent": "nobody"},
    lambda document: document | {"metadata": {"a": "x" * 70_000}},
    lambda document: [document, float("nan")],
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_large_document_is_refused_as_a_small_one_is(service: Service, wrong: Callable[[Any], Any]) -> None:
    document = wrong(memory_of(2))
    small, large = (post(service, document) for post in (post_import, post_large_import))
    assert large.status_code == small.status_code != 201
    assert large.json() | {"instance": ""} == small.json() | {"instance": ""}


@pytest.mark.parametrize("document", [TEXT, NUMBERS])
def test_a_document_that_takes_too_much_memory_is_too_large(document: Any) -> None:
    with pytest.raises(TooLargeError, match="memory"):
        DocumentReader(memory_mb=35).read(json.dumps(document).encode(), *ARGUMENTS)


def test_a_process_that_hangs_or_forges_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forged:
        def __reduce__(self) -> Any:
            return Path.mkdir, (tmp_path / "made",)

    reader = DocumentReader()
    forge = f"import sys; sys.stdin.buffer.read(); sys.stdout.buffer.write({pickle.dumps(Forged())!r})"
    vars(reader)["_command"] = [sys.executable, "-c", forge]
    with pytest.raises(OverloadedError):
        reader.read(b"{}", *ARGUMENTS)
    assert not (tmp_path / "made").exists()
    monkeypatch.setattr(document_reader, "TIMEOUT_S", 0.5)
    vars(reader)["_command"] = [sys.executable, "-c", "input()\nwhile True: pass"]
    with pytest.raises(OverloadedError):
        reader.read(b"\n", *ARGUMENTS)
    reader.close()
    with pytest.raises(ShuttingDownError):
        reader.read(b"{}", *ARGUMENTS)


def test_a_killed_process_is_an_error_to_retry_and_none_outlives_its_service(tmp_path: Path) -> None:
    def send() -> httpx2.Response:
        return post_large_import(service, memory_of(1))

    with Service(tmp_path, PLAIN) as service, ThreadPoolExecutor(2) as pool:
        sent = pool.submit(send)
        reader_of(service).kill()
        problem(answer := sent.result(), 503, "overloaded")
        assert answer.headers["retry-after"] == "5"
        assert send().status_code == 201
        both = [pool.submit(send), pool.submit(send)]  # the second waits for the first
        process = reader_of(service)
        process.suspend()  # it would end before
        service.stop()
        process.wait(PATIENCE_S)
        for sent in both:
            problem(sent.result(), 503, "shutting_down")
        service.start()
        sent = pool.submit(send)
        process = reader_of(service)
        service.kill()
        process.wait(PATIENCE_S)
        assert isinstance(sent.exception(), httpx2.TransportError)
