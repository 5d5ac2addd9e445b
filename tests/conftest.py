"""Fixtures: one service for the tests that share, one image, and folders for those that start their own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.images import Image, built_once, refusal
from tests.support.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Give a running service with the tests' agents and the demos; tests keep to conversations of their own."""
    with Service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Give what the Dockerfile makes, made once for all of pytest's processes."""
    if why := refusal():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    base = tmp_path_factory.getbasetemp()
    with built_once((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "image") as built:
        yield built
