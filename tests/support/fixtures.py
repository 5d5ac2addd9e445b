"""Fixtures of all tests: shared services, store servers, and a gate."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service import Service
from tests.support.store_server import StoreServer, running_store
from tests.support.waiting import Gate


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a running service with the tests' agents and the demos. Each test uses conversations of its own."""
    with Service(tmp_path_factory.mktemp("service"), forked=False) as running:
        yield running


@pytest.fixture(scope="session")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service that plays one turn at a time."""
    with Service(tmp_path_factory.mktemp("narrow"), {"THREADS": "1"}) as running:
        yield running


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """Yield a store server that the tests of a module share."""
    with running_store(tmp_path_factory.mktemp("outside")) as shared:
        yield shared


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StoreServer]:
    with running_store(tmp_path / "store") as own:
        yield own


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")
