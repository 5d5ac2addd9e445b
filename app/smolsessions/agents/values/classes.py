"""Fields of instances of the classes that an agent declares."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections.abc import Iterator
from types import MemberDescriptorType
from typing import Any

_BUILTINS = (int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, type, BaseException)


def class_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def member_name(value: Any) -> str | None:
    """Return the name of an enum's member, or None for instances of other classes."""
    if not isinstance(value, enum.Enum):
        return None
    if type(value).__members__.get(value.name) is not value:
        raise ValueError("it is no single member of its enum")
    return value.name


def member(kind: type, name: str) -> Any:
    if not issubclass(kind, enum.Enum) or name not in kind.__members__:
        raise ValueError(f"{class_name(kind)} has no member {name!r:.40}")
    return kind.__members__[name]


def fields_of(value: Any, kind: type) -> dict[str, Any]:
    """Return the fields of an instance in its slots and its dict, except those that Python computes again."""
    if issubclass(kind, _BUILTINS):
        what = "number, text, collection, exception or class"
        raise ValueError(f"a declared class must not be a kind of {what}")  # noqa: TRY004 - a reason of the codec
    fields = {name: getattr(value, name) for name in _slots(kind) if hasattr(value, name)}
    own = getattr(value, "__dict__", {})
    return fields | {name: item for name, item in own.items() if not _is_computed(kind, name)}


def instance(kind: type, fields: dict[Any, Any]) -> Any:
    """Make an instance with these fields, which may be hostile. No method and no property of its class runs."""
    if issubclass(kind, (*_BUILTINS, enum.Enum)):
        raise ValueError(f"{class_name(kind)} is made in another way")  # noqa: TRY004 - as above
    slots = set(_slots(kind))
    made: Any = object.__new__(kind)
    own: dict[str, Any] | None = None
    with contextlib.suppress(AttributeError):  # it has slots alone
        own = object.__getattribute__(made, "__dict__")
    for name in fields:
        is_special = type(name) is str and name[:2] == name[-2:] == "__" and name not in slots
        if type(name) is not str or is_special or _is_computed(kind, name):
            raise ValueError(f"{class_name(kind)} has no field {name!r:.40}")
        if name not in slots and own is None:
            raise ValueError(f"{class_name(kind)} has slots alone")
    if dataclasses.is_dataclass(kind):
        missing = {field.name for field in dataclasses.fields(kind) if field.init} - fields.keys()
        if missing:
            raise ValueError(f"{class_name(kind)} misses {sorted(missing)}")
    for name, item in fields.items():
        if own is None or name in slots:
            object.__setattr__(made, name, item)
        else:
            own[name] = item  # an attribute of the class may be a descriptor that runs code
    return made


def _slots(kind: type) -> Iterator[str]:
    for ancestor in kind.__mro__:
        yield from (name for name, found in vars(ancestor).items() if type(found) is MemberDescriptorType)


def _is_computed(kind: type, name: str) -> bool:
    """True if a class computes an attribute, so that an instance must not bring its own."""
    found = next((vars(ancestor)[name] for ancestor in kind.__mro__ if name in vars(ancestor)), None)
    is_field = type(found) is MemberDescriptorType or name in vars(kind).get("__dataclass_fields__", {})
    return not is_field and hasattr(type(found), "__get__")
