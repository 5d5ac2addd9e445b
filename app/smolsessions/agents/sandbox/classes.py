"""Pickling by parts of classes that model-written code made, and of their instances, without calling their hooks.

The hooks of such a class may return anything. Only the descriptors of `type` read it, which it cannot override.
cloudpickle calls the hooks, and gives each class a random id, so that unchanged variables would be written again.
"""

from __future__ import annotations

import contextlib
import enum
import sys
import types
from collections import namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any

from smolagents.local_python_executor import create_function

Attributes = dict[str, Any]

_HEAP_TYPE = 1 << 9
_INTERPRETER = create_function.__code__.co_filename
_CLASS_DICT = type.__dict__["__dict__"].__get__
_CLASS_MRO = type.__dict__["__mro__"].__get__
_CLASS_NAME = type.__dict__["__name__"].__get__
_CLASS_QUALNAME = type.__dict__["__qualname__"].__get__
_CLASS_BASES = type.__dict__["__bases__"].__get__
_CLASS_FLAGS = type.__dict__["__flags__"].__get__
_ARGS = BaseException.__dict__["args"].__get__
_INIT_SUBCLASS = "__init_subclass__"
_MADE_WITH_THE_CLASS = {"__dict__", "__weakref__", "__slotnames__", "_abc_impl", "__slots__", "__module__"}


def is_made_here(kind: type) -> bool:
    """Return whether a class must be pickled with its instances: it can neither be imported nor is it compiled."""
    if not _CLASS_FLAGS(kind) & _HEAP_TYPE:
        return False
    module = _CLASS_DICT(kind).get("__module__")
    scope: Any = sys.modules.get(module) if type(module) is str else None
    found = scope
    for part in _CLASS_QUALNAME(kind).split("."):
        found = getattr(found, part, None)
    return found is not kind and (getattr(scope, "__file__", None) or "").endswith(".py")


def is_named_class(name: str, value: Any) -> bool:
    """Return whether this is a class made here and bound to its own name, by which other chunks may refer to it."""
    return issubclass(type(value), type) and _CLASS_NAME(value) == name and is_made_here(value)


def class_parts(kind: type, stands_alone: Callable[[Any], bool]) -> Any:
    """Return the parts that create a class, and those that are set afterwards, since they may refer to it.

    Functions that capture nothing are set at once: an instance in a set that the class holds needs its `__hash__`.
    """
    namespace = _CLASS_DICT(kind)
    name, bases, module = _CLASS_NAME(kind), _CLASS_BASES(kind), namespace.get("__module__")
    if bases == (tuple,) and "_field_defaults" in namespace:
        defaults = tuple(namespace["_field_defaults"].values())
        return partial(namedtuple, name, namespace["_fields"], defaults=defaults, module=module), ()  # noqa: PYI024
    if issubclass(kind, enum.Enum):
        members = {name: member._value_ for name, member in namespace["_member_map_"].items()}
        written = {
            key: value
            for key, value in namespace.items()
            if type(value) is types.FunctionType and value.__code__.co_filename == _INTERPRETER
        }
        return _enum, (type(kind), name, bases, {"__module__": module, **written, **members})
    made = {key: value for key, value in namespace.items() if key in {"__module__", "__slots__"} or stands_alone(value)}
    rest = {
        key: value
        for key, value in namespace.items()
        if key not in _MADE_WITH_THE_CLASS and key not in made and type(value) is not types.MemberDescriptorType
    }
    return _class, (type(kind), name, bases, made), rest, None, None, _fill_class


def _class(metaclass: Any, name: str, bases: tuple[type, ...], made: Attributes) -> type:
    """Create a class without the parts that may refer to it."""
    # The namespace already holds the changes of a model's metaclass.
    metaclass_new = type.__new__ if is_made_here(metaclass) else metaclass.__new__
    own = [base for base in bases if is_made_here(base)]
    hooks = [(base, _CLASS_DICT(base)[_INIT_SUBCLASS]) for base in own if _INIT_SUBCLASS in _CLASS_DICT(base)]
    try:
        for base in own:  # it has run already, when the model's code made the subclass
            type.__setattr__(base, _INIT_SUBCLASS, classmethod(lambda _, /, **__: None))
        return metaclass_new(metaclass, name, bases, dict(made))  # type: ignore[no-any-return]
    finally:
        for base in own:
            type.__delattr__(base, _INIT_SUBCLASS)
        for base, hook in hooks:
            type.__setattr__(base, _INIT_SUBCLASS, hook)


def _fill_class(kind: type, rest: Attributes) -> None:
    for name, value in rest.items():
        type.__setattr__(kind, name, value)


def _enum(metaclass: Any, name: str, bases: tuple[type, ...], written: Attributes) -> Any:
    namespace = metaclass.__prepare__(name, bases)
    for key, value in written.items():
        namespace[key] = value
    return metaclass(name, bases, namespace)


def instance_parts(obj: Any) -> Any:
    """Return the parts of an instance without calling its class's hooks."""
    kind = type(obj)
    if issubclass(kind, enum.Enum):
        return _member, (kind, obj._name_, obj._value_)
    origin = next(base for base in _CLASS_MRO(kind) if not is_made_here(base))
    if issubclass(origin, BaseException):
        return _instance, (kind, origin, _ARGS(obj)), _attributes(obj), None, None, _fill_instance
    if origin.__new__ is not object.__new__:
        return NotImplemented
    return _instance, (kind,), _attributes(obj), None, None, _fill_instance


def _attributes(obj: Any) -> tuple[Attributes | None, Attributes | None]:
    slots = {}
    for base in _CLASS_MRO(type(obj)):
        for name, member in _CLASS_DICT(base).items() if "__slots__" in _CLASS_DICT(base) else ():
            if type(member) is types.MemberDescriptorType:
                with contextlib.suppress(AttributeError):  # it was never set
                    slots[name] = member.__get__(obj)
    return _own_dict(obj), slots or None


def _own_dict(obj: Any) -> Attributes | None:
    """Return an instance's own dict, even if its class overrides `__dict__`."""
    for base in _CLASS_MRO(type(obj)):
        descriptor = _CLASS_DICT(base).get("__dict__")
        if type(descriptor) is types.GetSetDescriptorType:
            return descriptor.__get__(obj)  # type: ignore[no-any-return]
    return None


def _instance(kind: type, origin: Any = object, args: tuple[Any, ...] = ()) -> Any:
    made = origin.__new__(kind, *args)
    if origin is not object:  # an exception
        made.args = args
    return made


def _fill_instance(obj: Any, parts: tuple[Attributes | None, Attributes | None]) -> None:
    attributes, slots = parts
    own = _own_dict(obj)
    if attributes and own is not None:
        own.update(attributes)
    for base in _CLASS_MRO(type(obj)) if slots else ():
        for name in slots or ():
            member = _CLASS_DICT(base).get(name)
            if type(member) is types.MemberDescriptorType:
                member.__set__(obj, slots[name])  # type: ignore[index]


def _member(kind: Any, name: str | None, value: Any) -> Any:
    members = kind._member_map_
    return members[name] if name in members else kind(value)
