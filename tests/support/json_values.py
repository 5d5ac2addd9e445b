"""Strategies for JSON values, and the pointer of a refused one."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from smolsessions.core.errors import InvalidRequestError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)


def pointer_of(call: Callable[[], object]) -> str:
    """Return the pointer of the call's error. The error's message can be sent to any client."""
    with pytest.raises(InvalidRequestError) as raised:
        call()
    error = raised.value
    json.dumps([error.message, error.extensions], ensure_ascii=False).encode()
    problems: Any = error.extensions["errors"]
    assert len(error.message) < 2000
    return str(problems[0]["pointer"])


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def places_in(data: Any) -> list[tuple[Any, Any]]:
    """Return every place in JSON data: the object or list that has it, and its name or index there."""
    places = [(data, name) for name in data]
    for parent, name in places:
        inner = parent[name]
        if isinstance(inner, dict | list):
            places += [(inner, part) for part in (inner if isinstance(inner, dict) else range(len(inner)))]
    return places
