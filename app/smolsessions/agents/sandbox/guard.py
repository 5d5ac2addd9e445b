"""Checks that smolagents' interpreter lacks: they refuse objects from which code could reach any module.

smolagents looks up `check_safer_result`, `getattr`, `setattr` and its functions that evaluate calls in its module at
every use. Replacing them there covers code processes and `executor = "thread"`. `install` fails with a release of
smolagents that works otherwise.

Native code reads and calls without these checks, so it must not get what they refuse. Each item of an unpacked argument
is checked, and so is each call of a builtin method that code passes on as a value (`map(dict.get, ...)`).
"""

from __future__ import annotations

import _string  # type: ignore[import-not-found]  # it has no stub
import ast
import builtins
import functools
import itertools
import socket
import string
import sys
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from smolagents import local_python_executor as interpreter
from smolagents.local_python_executor import InterpreterError, LocalPythonExecutor, PythonExecutor

from smolsessions.agents.sandbox.channel import Channel
from smolsessions.agents.sandbox.classes import is_made_here

_HIDDEN = (types.FrameType, types.TracebackType, types.CodeType, PythonExecutor, Channel, socket.socket)
_HARMLESS = frozenset({bool, bytes, complex, float, int, list, set, str, tuple, types.NoneType, types.EllipsisType})
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_LOADERS = frozenset({"_frozen_importlib", "_frozen_importlib_external", "importlib", "zipimport"})
_DANGEROUS = _LOADERS | {"_ctypes", "_posixsubprocess", "ctypes", "gc", "inspect", "marshal", "nt", "posix"}
_DANGEROUS |= {name for name in interpreter.DANGEROUS_MODULES if name not in {"builtins", "io"}}
_C_TYPES = "_ctypes"
_MODULE_OF = type.__dict__["__module__"].__get__
_HOSTS = frozenset({"smolagents", "smolsessions"})
_OF_CODE = frozenset({"custom_print", "nodunder_getattr"})  # functions of smolagents that every block has
_COPIERS = (functools.update_wrapper, functools.wraps)  # they copy attributes of any name
_FORMATS = frozenset({"format", "format_map", "vformat", "_vformat", "get_field"})
_CALLED_DUNDERS = frozenset({*interpreter.ALLOWED_DUNDER_METHODS, "__class__"})
_NAMING_DUNDERS = frozenset({"__name__", "__qualname__", "__doc__"})
_PLAIN = _HARMLESS | {bytearray, dict, frozenset}
_METHODS = (types.BuiltinMethodType, types.MethodDescriptorType, types.ClassMethodDescriptorType)
_smolagents_check = interpreter.check_safer_result
_smolagents_call = interpreter.evaluate_call
_smolagents_augassign = interpreter.evaluate_augassign
_COPY_OF_MODULE = interpreter.get_safe_module.__code__
_CALL = _smolagents_call.__code__
_IMPORT = interpreter.evaluate_import.__code__


_PROBES = (
    "(x for x in [1]).gi_frame",
    "class Name(str):\n    pass\ngetattr(len, Name('__self__'))",
    "f = lambda: 0\nf.__globals__ += 1",
    "print(*[(x for x in [1])][0].gi_frame)",
    "import queue\nqueue.Queue.get = len",
)
"""Blocks that the checks refuse."""


def install() -> None:
    """Make smolagents' interpreter use these checks in this process. Raises `RuntimeError` if it ignores them."""
    if interpreter.check_safer_result is check:
        return
    interpreter.check_safer_result = check
    vars(interpreter).update({"getattr": _getattr, "setattr": _setattr})
    interpreter.evaluate_call = _evaluate_call
    interpreter.evaluate_augassign = _evaluate_augassign
    interpreter.BASE_PYTHON_TOOLS["setattr"] = _setattr
    executor = LocalPythonExecutor([], timeout_seconds=None)
    executor.send_tools({})
    for code in _PROBES:
        try:
            executor(code)
        except InterpreterError:
            continue
        raise RuntimeError("This release of smolagents ignores the checks of its interpreter; use a supported one.")


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
        # Functions of the interpreter and the service run code or read attributes without these checks.
        module, name = result.__module__, result.__qualname__
        is_own = type(module) is str and module != __name__ and module.partition(".")[0] in _HOSTS
        is_hidden = is_own and "." not in name and name not in _OF_CODE
        if result in _COPIERS or (is_hidden and not interpreter.check_import_authorized(module, imports)):
            raise InterpreterError(f"Forbidden access to function: {name}")
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
    caller = sys._getframe(1)  # noqa: SLF001 - `getattr` has no parameter for the authorized imports
    if caller.f_code is _COPY_OF_MODULE:
        return builtins.getattr(value, name, *default)
    if type(name) is not str:
        raise InterpreterError("The name of an attribute is no plain text; make it one with `'' + name`.")
    is_called = caller.f_code is _CALL
    is_open = caller.f_code is _IMPORT or (is_called and name in _CALLED_DUNDERS)
    if name.startswith("__") and name.endswith("__") and not is_open:
        raise InterpreterError(f"Forbidden access to dunder attribute: {name}")
    found = builtins.getattr(value, name, *default)
    if type(found) in _HARMLESS:
        return found
    if name in _FORMATS:  # such a method reads attributes, in `str` as well as in other classes
        if found is vars(str).get(name):
            return CheckedFormat(name)
        if type(found) is types.BuiltinMethodType and issubclass(type(found.__self__), str):
            return CheckedFormat(name, str.__str__(found.__self__))
        if builtins.getattr(found, "__module__", None) in {"collections", "string"}:
            raise InterpreterError(f"Forbidden access to {found.__qualname__}: it reads any attribute; use str.format.")
    if is_called and type(found) is types.BuiltinMethodType and type(found.__self__) in _PLAIN:
        return found  # no check refuses it, and reading the caller's variables costs more than the call
    names = caller.f_locals
    imports = names.get("authorized_imports")
    if imports is not None:  # else this is `getattr` of the code itself, whose result smolagents checks
        check(found, names.get("static_tools"), imports)
    is_method = type(found) in _METHODS and type(builtins.getattr(found, "__self__", None)) is not types.ModuleType
    return CheckedMethod(found, tuple(imports or ())) if is_method and not is_called else found


