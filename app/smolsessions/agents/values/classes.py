"""Read and make instances without calling their classes, by the slots and dicts of the interpreter."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Iterator
from types import GetSetDescriptorType, MappingProxyType, MemberDescriptorType
from typing import Any

_TYPE = vars(type)
_BUILTINS = (int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, type, BaseException)


def mro_of(kind: type) -> tuple[type, ...]:
    """Return a class's ancestors from the interpreter, not from its metaclass."""
    mro: tuple[type, ...] = _TYPE["__mro__"].__get__(kind)
    return mro


def is_in(kind: type, known: Collection[type]) -> bool:
    """True if a class descends from one of these. issubclass() would call the metaclass."""
    return any(ancestor is one for ancestor in mro_of(kind) for one in known)


def contents_of(kind: type) -> MappingProxyType[str, Any]:
    """Return the definitions of a class itself. vars() would call the metaclass."""
    contents: MappingProxyType[str, Any] = _TYPE["__dict__"].__get__(kind)
    return contents


def class_name(kind: type) -> str:
    """Return a class's full name. Its parts may be instances of hostile classes."""
    try:
        module, name = _TYPE["__module__"].__get__(kind), _TYPE["__qualname__"].__get__(kind)
    except Exception:  # noqa: BLE001 - a class without a module
        return "object without a name"
    if type(module) is not str or type(name) is not str:
        return "object without a name"
    return name if module == "builtins" else f"{module}.{name}"


class StoredClasses:
    """Classes that an agent declares, by identity and by name."""

    def __init__(self, stored_classes: Collection[type]) -> None:
        self.names = {id(kind): class_name(kind) for kind in stored_classes}
        self.kinds = {class_name(kind): kind for kind in stored_classes}


def member_name(value: Any, kind: type) -> str | None:
    """Return the name of an enum's member, or None for instances of other classes."""
    if not is_in(type(kind), (enum.EnumMeta,)):
        return None
    name = dict.get(_dict_of(value, kind), "_name_")
    if type(name) is not str or contents_of(kind)["_member_map_"].get(name) is not value:
        raise ValueError("it is no single member of its enum")
    return name


def member(kind: type, name: str) -> Any:
    found = contents_of(kind).get("_member_map_", {}).get(name)
    if found is None:
        raise ValueError(f"{class_name(kind)} has no member {name!r:.40}")
    return found


def state_of(value: Any, kind: type) -> dict[str, Any]:
    """Return the fields of an instance in its slots and its dict, except those that Python computes again."""
    if is_in(kind, _BUILTINS):
        raise ValueError("a carried class must not be a kind of number, text, collection, exception or class")
    fields = {}
    for name, slot in _slots(kind):
        try:
            fields[name] = slot.__get__(value)
        except AttributeError:
            continue  # never set
    for name, item in dict.items(_dict_of(value, kind)):
        if type(name) is not str:
            raise ValueError("one of its attributes has no plain name")
        if not _is_method(kind, name):
            fields[name] = item
    return fields


def instance(kind: type, fields: dict[Any, Any]) -> Any:
    """Make an instance with these fields. No method and no property of its class runs."""
    if is_in(kind, _BUILTINS) or is_in(type(kind), (enum.EnumMeta,)):
        raise ValueError(f"{class_name(kind)} is made in another way")
    slots = dict(_slots(kind))
    inner = {name: item for name, item in fields.items() if name not in slots}
    for name in inner:
        if type(name) is not str or (name[:2] == name[-2:] == "__") or _is_method(kind, name):
            raise ValueError(f"{class_name(kind)} has no field {name!r:.40}")
    if dataclasses.is_dataclass(kind):
        missing = {field.name for field in dataclasses.fields(kind) if field.init} - fields.keys()
        if missing:
            raise ValueError(f"{class_name(kind)} misses {sorted(missing)}")
    own = _dict_descriptor(kind)
    if inner and own is None:
        raise ValueError(f"{class_name(kind)} has slots alone")
    made: Any = object.__new__(kind)
    for name in slots.keys() & fields.keys():
        slots[name].__set__(made, fields[name])
    if inner:
        own.__get__(made).update(inner)
    return made


def _slots(kind: type) -> Iterator[tuple[str, MemberDescriptorType]]:
    for ancestor in reversed(mro_of(kind)):
        for name, found in contents_of(ancestor).items():
            if type(found) is MemberDescriptorType:
                yield name, found


def _dict_of(value: Any, kind: type) -> dict[str, Any]:
    descriptor = _dict_descriptor(kind)
    return descriptor.__get__(value) if descriptor else {}


def _dict_descriptor(kind: type) -> Any:
    found = (contents_of(ancestor).get("__dict__") for ancestor in mro_of(kind))
    return next((descriptor for descriptor in found if type(descriptor) is GetSetDescriptorType), None)


def _is_method(kind: type, name: str) -> bool:
    """True if a class computes an attribute, so that an instance must not bring its own."""
    for ancestor in mro_of(kind):
        if name in contents_of(ancestor):
            found = type(contents_of(ancestor)[name])
            return name not in contents_of(kind).get("__dataclass_fields__", {}) and any(
                "__get__" in contents_of(one) for one in mro_of(found)
            )
    return False
