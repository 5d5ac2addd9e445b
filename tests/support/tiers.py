"""Tiers of the tests: `make test` runs the fast ones, and `make test-deep` the rest. CONTRIBUTING has the rule."""

from collections.abc import Container, Iterable
from typing import Any

import pytest

deep = pytest.mark.deep


def mostly_deep(cases: Iterable[Any], fast: Container[Any], *, several: bool = False) -> list[Any]:
    """Return the cases of a matrix for `parametrize`. All except the fast ones are in the deep tier.

    `several` says that each case is a tuple for several parameters.
    """
    return [case if case in fast else pytest.param(*(case if several else [case]), marks=deep) for case in cases]


def repeated(times: int) -> pytest.MarkDecorator:
    """Repeat a test of random examples, with `_time` as its first argument: once in the fast tier, else in the deep."""
    return pytest.mark.parametrize("_time", mostly_deep(range(times), fast=[0]))
