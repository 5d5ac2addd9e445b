"""Fixtures of all tests: shared services, store servers, and a gate."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service import Gate, Service, shared_service
from tests.support.store_server import StoreServer, running_store

service = shared_service(lambda folder: Service(folder, forked=False), scope="session")
"""A running service with the tests' agents and the demos. Each test uses conversations of its own."""
narrow = shared_service({"THREADS": "1"}, scope="session")
"""A service that plays one turn at a time."""


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with running_store(tmp_path_factory.mktemp("outside")) as shared:
        yield shared


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("folder")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StoreServer]:
    with running_store(tmp_path / "store") as own:
        yield own


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """Yield a closed gate. It is open at the end, so that a test that fails leaves no turn behind."""
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.open()