def _setattr(value: Any, name: str, new: Any) -> None:
    """Replace `setattr` in smolagents' module, and that of the code. It spares what the code shares with others."""
    caller = sys._getframe(1).f_code  # noqa: SLF001 - see `_getattr`
    if caller is not _COPY_OF_MODULE:
        if type(name) is not str:
            raise InterpreterError("setattr takes the name as a plain text.")
        kind = type(value)
        if issubclass(kind, types.ModuleType) and caller is _CALL:
            raise InterpreterError("setattr takes an object that is no module, and the name as a plain text.")
        is_shared = issubclass(kind, type) and not is_made_here(value)
        if is_shared or (issubclass(kind, types.FunctionType) and name[:2] == "__" and name not in _NAMING_DUNDERS):
            raise InterpreterError(f"Forbidden change of {value.__name__}: set {name} on an object of your own.")
    setattr(value, name, new)


def _evaluate_call(call: ast.Call, state: Any, static_tools: Any, custom_tools: Any, authorized_imports: Any) -> Any:
    """Evaluate a call as smolagents does, after checks of the function's name and of each unpacked argument."""
    if type(call.func) is ast.Name and call.func.id in state:
        check(state[call.func.id], static_tools, authorized_imports)
    if ast.Starred in map(type, call.args) or None in [keyword.arg for keyword in call.keywords]:

        def checked(things: Any) -> Any:
            things = things if isinstance(things, dict) else list(things)
            for thing in things.values() if isinstance(things, dict) else things:
                check(thing, static_tools, authorized_imports)
            return things

        function: Any = (checked,)

        def unpacked(value: ast.expr) -> ast.expr:
            """Return a call of `checked`, which checks each item."""
            return ast.Call(ast.Subscript(ast.Constant(function), ast.Constant(0)), [value], [])

        args = [ast.Starred(unpacked(arg.value)) if isinstance(arg, ast.Starred) else arg for arg in call.args]
        keywords = [each if each.arg else ast.keyword(None, unpacked(each.value)) for each in call.keywords]
        call = ast.Call(call.func, args, keywords)
    return _smolagents_call(call, state, static_tools, custom_tools, authorized_imports)


def _evaluate_augassign(
    expression: ast.AugAssign, state: Any, static_tools: Any, custom_tools: Any, authorized_imports: Any
) -> Any:
    """Evaluate `x += y` as smolagents does, after a check of the value before, which an operator of `y` gets."""
    rest = state, static_tools, custom_tools, authorized_imports
    target = expression.target
    if isinstance(target, ast.Name):
        check(state.get(target.id), static_tools, authorized_imports)
    elif isinstance(target, ast.Subscript):
        thing, key = (interpreter.evaluate_ast(part, *rest) for part in (target.value, target.slice))
        check(thing[key], static_tools, authorized_imports)
        target = ast.Subscript(ast.Constant(thing), ast.Constant(key))
        expression = ast.AugAssign(target, expression.op, expression.value)
    return _smolagents_augassign(expression, *rest)


@dataclass(frozen=True)
class CheckedMethod:
    """Method of a builtin class that code passes on as a value. Native code calls it with checked arguments."""

    method: Any
    imports: tuple[str, ...]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        imports = [*self.imports]
        for value in (*args, *kwargs.values()):
            check(value, None, imports)
        result = self.method(*args, **kwargs)
        check(result, None, imports)
        return result

    def __get__(self, thing: Any, kind: Any = None) -> Any:
        return self if thing is None else CheckedMethod(self.method.__get__(thing, kind), self.imports)

    def __repr__(self) -> str:
        return repr(self.method)

    @property
    def __name__(self) -> str:
        return str(self.method.__name__)


@dataclass(frozen=True)
class CheckedFormat:
    """`str.format` or `str.format_map`, bound or not, whose fields reach only what expressions may reach."""

    method: str
    text: str | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        text, args = (args[0], args[1:]) if self.text is None else (self.text, args)
        if "." not in (text := str.__str__(text)) and "[" not in text:
            return str(builtins.getattr(text, self.method)(*args, **kwargs))
        named = args[0] if self.method == "format_map" else kwargs
        # Each field is evaluated once, since a property could return another value the next time.
        found: list[Any] = []
        numbers = itertools.count()

        def numbered(text: str) -> str:
            """Return the format with numbered fields and append their values to `found`."""
            parts = []
            for literal, field, spec, conversion in string.Formatter().parse(text):
                parts.append(literal.replace("{", "{{").replace("}", "}}"))
                if field is not None:
                    first, rest = _string.formatter_field_name_split(field)
                    first = next(numbers) if first == "" else first
                    value = args[first] if isinstance(first, int) else named[first]
                    for is_attribute, key in rest:
                        value = interpreter.nodunder_getattr(value, key) if is_attribute else value[key]
                        check(value)
                    number = len(found)
                    found.append(value)
                    parts.append(f"{{{number}{f'!{conversion}' if conversion else ''}:{numbered(spec or '')}}}")
            return "".join(parts)

        return numbered(text).format(*found)
