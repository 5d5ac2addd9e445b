"""What both directions and all kinds share: the bounds, the form of a kind made of simpler values, a check of keys."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

MAX_BYTES = 64 * 1024 * 1024
MAX_NODES = 1_000_000
MAX_DEPTH = 100
MAX_INT_BITS = 14_280  # 4,299 digits: str() refuses longer ones
MAX_SAME_HASH = 50
SET_WEIGHT = 2  # in nodes: what an empty one takes


class Parts(NamedTuple):
    """A value taken apart; a part is a value that crosses, or Parts itself."""

    kind: str
    parts: tuple[Any, ...]


class Declared(NamedTuple):
    """An instance of a carried class before it is made: its fields, or the name of an enum's member."""

    name: str
    content: dict[str, Any] | str


class Kind(NamedTuple):
    """How a value is put together: the classes that each part must be of, exactly (none named: any), and the maker."""

    parts: tuple[tuple[type, ...], ...]
    make: Callable[..., Any]
    weight: int = 10  # in nodes: what it costs to make and to keep
    hashable: bool = True


def check_keys(keys: Collection[Any]) -> None:
    """Refuse keys made to share one hash: a dict of them takes hours to fill. A TypeError where one has no hash."""
    if len(keys) <= MAX_SAME_HASH or all(type(key) is str for key in keys):
        return  # few, or of hashes that nobody foresees
    if max(Counter(map(hash, keys)).values()) > MAX_SAME_HASH:
        raise ValueError("too many keys of one hash")
