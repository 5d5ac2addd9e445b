"""Fixture of the tests of agents."""

import sys

import pytest


@pytest.fixture(autouse=True)
def _import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the import path: to read a file of agents adds its folder."""
    monkeypatch.setattr(sys, "path", [*sys.path])
