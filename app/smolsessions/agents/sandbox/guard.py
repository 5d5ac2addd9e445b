"""Checks that smolagents' interpreter lacks: they refuse objects from which code could reach any module.

smolagents looks `check_safer_result` and `getattr` up in its module at every use. Replacing them there covers code
processes and `executor = "thread"`. `install` fails with a release of smolagents that works otherwise.
"""

from __future__ import annotations

import _string  # type: ignore[import-not-found]  # it has no stub
import builtins
import itertools
import socket
import string
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smolagents import local_python_executor as interpreter
from smolagents.local_python_executor import InterpreterError, LocalPythonExecutor, PythonExecutor

from smolsessions.agents.sandbox.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_HIDDEN = (types.FrameType, types.TracebackType, types.CodeType, PythonExecutor, Channel, socket.socket)
_HARMLESS = frozenset({bool, bytes, complex, float, int, list, set, str, tuple, types.NoneType, types.EllipsisType})
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_LOADERS = frozenset({"_frozen_importlib", "_frozen_importlib_external", "importlib", "zipimport"})
_DANGEROUS = _LOADERS | {"_ctypes", "_posixsubprocess", "ctypes", "gc", "inspect", "marshal", "nt", "posix"}
_DANGEROUS |= {name for name in interpreter.DANGEROUS_MODULES if name not in {"builtins", "io"}}
_C_TYPES = "_ctypes"
_MODULE_OF = type.__dict__["__module__"].__get__
_smolagents_check = interpreter.check_safer_result


def install() -> None:
    """Make smolagents' interpreter use these checks in this process. Raises `RuntimeError` if it ignores them."""
    if interpreter.check_safer_result is check:
        return
    interpreter.check_safer_result = check
    vars(interpreter)["getattr"] = _getattr
    interpreter.BASE_PYTHON_TOOLS["setattr"] = _setattr
    executor = LocalPythonExecutor([], timeout_seconds=None)
    executor.send_tools({})
    for code in ("(x for x in [1]).gi_frame", "class Name(str):\n    pass\ngetattr(len, Name('__self__'))"):
        try:
            executor(code)
        except InterpreterError:
            continue
        raise RuntimeError(
            "This release of smolagents ignores the checks of its interpreter; use one that is supported."
        )


def tool_stub(name: str, call: Callable[..., Any], about: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a function that stands for a tool. It carries the tool's data and no reference to the tool."""

    def stub(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    stub.__name__ = stub.__qualname__ = name
    stub.__doc__ = str(about.get("description", ""))
    vars(stub).update({"name": name, **about})
    return stub


def check(result: Any, static_tools: Any = None, authorized_imports: list[str] | None = None) -> None:
    """Raise `InterpreterError` for an object that code must not hold."""
    kind = type(result)
    if kind in _HARMLESS:
        return
    imports = authorized_imports or []
    if issubclass(kind, _HIDDEN):
        raise InterpreterError(f"Forbidden access to an object of the class {kind.__name__}")
    _smolagents_check(result, static_tools, imports)
    if issubclass(kind, _FUNCTIONS):
        _check_module(result.__module__, _DANGEROUS, imports)
    elif issubclass(kind, type):
        _check_module(_MODULE_OF(kind), {_C_TYPES}, imports)
        _check_module(_MODULE_OF(result), _DANGEROUS, imports)
    else:
        _check_module(_MODULE_OF(kind), _LOADERS, imports)
        _check_module(_MODULE_OF(type(kind)), {_C_TYPES}, imports)


def _check_module(module: Any, dangerous: Collection[str], imports: list[str]) -> None:
    if type(module) is not str or module.partition(".")[0] not in dangerous:
        return
    public = {"posix": "os", _C_TYPES: "ctypes"}.get(module, module)
    if not any(interpreter.check_import_authorized(name, imports) for name in (module, public)):
        raise InterpreterError(f"Forbidden access to an object of the module {public}")


def _getattr(value: Any, name: str, *default: Any) -> Any:
    """Replace `getattr` in smolagents' module. Its own check for dunders trusts subclasses of `str`, which may lie."""
    if type(name) is not str:
        raise InterpreterError("The name of an attribute is no plain text; make it one with `'' + name`.")
    found = builtins.getattr(value, name, *default)
    if name in {"format", "format_map"}:
        if found is vars(str)[name]:
            return CheckedFormat(name)
        if type(found) is types.BuiltinMethodType and issubclass(type(found.__self__), str):
            return CheckedFormat(name, str.__str__(found.__self__))
    return found


def _setattr(value: Any, name: str, new: Any) -> None:
    if type(name) is not str or issubclass(type(value), types.ModuleType):
        raise InterpreterError("setattr takes an object that is no module, and the name as a plain text.")
    setattr(value, name, new)


@dataclass(frozen=True)
class CheckedFormat:
    """`str.format` or `str.format_map`, bound or not, whose fields reach only what expressions may reach."""

    method: str
    text: str | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        text, args = (args[0], args[1:]) if self.text is None else (self.text, args)
        if "." not in (text := str.__str__(text)) and "[" not in text:
            return str(builtins.getattr(text, self.method)(*args, **kwargs))
        found: list[Any] = []
        fields = _Fields(args, args[0] if self.method == "format_map" else kwargs)
        return fields.numbered(text, found).format(*found)


class _Fields:
    """Evaluates each field of a format once, since a property could return another value the next time."""

    def __init__(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        self._args = args
        self._named = named
        self._numbers = itertools.count()

    def numbered(self, text: str, found: list[Any]) -> str:
        """Return the format with numbered fields and append their values to `found`."""
        parts = []
        for literal, field, spec, conversion in string.Formatter().parse(text):
            parts.append(literal.replace("{", "{{").replace("}", "}}"))
            if field is not None:
                number = len(found)
                found.append(self._value(field))
                inner = self.numbered(spec or "", found)
                parts.append(f"{{{number}{f'!{conversion}' if conversion else ''}:{inner}}}")
        return "".join(parts)

    def _value(self, field: str) -> Any:
        first, rest = _string.formatter_field_name_split(field)
        first = next(self._numbers) if first == "" else first
        value = self._args[first] if isinstance(first, int) else self._named[first]
        for is_attribute, key in rest:
            value = interpreter.nodunder_getattr(value, key) if is_attribute else value[key]
            check(value)
        return value
