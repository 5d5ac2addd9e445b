"""Frozen dataclasses without the cost of frozen ones: only the type checker refuses writes.

Python makes a frozen one with a call for each field, which takes five times as long, and a turn makes some forty.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool, slots: bool) -> Any:
        """Make a dataclass that compares and hashes as a frozen one."""
        return dataclasses.dataclass(slots=slots, unsafe_hash=frozen)
