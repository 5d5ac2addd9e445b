"""Bounds of a workspace, and the results of its searches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Bounds:
    file_bytes: int = 256 * 1024
    """Largest file that is read or written."""
    total_bytes: int = 8 * 1024 * 1024
    """Most bytes of all files together, checked at each write."""
    entries: int = 1000
    """Most files and folders together, checked at each new file."""
    matches: int = 200
    """Most results of a search."""
    searched_bytes: int = 8 * 1024 * 1024
    """Largest file that is searched."""
    searched_entries: int = 20_000
    """Most entries of folders that a search looks at."""
    search_s: float = 2.0
    """Longest time of a search."""


class Match(NamedTuple):
    """A line that a search found, cut if it is long."""

    path: str
    line: int
    text: str


class Found(list[T]):
    """Results of a search. `is_whole` is False if a bound cut them."""

    is_whole = True
