"""Frozen records: dataclasses without behaviour that a type checker keeps from changing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(kind: type[T]) -> type[T]:
    """Make a class a dataclass without a hash, frozen for the type checker only: at run time it would cost 5 %."""
    kind.__hash__ = _refuse_hash  # type: ignore[method-assign]  # None would forbid it as the default of a field
    return dataclass(slots=True)(kind)


def changed(old: T, **values: Any) -> T:
    """Return a copy of a record of several fields with new values. `dataclasses.replace` takes twice as long."""
    kind: Any = type(old)
    new: T = kind(*_values_of(kind)(old))
    for name, value in values.items():
        setattr(new, name, value)
    return new


@cache
def _values_of(kind: Any) -> attrgetter[tuple[Any, ...]]:
    return attrgetter(*kind.__match_args__)


def _refuse_hash(self: object) -> int:
    raise TypeError(f"a {type(self).__name__} can change, so it has no hash")
