"""Limits of encoded values, and the types of values that are made of parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeVar

Make = TypeVar("Make", bound=Callable[..., Any])

MAX_BYTES = 64 * 1024 * 1024
MAX_NODES = 1_000_000
MAX_DEPTH = 100
MAX_INT_BITS = 14_280  # 4,299 digits: str() refuses longer ones
MAX_SAME_HASH = 50
SET_WEIGHT = 2  # in nodes, of an empty one


class Composite(NamedTuple):
    """A value split into parts. Each part is a value with an encoding, or a `Composite` itself."""

    kind: str
    parts: tuple[Any, ...]


class Declared(NamedTuple):
    """Fields of an instance of a declared class, or the name of an enum's member."""

    name: str
    content: dict[str, Any] | str


class Kind(NamedTuple):
    """Exact classes of each part (none: any class), and the function that joins the parts."""

    parts: tuple[tuple[type, ...], ...]
    make: Callable[..., Any]
    weight: int = 10  # in nodes, for its time and memory


KINDS: dict[str, Kind] = {}


def joined(name: str, *parts: tuple[type, ...], weight: int = 10) -> Callable[[Make], Make]:
    """Decorate the function that joins the parts of a kind."""

    def register(make: Make) -> Make:
        KINDS[name] = Kind(parts, make, weight)
        return make

    return register


def check_keys(keys: Collection[Any]) -> None:
    """Refuse crafted keys of one hash, which take hours to fill a dict. Raises TypeError for a key without a hash."""
    if len(keys) <= MAX_SAME_HASH or all(type(key) is str for key in keys):
        return  # few keys, or hashes that no sender can predict
    if max(Counter(map(hash, keys)).values()) > MAX_SAME_HASH:
        raise ValueError("too many keys of one hash")
