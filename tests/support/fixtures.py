"""Fixtures of all tests: shared services, store servers, and a gate."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.support.service import Gate, Service
from tests.support.store_server import Raw, StoreServer, running_store


def shared_service(
    made: Mapping[str, str] | Callable[..., Service],
    *,
    on_outside: bool = False,
    scope: Literal["module", "session"] = "module",
    **settings: str,
) -> Any:
    """Return a fixture: a service with these settings, or the one that `made` returns for a folder and the settings.

    `on_outside` adds the settings of the store `outside`.
    """

    @pytest.fixture(scope=scope)
    def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
        folder = tmp_path_factory.mktemp("service")
        given = settings | (request.getfixturevalue("outside").settings if on_outside else {})
        with made(folder, **given) if callable(made) else Service(folder, {**made, **given}) as running:
            yield running

    return shared


def raw_store(**options: Any) -> Any:
    @pytest.fixture
    def raw(outside: StoreServer) -> Iterator[Raw]:
        with outside.client(**options) as client:
            yield client

    return raw


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
