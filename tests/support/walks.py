"""Walk of attributes, as model-written code does it, from every name that a block sees. PYTEST_DONT_REWRITE."""

import ast
import sys
import types
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

from smolagents.local_python_executor import ERRORS, PythonExecutor, check_import_authorized, evaluate_ast

from smolsessions.agents.sandbox import child

DEPTH, MOST, MOST_ITEMS = 6, 12_000, 300
FRAMES = (types.FrameType, types.TracebackType, types.CodeType)
INNER = "__globals__ __closure__ __code__ __self__ __func__ __dict__ __class__ __wrapped__ __traceback__ __loader__"


class Operand:
    """Keeps the other operand of an augmented assignment, which the interpreter hands to it."""

    def __init__(self) -> None:
        self.other: Any = None

    def __radd__(self, other: Any) -> None:
        self.other = other


class Name(str):  # noqa: SLOT000 - as code writes one
    def startswith(self, *_: Any) -> bool:
        return False


def forge(result: dict[str, Any]) -> None:
    """Let the process send this in place of the results of its blocks."""
    child._CodeRunner._save = lambda _: result  # type: ignore[method-assign, assignment] # noqa: SLF001


def walk() -> str:
    """Return the paths to forbidden places, one a line, or the number of objects seen."""
    block = _names_of_block()
    state, tools, functions, imports = block
    inside = [(id(thing), kind) for thing, kind in zip(block, ("names", "tools", "functions", "imports"), strict=True)]
    walker = _Walker(tools, functions, imports, dict(inside))
    names = [*state, *tools, *functions, *ERRORS]
    found = walker.run({name: walker.evaluate(ast.Name(name), state) for name in names})
    return "\n".join(found[:40]) or f"nothing among {len(walker.seen)} of {len(names)}: {' '.join(names)}"


def _names_of_block() -> tuple[Any, Any, Any, Any]:
    frame = sys._getframe()  # noqa: SLF001 - the code that is walked for has no other way in
    while frame.f_code.co_name != "evaluate_call":
        assert frame.f_back
        frame = frame.f_back
    values = frame.f_locals
    return values["state"], values["static_tools"], values["custom_tools"], values["authorized_imports"]


class _Walker:
    def __init__(self, tools: Any, functions: Any, imports: Any, inside: dict[int, str]) -> None:
        self._rest = tools, functions, imports
        self._imports: list[str] = list(imports)
        self._inside = inside
        self.seen: dict[int, Any] = {}

    def evaluate(self, expression: ast.AST, names: dict[str, Any]) -> Any:
        """Evaluate as the interpreter does. Return None for a refused expression."""
        try:
            return evaluate_ast(expression, names, *self._rest)
        except Exception:  # noqa: BLE001 - a foreign attribute may fail in any way
            return None

    def run(self, start: dict[str, Any]) -> list[str]:
        found = []
        queue = deque((name, value, 0) for name, value in start.items())
        while queue and len(self.seen) < MOST:
            path, value, depth = queue.popleft()
            if value is None or id(value) in self.seen:
                continue
            self.seen[id(value)] = value
            if why := self._is_forbidden(value):
                found.append(f"{path} is {why}")
            elif depth < DEPTH:
                queue.extend((path + step, after, depth + 1) for step, after in self._after(value))
        return found

    def _after(self, value: Any) -> Iterator[tuple[str, Any]]:
        try:
            names = [name for name in dir(value) if type(name) is str]
        except Exception:  # noqa: BLE001 - see above
            names = []
        for name in names:
            if not name.startswith("__"):
                yield f".{name}", self.evaluate(ast.Attribute(ast.Name("it"), name), {"it": value})
        for name in (*INNER.split(), *(name for name in names if name.startswith(("tb_", "gi_", "__sub")))):
            operand = Operand()
            target = ast.Attribute(ast.Name("it"), str(name))
            self.evaluate(ast.AugAssign(target, ast.Add(), ast.Name("e")), {"it": value, "e": operand})
            if operand.other is not None:
                yield f".{name} +=", operand.other
            call = ast.Call(ast.Name("getattr"), [ast.Name("it"), ast.Name("name")], [])
            yield f".{name}", self.evaluate(call, {"it": value, "name": Name(name)})
        if isinstance(value, dict):
            items = list(islice(value.items(), MOST_ITEMS))
        elif type(value) in (list, tuple, set, frozenset, deque):
            items = list(enumerate(islice(value, MOST_ITEMS)))
        else:
            return
        if not isinstance(value, dict):
            call = ast.Call(ast.Name("take"), [ast.Starred(ast.Name("it"))], [])
            taken = self.evaluate(call, {"it": value, "take": lambda *taken: [list, taken]})
            yield from [(f"[*][{key}]", item) for key, item in enumerate(taken[1][:MOST_ITEMS] if taken else ())]
        for key, item in items:
            yield f"[{key!r:.40}]", self.evaluate(ast.Name("it"), {"it": item})

    def _is_forbidden(self, value: Any) -> str:
        kind = type(value)
        if id(value) in self._inside:
            return f"the interpreter's {self._inside[id(value)]}"
        if issubclass(kind, (*FRAMES, PythonExecutor)):
            return f"a {kind.__name__}"
        if kind is dict and "__builtins__" in value:
            return "the names of a module"
        if (
            kind.__module__.startswith("smolsessions.")
            and not issubclass(kind, Exception)
            and kind.__name__ not in {"CheckedFormat", "CheckedMethod", "_Prints"}
        ):
            return f"the service's own {kind.__name__}"
        if issubclass(kind, types.ModuleType):
            spec = getattr(value, "__spec__", None)
            name = spec.name if spec else value.__name__
            return "" if check_import_authorized(name, self._imports) else f"the module {name}"
        return ""
