"""Tools of agents: where they come from, what they share, and what those of audio need."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from smolagents import CodeAgent, PythonInterpreterTool, ToolCallingAgent, UserInputTool

from smolsessions.agents.catalog import Catalog
from smolsessions.agents.demo.agents import RuleModel
from smolsessions.agents.factories import check_factory
from smolsessions.agents.tools.sources import load_tools
from smolsessions.core.errors import StartError
from tests.support import agents, own_tools
from tests.support.data import table
from tests.support.llm import LLM
from tests.support.service import Service, write_agents
from tests.support.sounds import make_listener, make_singer, make_teller

OWN = "tests.support.own_tools"
FILE = """
[agents.shop]
kind = "tool_calling"
model = {{provider = "openai", id = "gpt-4o", base = "{base}"}}
tools = ["tests.support.own_tools:Counting", "tests.support.own_tools:instance"]
"""
REFUSED: Any = table("tool sources refused")


def loaded(*entries: str, known: dict[str, Any] | None = None, base: bool = False) -> list[Any]:
    return load_tools(entries, {} if known is None else known, add_base_tools=base)()


def test_a_string_names_an_instance_a_class_or_a_function() -> None:
    instance, shared, made = loaded(f"{OWN}:instance", f"{OWN}:Shared", "smolagents:VisitWebpageTool")
    assert (instance(text="a"), shared(), made.name) == ("a", "shared", "visit_webpage")
    assert loaded(f"{OWN}:make_shared")[0]() == "shared"


@pytest.mark.parametrize("entry", REFUSED)
def test_what_cannot_serve_as_a_tool_stops_the_start(entry: str) -> None:
    with pytest.raises(StartError, match=REFUSED[entry]):
        loaded(entry)


def test_base_tools_run_no_code_and_read_no_terminal() -> None:
    names = {tool.name for tool in loaded(base=True)}
    assert names == {"web_search", "visit_webpage"}
    own = loaded("smolagents:VisitWebpageTool", base=True)
    assert [tool.name for tool in own].count("visit_webpage") == 1


def test_tools_are_shared_and_set_up_once_except_those_that_hold_state() -> None:
    own_tools.SETUPS.clear()
    known: dict[str, Any] = {}
    makers = [load_tools([f"{OWN}:Shared", f"{OWN}:Counting"], known, add_base_tools=False) for _ in range(2)]
    (shared, counting), (same, other) = (make() for make in makers)
    assert shared is same
    assert counting is not other
    threads = [threading.Thread(target=shared) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert own_tools.SETUPS.count("shared") == 1
    counting()
    assert (counting(), other()) == ("call 2", "call 1")


def test_each_session_has_its_own_instance_of_a_tool_that_holds_state(llm: LLM, tmp_path: Path) -> None:
    with Service(tmp_path, write_agents(tmp_path, FILE.format(base=llm.base_url))) as service:
        ids = []
        for _ in range(2):
            llm.call(("counting", {}))
            llm.answer("done")
            ids.append(service.post("/turn", message="go").json()["conversation_id"])
        llm.call(("counting", {}))
        llm.answer("done")
        service.post("/turn", message="go", conversation_id=ids[0])
    assert ["call 1" in request.text for request in llm.requests[1:4:2]] == [True, True]
    assert "call 2" in llm.requests[5].text


@pytest.mark.parametrize(
    ("tool", "sentence"),
    [(PythonInterpreterTool, "runs model-written code in this process"), (UserInputTool, "reads from the terminal")],
)
@pytest.mark.parametrize("kind", [ToolCallingAgent, CodeAgent])
def test_a_factory_cannot_bring_them_either(kind: Any, tool: Any, sentence: str) -> None:
    with pytest.raises(StartError, match=f"the agent 'shop': the tool .* {sentence}"):
        Catalog([("shop", lambda: kind(tools=[tool()], model=RuleModel()))])


def _managed() -> ToolCallingAgent:
    singer = make_singer()
    singer.name = singer.description = "singer"
    return ToolCallingAgent(tools=[], model=agents.ScriptedModel(model_id="scripted"), managed_agents=[singer])


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        (make_singer, r"'sing' of agent '\w+' has an input or output_type 'audio', .* returns smolsessions\.Audio"),
        (_managed, r"'sing' of agent 'mine → singer' has an input or output_type 'audio'"),
        (make_listener, r"'listen' of agent '\w+' has an input or output_type 'audio', .* write 'any'"),
    ],
)
def test_audio_of_torch_stops_the_start_without_torch(factory: Callable[[], ToolCallingAgent], sentence: str) -> None:
    with pytest.raises(StartError, match=sentence):
        check_factory("mine", factory)


def test_audio_without_torch_needs_no_torch() -> None:
    check_factory("mine", make_teller)
