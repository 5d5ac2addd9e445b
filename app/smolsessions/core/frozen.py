"""Frozen records: dataclasses without behaviour that a type checker keeps from changing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(kind: type[T]) -> type[T]:
    """Make a class a dataclass without a hash, frozen for the type checker only: at run time it would cost 5 %."""
    kind.__hash__ = _refuse_hash  # type: ignore[method-assign]  # None would forbid it as the default of a field
    return dataclass(slots=True)(kind)


def _refuse_hash(self: object) -> int:
    raise TypeError(f"a {type(self).__name__} can change, so it has no hash")
