"""Frozen records: dataclasses without behaviour that a type checker keeps from changing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(kind: type[T]) -> type[T]:
    """Make a class a dataclass without a hash. The type checker keeps it frozen.

    A check at run time would cost 5 % of a turn.
    """
    kind.__hash__ = _refuse_hash  # type: ignore[method-assign]  # None would forbid it as the default of a field
    return dataclass(slots=True)(kind)


def _refuse_hash(self: object) -> int:
    raise TypeError(f"a {type(self).__name__} can change, so it has no hash")
