"""Agents that must not have a workspace: no way to register a tool leads to code beside the patterns."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from smolagents import CodeAgent, MultiStepAgent, PythonInterpreterTool, Tool, ToolCallingAgent
from smolagents.local_python_executor import LocalPythonExecutor, evaluate_python_code

import smolsessions
from smolsessions.agents.factories import check_factory
from smolsessions.agents.run.remote_interpreter import RemoteInterpreter
from smolsessions.agents.tools.workspace_tools import BoundWorkspace
from smolsessions.caller import CALLER
from smolsessions.core.callers import Caller
from smolsessions.core.errors import StartError
from smolsessions.workspace import Workspace
from smolsessions.workspace.folders import ConversationFolders
from tests.support.agents import ScriptedModel, make_code, make_scripted
from tests.support.data import data
from tests.support.refusals import sentence_of
from tests.support.service import run, run_program, write_agents
from tests.support.tiers import mostly_deep
from tests.support.tools import tool


class Renamed(PythonInterpreterTool):
    name = "think"


class Holder(Tool):
    name = "think"
    description = "Thinks."
    inputs = {"code": {"type": "string", "description": "Code."}}  # noqa: RUF012 - as smolagents expects
    output_type = "string"

    def __init__(self, holder: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.holder = holder

    def forward(self, code: str) -> str:
        return str(self.holder(code))


@tool
def by_function(code: str) -> str:
    """Think."""
    return str(evaluate_python_code(code, {}))


@tool
def by_exec(code: str) -> str:
    """Think."""
    exec(code)
    return "done"


@tool
def one_run_python(code: str) -> str:
    """Run Python, as a tool of an MCP server called one would."""
    return code


def managing(agent: MultiStepAgent) -> ToolCallingAgent:
    return ToolCallingAgent([], ScriptedModel(), managed_agents=[agent])


NAMES: Any = {"name": "helper", "description": "Helps."}
CODE: dict[str, Callable[[], MultiStepAgent]] = {
    "an interpreter": lambda: ToolCallingAgent([PythonInterpreterTool()], ScriptedModel()),
    "an interpreter by another name": lambda: ToolCallingAgent([Renamed()], ScriptedModel()),  # type: ignore[no-untyped-call]
    "a tool that holds an interpreter": lambda: ToolCallingAgent([Holder(PythonInterpreterTool())], ScriptedModel()),
    "a tool that holds an executor": lambda: ToolCallingAgent([Holder(LocalPythonExecutor([]))], ScriptedModel()),
    "a tool that holds a code agent": lambda: ToolCallingAgent([Holder(make_code())], ScriptedModel()),
    "smolagents' function": lambda: ToolCallingAgent([by_function], ScriptedModel()),
    "exec": lambda: ToolCallingAgent([by_exec], ScriptedModel()),
    "a server's tool by its name": lambda: ToolCallingAgent([one_run_python], ScriptedModel()),
    "a managed agent with an interpreter": lambda: managing(
        ToolCallingAgent([PythonInterpreterTool()], ScriptedModel(), **NAMES)
    ),
    "code in this process": lambda: smolsessions.options(make_code(), executor="thread"),
    "a managed agent with its code here": lambda: managing(smolsessions.options(make_code(**NAMES), executor="thread")),
    "a code agent with an interpreter": lambda: CodeAgent([PythonInterpreterTool()], ScriptedModel()),
    "code elsewhere": lambda: CodeAgent(
        [], ScriptedModel(), executor=RemoteInterpreter("docker", lambda *_: pytest.fail("it is not started"))
    ),
}


def with_workspace(make: Callable[[], MultiStepAgent]) -> Callable[[], MultiStepAgent]:
    return lambda: smolsessions.options(make(), workspace={"editable": ["**"]})


@pytest.mark.parametrize("make", CODE.values(), ids=CODE)
def test_agents_with_a_workspace_have_no_tool_to_run_code(make: Callable[[], MultiStepAgent], tmp_path: Path) -> None:
    folders = ConversationFolders(tmp_path)
    with pytest.raises(StartError, match=r"runs (its )?code"):
        check_factory("shop", with_workspace(make), folders)


def test_a_managed_agent_with_a_workspace_bars_code_from_the_whole_family(tmp_path: Path) -> None:
    def make() -> MultiStepAgent:
        helper = smolsessions.options(make_scripted(**NAMES), workspace={"editable": ["**"]})
        return smolsessions.options(make_code(managed_agents=[helper]), executor="thread")

    with pytest.raises(StartError, match="runs its code in this process"):
        check_factory("shop", make, ConversationFolders(tmp_path))


MISTAKES: dict[str, tuple[Any, str]] = {
    "no dict": (["**"], "is no table"),
    "unknown key": ({"editible": ["**"]}, "editible is no key here; did you mean editable?"),
    "text for a list": ({"editable": "**"}, "editable: is no list"),
    "system": ({"readonly": ["**"], "path": "/proc"}, "no directory of files"),
}


@pytest.mark.parametrize(("values", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_stops_the_start(values: Any, sentence: str, tmp_path: Path) -> None:
    def make() -> MultiStepAgent:
        return smolsessions.options(make_scripted(), workspace=values)

    with pytest.raises(StartError, match="the agent 'shop': workspace") as caught:
        check_factory("shop", make, ConversationFolders(tmp_path))
    assert sentence in caught.value.message


def test_an_own_tool_of_the_same_name_is_refused(tmp_path: Path) -> None:
    @tool
    def glob(pattern: str) -> str:
        """List."""
        return pattern

    with pytest.raises(StartError, match="something of its own called 'glob'"):
        check_factory(
            "shop", with_workspace(lambda: ToolCallingAgent([glob], ScriptedModel())), ConversationFolders(tmp_path)
        )


def test_a_workspace_serves_its_conversation_alone(tmp_path: Path) -> None:
    ada, bob = (Caller(owner, "c1") for owner in ("ada", "bob"))
    bound = BoundWorkspace(Workspace(tmp_path, editable=["**"]), ada)
    (tmp_path / "a").write_text("ada's")
    answers = []
    for caller in (ada, bob):
        token = CALLER.set(caller)
        answers.append(bound.call(lambda files: files.read("a")))
        CALLER.reset(token)
    assert answers == ["ada's", "[denied] this workspace belongs to another conversation"]


def with_agent(folder: Path, workspace: str) -> dict[str, str]:
    agent = f'[agents.w]\nfactory = "tests.support.agents:make_scripted"\nworkspace = {{{workspace}}}\n'
    return write_agents(folder, agent)


@pytest.mark.parametrize("role", mostly_deep(["web", "work", "serve"], fast=["work"]))
def test_processes_that_may_be_several_need_a_directory_that_they_share(role: str, tmp_path: Path) -> None:
    store = {"REDIS_URL": "redis://127.0.0.1:9", "SEAL_KEYS": "1:" + "A" * 43 + "="}
    sentence = sentence_of(run(tmp_path, with_agent(tmp_path, 'editable = ["**"]') | store, role))
    assert "set SMOLSESSIONS_WORKSPACES_DIR to one directory that all of them share" in sentence


GIVEN = [".", "given", "given/files", "given/files/ada"]


@pytest.mark.parametrize("path", mostly_deep(GIVEN, fast=[GIVEN[0], GIVEN[-1]]))
def test_a_given_directory_with_files_of_the_service_is_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / "given/files/ada").mkdir(parents=True)
    settings = with_agent(tmp_path, f'readonly = ["**"], path = "{path}"')
    sentence = sentence_of(run(tmp_path, settings | {"WORKSPACES_DIR": str(tmp_path / "given/files")}))
    assert f"{settings['AGENTS_FILE']}: [agents.w] workspace.path: holds or lies in" in sentence
    assert "a file of the service" in sentence


def test_the_layer_beneath_is_imported_without_smolagents(tmp_path: Path) -> None:
    ended = run_program([sys.executable, "-c", data("imported_alone.txt"), str(tmp_path)], check=True)
    assert ended.stdout == (
        "bye\n ['notes/a.md'] [('notes/a.md', 1, 'bye')]\nthere is no file of that name that you may use\n[]\n"
    )
