"""Fixtures for all tests, and readable failures for assertions in their helpers."""

import pytest

pytest.register_assert_rewrite("tests.support")  # PYTEST_DONT_REWRITE in a docstring: other processes import it, too
pytest_plugins = [f"tests.support.{m}" for m in ("fixtures", "llm", "manifests", "service_logs", "stores", "streaming")]

LONGEST = ("test_chaos", "test_damage", "test_environments", "test_image_memory", "test_providers", "test_wheel")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the modules of the longest tests, so that no process is busy with one after all others have ended."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)
