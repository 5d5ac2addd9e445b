"""What a model's code made ⇄ bytes: functions by their source, tools and modules by name, classes taken apart.

Runs in the child process only: whoever wrote a class also decides what its unpickling does.
"""

from __future__ import annotations

import ast
import io
import pickle
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import cloudpickle
from smolagents.local_python_executor import (
    FinalAnswerException,
    PrintContainer,
    check_import_authorized,
    create_function,
    evaluate_lambda,
    get_safe_module,
    safer_func,
)

from smolsessions.agents.sandbox.classes import Attributes, class_parts, instance_parts, is_made_here

if TYPE_CHECKING:
    from collections.abc import Callable

    from smolagents.local_python_executor import LocalPythonExecutor

PROTOCOL = 5
_PRINTED, _COUNTED = "_print_outputs", "_operations_count"
_SET_BY_SMOLAGENTS = {"__ast__", "__source__"}
_PYTHON = sys.version_info[:2]

_FUNCTION = create_function(cast("ast.FunctionDef", ast.parse("def f(): pass").body[0]), {}, {}, {}, []).__code__
_LAMBDA = evaluate_lambda(cast("ast.Lambda", ast.parse("lambda: 0", mode="eval").body), {}, {}, {}, []).__code__
_TOOL = safer_func(lambda: None).__code__


class Tools(Mapping[str, Any]):
    """The executor's tools as a code block sees them, also after they have been sent anew."""

    def __init__(self, executor: LocalPythonExecutor) -> None:
        self._executor = executor
        self._final = partial(_finish, None)
        self._ids: tuple[Attributes, dict[int, str]] = {}, {}

    def bare(self) -> Attributes:
        return self._executor.static_tools or {}

    def ids(self) -> dict[int, str]:
        if self._ids[0] is not self.bare():
            names = {id(tool): name for name, tool in self.bare().items() if not isinstance(tool, type)}
            self._ids = self.bare(), names
        return self._ids[1]

    def __getitem__(self, name: str) -> Any:
        tool = self.bare()[name]
        if name != "final_answer":
            return tool
        if self._final.args[0] is not tool:
            self._final = partial(_finish, tool)
        return self._final

    def __contains__(self, name: object) -> bool:
        return name in self.bare()

    def __iter__(self) -> Iterator[str]:
        return iter(self.bare())

    def __len__(self) -> int:
        return len(self.bare())


class Scope:
    """Where restored functions look their names up: the live executor, or a scratch one that nothing else sees."""

    def __init__(self, executor: LocalPythonExecutor, *, scratch: bool = False) -> None:
        self.state: Attributes = {} if scratch else executor.state
        self.functions: Attributes = {} if scratch else executor.custom_tools
        self.tools = Tools(executor)
        self.imports: list[str] = executor.authorized_imports

    def quiet(self) -> dict[str, int]:
        """Make room for what functions print while values are loaded; give the counter of the operations they do."""
        self.state[_PRINTED] = PrintContainer()
        operations = self.state[_COUNTED] = {"counter": 0}
        return operations

    def names(self) -> tuple[Any, Any, Any, list[str]]:
        """Give what smolagents' evaluation takes after the expression, the live state first."""
        return self.state, self.tools, self.functions, self.imports


class Pickler(cloudpickle.Pickler):
    """Writes values so that an `Unpickler` makes them again in another process, at another scope."""

    def __init__(self, file: Any, scope: Scope) -> None:
        super().__init__(file, protocol=PROTOCOL)  # type: ignore[no-untyped-call]
        self._scope = scope
        self._tools: dict[int, str] = {}
        self._bound: Mapping[int, str] = {}
        self.made_here: set[int] = set()
        self.needs: set[str] = set()

    def write(self, obj: Any, bound: Mapping[int, str]) -> None:
        """Write one object; `bound` are the classes, by their `id`, that the reader will find under a name."""
        self.clear_memo()
        self.globals_ref.clear()
        self.made_here.clear()
        self.needs.clear()
        self._tools = self._scope.tools.ids()
        self._bound = bound
        pickle.Pickler.dump(self, obj)

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is types.FunctionType:
            return self._function(obj)
        if issubclass(kind, type):
            return self._class(obj)
        if id(obj) in self._tools:
            return _bare_tool, (self._tools[id(obj)],)
        if kind is types.ModuleType:
            return _module, (_authorized(obj.__name__, self._scope.imports),)
        return _parts(obj, kind)

    def _function(self, function: types.FunctionType) -> Any:
        if function.__code__ is _FUNCTION or function.__code__ is _LAMBDA:
            return self._interpreted(function)
        if function.__code__ is _TOOL:
            return _tool, (_tool_name(function),)
        if id(function) in self._tools:
            return _bare_tool, (self._tools[id(function)],)
        if function.__code__.co_filename == _FUNCTION.co_filename and "<locals>" in function.__qualname__:
            raise pickle.PicklingError("a function of the interpreter's own stays with its process")
        return _with_modules_by_name(super().reducer_override(function))  # type: ignore[no-untyped-call]

    def _interpreted(self, function: types.FunctionType) -> Any:
        self.made_here.add(id(function))
        cells = _cells(function)
        state = cells["state"]
        node = cells["func_def"] if "func_def" in cells else cells["lambda_expression"]
        source, names = _read(node)
        is_global = state is self._scope.state
        captured = None if is_global else {name: state[name] for name in names if name in state}
        own = {name: value for name, value in vars(function).items() if name not in _SET_BY_SMOLAGENTS}
        return _function, (source, is_global), (captured, own), None, None, _fill_function

    def _class(self, kind: type) -> Any:
        if not is_made_here(kind):
            return super().reducer_override(kind)  # type: ignore[no-untyped-call]
        if id(kind) in self._bound:
            self.needs.add(self._bound[id(kind)])
            return _bound_class, (self._bound[id(kind)],)
        self.made_here.add(id(kind))
        return class_parts(kind, lambda value: is_settled(value, self._scope))


