"""Tools of agents.toml: import strings, smolagents' own tools, and those of MCP servers.

A tool that holds state has `get_state()` and `set_state()`, and each agent gets an instance of its own. All agents
share the others, whose `setup()` runs once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from smolagents.default_tools import TOOL_MAPPING, PythonInterpreterTool, UserInputTool
from smolagents.tools import BaseTool

from smolsessions.agents.imports import import_named, require_packages
from smolsessions.agents.memory.scratchpad import READ, WRITE
from smolsessions.agents.models.keys import describe_error
from smolsessions.agents.run.agent_state import has_own_state
from smolsessions.core.errors import StartError

Loaded = tuple[Any, Callable[[], Any] | None]

OWN = "smolagents"
BASE_TOOLS = tuple(f"{OWN}:{kind.__name__}" for kind in TOOL_MAPPING.values() if kind is not PythonInterpreterTool)
RESERVED_NAMES = frozenset({"final_answer", "python_interpreter", READ, WRITE})
"""Names of tools that an agent may get beside those of its table."""
_REFUSED = {
    PythonInterpreterTool: "runs model-written code in this process; use an agent of kind code instead",
    UserInputTool: "reads from the terminal of the service, where no user is; use the option ask_user instead",
}
_NEEDED = {"DuckDuckGoSearchTool": ["ddgs"], "VisitWebpageTool": ["requests", "markdownify"]}
"""Packages that smolagents' tools import when they are made or called."""


def load_tools(entries: Sequence[str], known: dict[str, Loaded], *, add_base_tools: bool) -> Callable[[], list[Any]]:
    """Import tools, and return a function that returns those of one agent. Raises `StartError`.

    `known` holds those that other agents have loaded.
    """
    base_tools = [entry for entry in BASE_TOOLS if add_base_tools and entry not in entries]
    for entry in base_tools:
        require_packages("add_base_tools:", _NEEDED.get(entry.partition(":")[2], ()), "web-tools")
    wanted = [*entries, *base_tools]
    for entry in wanted:
        if entry in known:
            continue
        module_name, _, name = entry.partition(":")
        if module_name == OWN:
            require_packages(entry, _NEEDED.get(name, ()), "web-tools")
        found = import_named(module_name, name, "tool", "name an instance, a class or a factory of a smolagents tool")
        tool = found if isinstance(found, BaseTool) else _make(entry, found)
        check_tool(tool)
        if not has_own_state(tool):
            known[entry] = _set_up(entry, tool), None
            continue
        if tool is found:
            raise StartError(
                f"{entry} is one tool that holds state (get_state, set_state), so conversations would mix; name its "
                "class, or a function that makes it"
            )

        def make_own(entry: str = entry, make: Any = found) -> Any:
            return _set_up(entry, _make(entry, make))

        known[entry] = tool, make_own
    loaded = [known[entry] for entry in wanted]
    names = [tool.name for tool, _ in loaded]
    for name in names:
        if names.count(name) > 1:
            base = " (add_base_tools adds web_search and visit_webpage)" if add_base_tools else ""
            raise StartError(f"two tools are called {name}{base}; remove one, or rename it")
    return lambda: [make() if make else tool for tool, make in loaded]


def check_tool(tool: Any, place: str = "") -> None:
    """Raise `StartError`, whose sentence begins with the place, for a tool that cannot work here."""
    for kind, reason in _REFUSED.items():
        if isinstance(tool, kind):
            raise StartError(f"{place}the tool {tool.name} ({kind.__name__}) {reason}")
    for method in ("forward", "__call__"):
        function = inspect.unwrap(getattr(tool, method, None) or tool)
        if inspect.isasyncgenfunction(function) or (method == "__call__" and inspect.iscoroutinefunction(function)):
            raise StartError(
                f"{place}the tool {tool.name} has an async {method} that no one would wait for; write an async forward "
                "that returns its result"
            )


def _make(entry: str, make: Callable[[], Any]) -> Any:
    if isinstance(make, type) and (kind := next((each for each in _REFUSED if issubclass(make, each)), None)):
        raise StartError(f"the tool {entry} ({kind.__name__}) {_REFUSED[kind]}")
    try:
        tool = make()
    except StartError:
        raise
    except (Exception, SystemExit) as error:  # of an author
        raise StartError(
            f"making {entry} failed with {describe_error(error)}; it is called without arguments"
        ) from error
    if not isinstance(tool, BaseTool) or not hasattr(tool, "name"):
        raise StartError(f"{entry} gave {type(tool).__name__}, which is no smolagents tool; return one")
    return tool


def _set_up(entry: str, tool: Any) -> Any:
    """Set a tool up before threads share it, and return it: smolagents would do so in each of them."""
    if getattr(tool, "is_initialized", True):
        return tool
    try:
        tool.setup()
    except (Exception, SystemExit) as error:  # of an author
        raise StartError(f"setup() of the tool {entry} failed with {describe_error(error)}; fix it") from error
    tool.is_initialized = True
    return tool
