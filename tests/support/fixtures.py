"""Fixtures of all tests: one shared service, one image, a store server, and a gate."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.debian import path_or_skip
from tests.support.images import Image, built_once, refusal
from tests.support.service import Service
from tests.support.store_server import StoreServer, running_store
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a running service with the tests' agents and the demos. Each test uses conversations of its own."""
    with Service(tmp_path_factory.mktemp("service"), forked=False) as running:
        yield running


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Yield the image that the Dockerfile makes, built once for all of pytest's processes."""
    if why := refusal():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    path_or_skip("tini", "tini")  # the image's step copies it from this machine
    base = tmp_path_factory.getbasetemp()
    with built_once((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "image") as built:
        yield built


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StoreServer]:
    with running_store(tmp_path / "store") as outside:
        yield outside


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")
