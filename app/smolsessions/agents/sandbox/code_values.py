"""Pickling of values that model-written code made: functions by source, tools and modules by name, classes by parts.

Runs in the child process only, since unpickling runs the code of a model's classes.
"""

from __future__ import annotations

import ast
import copy
import io
import pickle
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, cast
from weakref import WeakKeyDictionary

import cloudpickle
from smolagents.local_python_executor import (
    FinalAnswerException,
    LocalPythonExecutor,
    PrintContainer,
    check_import_authorized,
    create_function,
    evaluate_lambda,
    get_safe_module,
    safer_func,
)

from smolsessions.agents.sandbox import clock
from smolsessions.agents.sandbox.classes import Attributes, class_parts, instance_parts, is_made_here

PROTOCOL = 5
PRINTED, COUNTED = "_print_outputs", "_operations_count"
_SET_BY_SMOLAGENTS = {"__ast__", "__source__"}
_PYTHON = sys.version_info[:2]

_FUNCTION = create_function(cast("ast.FunctionDef", ast.parse("def f(): pass").body[0]), {}, {}, {}, []).__code__
_LAMBDA = evaluate_lambda(cast("ast.Lambda", ast.parse("lambda: 0", mode="eval").body), {}, {}, {}, []).__code__
_TOOL = safer_func(lambda: None).__code__


class Scope:
    """Names that model-written functions look up: the interpreter's state, its functions, tools and allowed imports."""

    def __init__(self, executor: LocalPythonExecutor) -> None:
        """The executor has its tools. As in a code block, `final_answer` ends the block."""
        tools: dict[str, Any] = executor.static_tools or {}
        self.state: dict[str, Any] = executor.state
        self.functions: dict[str, Any] = executor.custom_tools
        self.imports: list[str] = executor.authorized_imports
        ending = {"final_answer": partial(_finish, tools["final_answer"])} if "final_answer" in tools else {}
        self.tools = tools | ending
        self.tool_names = {id(tool): name for name, tool in tools.items() if not isinstance(tool, type)}

    def scratch(self) -> Scope:
        """Return a scope with the same tools and no names, for a trial."""
        scope = copy.copy(self)
        scope.state, scope.functions = {}, {}
        return scope

    def begin_loading(self) -> dict[str, int]:
        """Discard the prints of functions that run while values load. Returns the counter of their operations."""
        self.state[PRINTED] = PrintContainer()
        operations = self.state[COUNTED] = {"counter": 0}
        return operations


def _finish(tool: Any, *args: Any, **kwargs: Any) -> Any:
    raise FinalAnswerException(tool(*args, **kwargs))


class Pickler(cloudpickle.Pickler):
    """Pickles values for an `Unpickler` in another process, with another scope."""

    def __init__(self, file: Any, scope: Scope, class_names: Mapping[int, str]) -> None:
        """Classes whose `id` is in `class_names` are only named: the reader has them already."""
        super().__init__(file, protocol=PROTOCOL)  # type: ignore[no-untyped-call]
        self.file = file
        self._scope = scope
        self._class_names = class_names
        self.made_here: set[int] = set()
        """Ids of the functions and classes that model-written code made, and of its references to tools."""
        self.needs: set[str] = set()
        """Names of the classes that the values refer to."""
        self.is_plain = True
        """True if the values are exact builtin data, which runs no code when it loads."""

    def reducer_override(self, obj: Any) -> Any:
        self.is_plain = False
        kind = type(obj)
        if id(obj) in self._scope.tool_names:
            return _bare_tool, (self._scope.tool_names[id(obj)],)
        if kind is types.FunctionType:
            return self._function(obj)
        if kind is types.ModuleType:
            return _module, (_authorized(obj.__name__, self._scope),)
        if not issubclass(kind, type):
            return _object_parts(obj, kind)
        if not is_made_here(obj):
            return super().reducer_override(obj)  # type: ignore[no-untyped-call]
        if name := self._class_names.get(id(obj)):
            self.needs.add(name)
            return _bound_class, (name,)
        self.made_here.add(id(obj))
        return class_parts(obj, lambda value: _is_self_contained(value, self._scope))

    def _function(self, function: types.FunctionType) -> Any:
        code = function.__code__
        if code is _TOOL:  # a wrapper that smolagents made for one use of the name
            self.made_here.add(id(function))
            cells = _cells(function)
            return _tool, (next(str(name) for name, tool in cells["static_tools"].items() if tool is cells["func"]),)
        if code is _FUNCTION or code is _LAMBDA:
            self.made_here.add(id(function))
            cells = _cells(function)
            state = cells["state"]
            source, names = _source_and_names(cells["func_def"] if "func_def" in cells else cells["lambda_expression"])
            is_global = state is self._scope.state
            captured = None if is_global else {name: state[name] for name in names if name in state}
            own = {name: value for name, value in vars(function).items() if name not in _SET_BY_SMOLAGENTS}
            return _function, (source, is_global), (captured, own), None, None, _fill_function
        if code.co_filename == _FUNCTION.co_filename and "<locals>" in function.__qualname__:
            raise pickle.PicklingError("a function of the interpreter's own stays with its process")
        parts = super().reducer_override(function)  # type: ignore[no-untyped-call]
        if isinstance(parts, tuple):
            found = parts[2][1]["__globals__"]
            found.update({name: _RealModule(m.__name__) for name, m in found.items() if type(m) is types.ModuleType})
        return parts


