"""Fixtures: one service for the tests that share, and folders for those that start their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Give a running service with the tests' agents and the demos; tests keep to conversations of their own."""
    with Service(tmp_path_factory.mktemp("service")) as running:
        yield running
