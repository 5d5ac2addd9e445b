"""Workspace tools: an agent reads, writes and searches the files of its conversation, or of a given directory.

The option `workspace` adds them. A refusal is a result that begins with `[denied]`, so a model can read it and go on.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from smolagents import CodeAgent, MultiStepAgent, Tool
from smolagents.default_tools import PythonInterpreterTool
from smolagents.local_python_executor import PythonExecutor, evaluate_python_code
from smolagents.remote_executors import RemotePythonExecutor

from smolsessions.agent_options import options_of
from smolsessions.agents.imports import require_packages
from smolsessions.agents.run.instrumentation import code_runs_in, with_managed
from smolsessions.agents.run.proxy import unproxied
from smolsessions.caller import CALLER
from smolsessions.core.callers import Caller
from smolsessions.core.errors import StartError
from smolsessions.workspace import Found, Match, ToolDenied, Workspace
from smolsessions.workspace.folders import ConversationFolders

DENIED = "[denied]"
CUT = "(There is more: these are the first results. Narrow the search.)"
_PATTERN = "A pattern as in .gitignore, such as notes/**/*.md."
_CODE_TOOLS = (
    "python_interpreter run_python run_python_code execute_python run_code execute_code run_command execute_command "
    "run_shell_command shell bash terminal"
).split()
_SYSTEM = (("proc",), ("sys",), ("dev",))


class BoundWorkspace:
    """Workspace of one conversation (None: a given directory). It refuses the calls of another conversation."""

    def __init__(self, workspace: Workspace, caller: Caller | None) -> None:
        self.workspace = workspace
        self._of = caller and (caller.owner, caller.conversation_id)

    @property
    def is_of_conversation(self) -> bool:
        return self._of is not None

    def refuse_secrets(self, secrets: Sequence[Path]) -> None:
        """Raise `StartError` if a given directory holds a file of the service, or lies in a folder of it."""
        root = self.workspace.root
        found = [path for path in map(Path.resolve, secrets) if root in (path, *path.parents) or path in root.parents]
        if found and self._of is None:
            raise StartError(
                f"workspace.path: holds or lies in {found[0].name}, a file of the service"
                f"{'' if found[0].exists() else ' (not there yet)'}; name a directory without the service's own files"
            )

    def serves(self, caller: Caller) -> bool:
        return self._of in {None, (caller.owner, caller.conversation_id)}

    def call(self, act: Callable[[Workspace], str]) -> str:
        """Return the result of a call, or the refusal."""
        caller = CALLER.get(None)
        if caller and not self.serves(caller):
            return f"{DENIED} this workspace belongs to another conversation"
        try:
            return act(self.workspace)
        except ToolDenied as denial:
            return f"{DENIED} {denial}"


class WorkspaceTool(Tool):  # type: ignore[misc, unused-ignore]
    """Tool on a bound workspace, one of `TOOLS`."""

    skip_forward_signature_validation = True
    output_type = "string"
    inputs_for_names = frozenset({"path", "pattern", "glob"})
    """Inputs that take a name of a file of the message as it is, not as that file's text."""

    def __init__(self, name: str, bound: BoundWorkspace, lists: str) -> None:
        """`lists` is the part of the access list that the description shows to the model."""
        about, self.inputs, self._act = TOOLS[name]
        self.name, self.description = name, f"{about} {lists}"
        super().__init__()  # type: ignore[no-untyped-call]
        self.bound = bound
        self.unsafe_to_repeat = name == "edit_file"  # a second attempt could not tell the new text from an old one

    def forward(self, *args: Any, **kwargs: Any) -> str:
        return self.bound.call(lambda files: self._act(files, *args, **kwargs))


def _write(files: Workspace, path: str, content: str) -> str:
    files.write(path, content)
    return f"Wrote {len(content)} characters."


def _edit(files: Workspace, path: str, old: str, new: str) -> str:
    files.edit(path, old, new)
    return "Replaced the text."


def _text(found: Found[str] | Found[Match]) -> str:
    lines = [each if isinstance(each, str) else f"{each.path}:{each.line}: {each.text}" for each in found]
    return "\n".join(lines if found.is_whole else [*lines, CUT]) or "Nothing matches."


