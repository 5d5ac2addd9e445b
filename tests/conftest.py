"""Fixtures for all tests, and readable failures for assertions in their helpers."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.support")
pytest_plugins = ["tests.support.fixtures"]