class Unpickler(pickle.Unpickler):
    """Restores values. Their functions look names up in `scope`."""

    def __init__(self, data: bytes, scope: Scope) -> None:
        super().__init__(io.BytesIO(data))
        self._scope = scope

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__ and name in _NEEDS_SCOPE:
            return partial(_NEEDS_SCOPE[name], scope=self._scope)
        return super().find_class(module, name)


def _is_self_contained(value: Any, scope: Scope) -> bool:
    """Return whether this is a function of the code that captures nothing and has no attributes."""
    return (
        type(value) is types.FunctionType
        and (value.__code__ is _FUNCTION or value.__code__ is _LAMBDA)
        and vars(value).keys() <= _SET_BY_SMOLAGENTS
        and _cells(value)["state"] is scope.state
    )


def _function(source: str, is_global: bool, *, scope: Scope) -> Any:
    state, others = scope.state, (scope.tools, scope.functions, scope.imports)
    if not is_global:
        # smolagents gives a closure's prints to the block that made it, which is over.
        state = {PRINTED: PrintContainer(), COUNTED: scope.state[COUNTED]}
    node: Any = ast.parse(source).body[0]
    _source_and_names(node, source)
    if isinstance(node, ast.FunctionDef):
        return create_function(node, state, *others)
    return evaluate_lambda(node.value, state, *others)


def _fill_function(function: types.FunctionType, parts: tuple[Attributes | None, Attributes]) -> None:
    captured, own = parts
    if captured is not None:
        _cells(function)["state"].update(captured)
    vars(function).update(own)


def _tool(name: str, *, scope: Scope) -> Any:
    return safer_func(scope.tools[name], static_tools=scope.tools, authorized_imports=scope.imports)


def _bare_tool(name: str, *, scope: Scope) -> Any:
    return scope.tools[name]


def _bound_class(name: str, *, scope: Scope) -> Any:
    return scope.state[name]


def _module(name: str, *, scope: Scope) -> Any:
    return get_safe_module(import_module(_authorized(name, scope)), scope.imports)


def _authorized(name: str, scope: Scope) -> str:
    if not check_import_authorized(name, scope.imports):
        raise pickle.PicklingError(f"the import of {name} is not authorized")
    return name


_NEEDS_SCOPE: dict[str, Callable[..., Any]] = {
    make.__name__: make for make in (_function, _tool, _bare_tool, _bound_class, _module)
}


@dataclass(frozen=True)
class _RealModule:
    """A module in the globals of a library's function. Code cannot reach it, so its import needs no authorization."""

    name: str

    def __reduce__(self) -> Any:
        return import_module, (self.name,)


def _object_parts(obj: Any, kind: type) -> Any:
    if kind in (types.MethodType, types.BuiltinMethodType):
        name = obj.__name__
        if clock.is_method(obj):
            return getattr, (obj.__self__, name)
        for module in {obj.__module__, type(obj.__self__).__module__}:
            if getattr(sys.modules.get(module or ""), name, None) is obj:
                return _attribute, (module, name)  # such as `random.randint`
        return NotImplemented  # it is pickled with its object
    if kind is types.CodeType:
        return _code, (_PYTHON, *cloudpickle.Pickler.dispatch_table[kind](obj))
    if issubclass(kind, io.TextIOWrapper):
        raise pickle.PicklingError("an open file stays with its process")
    numpy = sys.modules.get("numpy")
    if numpy is None or kind is not numpy.ndarray:
        return instance_parts(obj) if is_made_here(kind) else NotImplemented
    base = obj.base
    if type(base) is not kind or obj.dtype.hasobject:
        return NotImplemented
    offset = obj.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return _view, (base, obj.dtype, obj.shape, offset, obj.strides)  # a view stays a view of its array


def _view(base: Any, dtype: Any, shape: tuple[int, ...], offset: int, strides: tuple[int, ...]) -> Any:
    flat = base if base.flags.c_contiguous else base.T
    return type(base)(shape, dtype, flat, offset, strides)


def _attribute(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def _code(python: tuple[int, int], make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    if python != _PYTHON:
        raise pickle.UnpicklingError(f"compiled for Python {python}")
    return make(*arguments)


def _cells(function: types.FunctionType) -> Attributes:
    closure = function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, closure, strict=True)}


_SOURCES: WeakKeyDictionary[ast.AST, tuple[str, list[str]]] = WeakKeyDictionary()


def _source_and_names(node: Any, source: str | None = None) -> tuple[str, list[str]]:
    """Return a definition's source and the names that it may look up."""
    node = node.value if isinstance(node, ast.Expr) else node
    if node not in _SOURCES:
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        names |= {"self", "__class__"} if "super" in names else set()
        _SOURCES[node] = source or ast.unparse(node), sorted(names)
    return _SOURCES[node]
