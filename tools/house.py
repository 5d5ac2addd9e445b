"""Count lines, private functions with one use, `TYPE_CHECKING` blocks and circles of imports below a folder."""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from pathlib import Path

APP = Path("app")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=APP / "smolsessions", help="counted; uses are sought in all of app/"
    )
    parser.add_argument("--names", action="store_true", help="name the private functions with one use, by file")
    arguments = parser.parse_args()
    trees = {path: ast.parse(path.read_text()) for path in sorted(APP.rglob("*.py"))}
    uses = Counter(name for tree in trees.values() for name in _names(tree))
    inside = {path: tree for path, tree in trees.items() if path.is_relative_to(arguments.folder)}
    private = [(path, function) for path, tree in inside.items() for function in _private_functions(tree)]
    once = [(path, function) for path, function in private if uses[function.name] <= 1]
    for path, function in once if arguments.names else ():
        print(f"{path}:{function.lineno} {function.name}")
    lines = sum(len(path.read_text().splitlines()) for path in inside)
    print(f"{len(inside)} files, {lines:,} lines of Python")
    print(f"{len(private)} private functions, {len(once)} with one use ({len(once) / max(len(private), 1):.0%})")
    print(f"{sum(_blocks(tree) for tree in inside.values())} TYPE_CHECKING blocks")
    for circle in _circles({_module(path): tree for path, tree in trees.items()}):
        print("circle of imports: " + ", ".join(circle))


def _names(tree: ast.Module) -> list[str]:
    """Return each name that the module uses, once for each use."""
    found = (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None) for node in ast.walk(tree))
    return [name for name in found if name]


def _private_functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [f for f in functions if f.name.startswith("_") and not f.name.startswith("__") and not f.decorator_list]


def _blocks(tree: ast.Module) -> int:
    return sum(isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" for node in ast.walk(tree))


def _module(path: Path) -> str:
    return ".".join(path.relative_to(APP).with_suffix("").parts).removesuffix(".__init__")


def _circles(trees: dict[str, ast.Module]) -> list[list[str]]:
    """Return the groups of modules that import each other, imports inside functions left out."""
    graph = {
        name: {target for node in _at_load(tree.body) for target in _targets(node, trees)}
        for name, tree in trees.items()
    }
    reached = {name: _reach(graph, name) for name in graph}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return [sorted(group) for group in groups if len(group) > 1]


def _at_load(body: list[ast.stmt]) -> list[ast.stmt]:
    inner = [part for node in body if isinstance(node, ast.If | ast.Try) for part in _at_load(node.body + node.orelse)]
    return [*body, *inner]


def _targets(node: ast.stmt, modules: dict[str, ast.Module]) -> set[str]:
    if isinstance(node, ast.ImportFrom) and node.module:
        full = {f"{node.module}.{alias.name}" for alias in node.names}
        return (full & modules.keys()) or ({node.module} & modules.keys())
    return {alias.name for alias in node.names} & modules.keys() if isinstance(node, ast.Import) else set()


def _reach(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph[waiting.pop()] - seen:
            seen.add(target)
            waiting.append(target)
    return seen


if __name__ == "__main__":
    main()