class Unpickler(pickle.Unpickler):
    """Makes the values again; their functions look names up at the scope given."""

    def __init__(self, file: io.BytesIO, scope: Scope) -> None:
        super().__init__(file)
        self._scope = scope

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__ and name in _NEEDS_SCOPE:
            return partial(_NEEDS_SCOPE[name], scope=self._scope)
        return super().find_class(module, name)


def is_settled(value: Any, scope: Scope) -> bool:
    """Tell a function that will have the same bytes as long as it is the same object: nothing captured, nothing set."""
    return (
        type(value) is types.FunctionType
        and (value.__code__ is _FUNCTION or value.__code__ is _LAMBDA)
        and vars(value).keys() <= _SET_BY_SMOLAGENTS
        and _cells(value)["state"] is scope.state
    )


def _function(source: str, is_global: bool, scope: Scope | None = None) -> Any:
    assert scope is not None
    state, *others = scope.names()
    if not is_global:
        # As with smolagents, what a closure prints goes to the block that made it, and that is over.
        state = {_PRINTED: PrintContainer(), _COUNTED: scope.state[_COUNTED]}
    node: Any = ast.parse(source).body[0]
    _read(node, source)
    if isinstance(node, ast.FunctionDef):
        return create_function(node, state, *others)
    return evaluate_lambda(node.value, state, *others)


def _fill_function(function: types.FunctionType, parts: tuple[Attributes | None, Attributes]) -> None:
    captured, own = parts
    if captured is not None:
        _cells(function)["state"].update(captured)
    vars(function).update(own)


def _tool(name: str, scope: Scope | None = None) -> Any:
    assert scope is not None
    tools: Any = scope.tools
    return safer_func(tools[name], static_tools=tools, authorized_imports=scope.imports)


def _bare_tool(name: str, scope: Scope | None = None) -> Any:
    assert scope is not None
    return scope.tools[name]


def _bound_class(name: str, scope: Scope | None = None) -> Any:
    assert scope is not None
    return scope.state[name]


def _module(name: str, scope: Scope | None = None) -> Any:
    assert scope is not None
    return get_safe_module(import_module(_authorized(name, scope.imports)), scope.imports)


_NEEDS_SCOPE: dict[str, Callable[..., Any]] = {
    make.__name__: make for make in (_function, _tool, _bare_tool, _bound_class, _module)
}


@dataclass(frozen=True)
class _RealModule:
    """A module in the globals of a library's function: never seen by the model's code, so it need not be authorized."""

    name: str

    def __reduce__(self) -> Any:
        return import_module, (self.name,)


def _with_modules_by_name(parts: Any) -> Any:
    if isinstance(parts, tuple):
        names = parts[2][1]["__globals__"]
        names.update({name: _RealModule(m.__name__) for name, m in names.items() if type(m) is types.ModuleType})
    return parts


def _view_parts(array: Any) -> Any:
    """Keep a view a view of the array that it looks into."""
    base = array.base
    if type(base) is not type(array) or array.dtype.hasobject:
        return NotImplemented
    offset = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return _view, (base, array.dtype, array.shape, offset, array.strides)


def _view(base: Any, dtype: Any, shape: tuple[int, ...], offset: int, strides: tuple[int, ...]) -> Any:
    flat = base if base.flags.c_contiguous else base.T
    return type(base)(shape, dtype, flat, offset, strides)


def _parts(obj: Any, kind: type) -> Any:
    if kind in (types.MethodType, types.BuiltinMethodType):
        return _method(obj)
    if kind is types.CodeType:
        return _code, (_PYTHON, *cloudpickle.Pickler.dispatch_table[kind](obj))
    if issubclass(kind, io.TextIOWrapper):
        raise pickle.PicklingError("a file that is open stays with its process")
    numpy = sys.modules.get("numpy")
    if numpy is not None and kind is numpy.ndarray:
        return _view_parts(obj)
    return instance_parts(obj) if is_made_here(kind) else NotImplemented


def _method(obj: Any) -> Any:
    """Name a module's own bound method (`random.randint`); any other goes with its object."""
    name = obj.__name__
    for module in {obj.__module__, type(obj.__self__).__module__}:
        if getattr(sys.modules.get(module or ""), name, None) is obj:
            return _attribute, (module, name)
    return NotImplemented


def _attribute(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def _code(python: tuple[int, int], make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    if python != _PYTHON:
        raise pickle.UnpicklingError(f"compiled for Python {python}")
    return make(*arguments)


def _finish(tool: Any, *args: Any, **kwargs: Any) -> Any:
    raise FinalAnswerException(tool(*args, **kwargs))


def _authorized(name: str, imports: list[str]) -> str:
    if not check_import_authorized(name, imports):
        raise pickle.PicklingError(f"the import of {name} is not authorized")
    return name


def _cells(function: types.FunctionType) -> Attributes:
    closure = function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, closure, strict=True)}


def _tool_name(wrapper: types.FunctionType) -> str:
    cells = _cells(wrapper)
    return next(str(name) for name, tool in cells["static_tools"].items() if tool is cells["func"])


_READ: WeakKeyDictionary[ast.AST, tuple[str, list[str]]] = WeakKeyDictionary()


def _read(node: Any, source: str | None = None) -> tuple[str, list[str]]:
    """Give a definition's source and the names that it may look up."""
    node = node.value if isinstance(node, ast.Expr) else node
    if node not in _READ:
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        names |= {"self", "__class__"} if "super" in names else set()
        _READ[node] = source or ast.unparse(node), sorted(names)
    return _READ[node]