def _input(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


_PATH = _input("Path from the root of the workspace, such as notes/plan.md.")
TOOLS: dict[str, tuple[str, dict[str, dict[str, Any]], Callable[..., str]]] = {
    "read_file": ("Reads a text file of the workspace.", {"path": _PATH}, Workspace.read),
    "write_file": (
        "Writes a text file of the workspace: makes it, or replaces all of it.",
        {"path": _PATH, "content": _input("The whole text of the file.")},
        _write,
    ),
    "edit_file": (
        "Replaces one text in a file of the workspace by another. The file must hold the old text exactly once.",
        {
            "path": _PATH,
            "old": _input("The text to replace, with enough around it to be unique."),
            "new": _input("The text to put in its place."),
        },
        _edit,
    ),
    "glob": (
        "Lists files of the workspace.",
        {"pattern": _input(_PATTERN)},
        lambda files, pattern: _text(files.glob(pattern)),
    ),
    "grep": (
        "Finds lines in files of the workspace. Each result is path:line: text.",
        {
            "pattern": _input("A regular expression (RE2: no look-around)."),
            "glob": _input(f"The files to search. {_PATTERN}", nullable=True),
        },
        lambda files, pattern, glob=None: _text(files.grep(pattern, "**" if glob is None else glob)),
    ),
}
"""Description, inputs and function of each tool."""
WORKSPACE_TOOLS = tuple(TOOLS)
_READING = ("read_file", "glob", "grep")
"""Tools of an agent that may write nothing."""


def add_workspaces(name: str, agent: MultiStepAgent, caller: Caller, folders: ConversationFolders | None) -> None:
    """Add the tools to an agent and its managed agents, as far as their options say. Raises `StartError`."""
    agents = list(with_managed(agent))
    wanted = [each for each in agents if options_of(each).workspace is not None]
    if not wanted:
        return
    for each in agents:
        called = name if each is agent else f"{name} → {each.name}"
        place = code_runs_in(each)
        if place in {"remote", "thread"}:
            where = "in this process, where it could read every file"
            where = "remotely, where its tools reach no file" if place == "remote" else where
            raise StartError(
                f"the agent {called!r} has a workspace and runs its code {where}; use the executor 'child', or remove "
                "the workspace"
            )
        for tool in each.tools.values():
            if _runs_code(unproxied(tool)):
                raise StartError(
                    f"the agent {called!r} has a workspace and the tool {tool.name!r}, which runs code beside its "
                    "patterns, where it could read every file; remove the tool, or the workspace"
                )
    for each in wanted:
        if workspace_of(each):
            continue
        if taken := {*WORKSPACE_TOOLS} & {*each.tools, *each.managed_agents}:
            raise StartError(
                f"the agent {name!r} has a workspace and something of its own called {min(taken)!r}; rename that, or "
                "remove the workspace"
            )
        options = options_of(each).workspace
        assert options
        about = f"the agent {name!r}: workspace:"
        root = folders.of(caller.owner, caller.conversation_id) if folders else None
        if options.path:
            root = Path(options.path).resolve()
            if not root.is_dir() or root.parts[1:2] in _SYSTEM:
                raise StartError(f"{about} has a path that is no directory of files; name one")
        require_packages(about, ("pathspec", "re2"), "workspace")
        try:
            made = Workspace(
                root or Path(), editable=options.editable, readonly=options.readonly, hidden=options.hidden
            )
        except ValueError as error:
            raise StartError(f"{about} has a mistake in {error}") from None
        if root is None:
            raise StartError(
                f"{about} is one for each conversation, and the store may have other processes: set "
                "SMOLSESSIONS_WORKSPACES_DIR to one directory that all of them share"
            )
        bound = BoundWorkspace(made, None if options.path else caller)
        access = made.access
        lists = f"You may write: {', '.join(access.editable) or 'nothing'}."
        lists += f" You may only read: {', '.join(access.readonly)}." if access.readonly else ""
        tools = WORKSPACE_TOOLS if access.editable else _READING
        each.tools |= {tool: WorkspaceTool(tool, bound, lists) for tool in tools}


def workspaces_of(agent: MultiStepAgent) -> list[BoundWorkspace]:
    return [bound for each in with_managed(agent) if (bound := workspace_of(each))]


def workspace_of(agent: MultiStepAgent) -> BoundWorkspace | None:
    tool = unproxied(agent.tools.get("read_file"))
    return tool.bound if isinstance(tool, WorkspaceTool) else None


def _runs_code(tool: Any) -> bool:
    """Return whether a tool is an interpreter, holds one, calls `exec`, or is called as such tools are."""
    if any(f"_{tool.name}".endswith(f"_{name}") for name in _CODE_TOOLS):  # a server's name may come before
        return True
    function = inspect.unwrap(tool.forward)
    instructions = dis.get_instructions(function.__code__) if hasattr(function, "__code__") else ()
    if any(each.opname == "LOAD_GLOBAL" and each.argval in {"exec", "eval"} for each in instructions):
        return True
    held = [tool, *vars(tool).values()]
    with suppress(TypeError, ValueError):  # its code is not written in Python
        used = inspect.getclosurevars(function)
        held += (*used.nonlocals.values(), *used.globals.values())
    for value in held:
        value = value.python_executor if isinstance(value, CodeAgent) else value  # noqa: PLW2901 - its interpreter
        is_local = isinstance(value, PythonExecutor) and not isinstance(value, RemotePythonExecutor)
        if is_local or isinstance(value, PythonInterpreterTool) or value is evaluate_python_code:
            return True
    return False
