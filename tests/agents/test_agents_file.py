"""agents.toml: its mistakes stop the start, and each kind of agent serves a turn with its tools, or names a mend."""

import json
import re
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from smolagents import CodeAgent, PythonInterpreterTool, ToolCallingAgent, UserInputTool

from smolsessions.agent_options import options_of
from smolsessions.agents.catalog import Catalog
from smolsessions.agents.config.assembly import load_agents_file
from smolsessions.agents.config.schema import FILE, schema_text
from smolsessions.agents.demo.agents import RuleModel
from smolsessions.agents.factories import check_factory
from smolsessions.agents.models.providers import with_fallbacks
from smolsessions.agents.tools.sources import load_tools
from smolsessions.core.errors import StartError
from smolsessions.core.records import AgentName
from tests.support import agents, own_tools
from tests.support.data import data, table
from tests.support.http_server import Hub
from tests.support.llm import LLM
from tests.support.service import ROOT, Service, run, write_agents
from tests.support.sounds import make_listener, make_singer, make_teller
from tests.support.tool_servers import HttpServer

KEY = "sk-live-4f1d0c7e9a5b"
BROKEN = Path(__file__).parents[1] / "data" / "broken_agents"
"""Files with one mistake each. Lines with `#> ` hold the expected sentences."""
ONE_AGENT = data("one_agent.toml")

OTHERS = data("other_agents.toml")


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, folder: Path) -> Iterator[Service]:
    settings = write_agents(folder, ONE_AGENT.format(base=request.getfixturevalue("_llm_server").base_url) + OTHERS)
    (folder / "deciding.py").write_text(data("deciding.txt"))
    with Service(folder, settings, environment={"SHOP_KEY": KEY}) as running:
        yield running


def test_an_agent_of_ten_lines_answers_a_turn(served: Service, llm: LLM) -> None:
    llm.call(("calculator", {"expression": "6 * 7"}))
    llm.answer("It is 42.")
    turn = served.post("/turn", message="what is six times seven?", agent="shop").json()
    described = served.get("/agents/shop")
    missing = served.client.get("/agents/nobody")
    assert (turn["reply"], turn["tool_call_names"]) == ("It is 42.", ["calculator"])
    assert [request.key for request in llm.requests] == [KEY, KEY]
    assert llm.requests[0].body["temperature"] == 0.25
    assert "Answer like a shopkeeper." in llm.requests[0].text
    assert described["examples"] == ["What is 6 * 7?"]
    assert described["version"] is None, "it has no code of its own"
    assert described["tools"][0]["parameters"]["required"] == ["expression"]
    assert (described["max_steps"], described["limits"]["deadline_s"]) == (3, 90)
    assert (missing.status_code, missing.json()["code"]) == (404, "agent_not_found")


def test_the_deadline_of_an_agent_ends_its_turn(served: Service, llm: LLM) -> None:
    llm.fall_silent()
    turn = served.post("/turn", message="what is six times seven?", agent="hasty").json()
    assert (turn["status"], turn["error"]["code"]) == ("failed", "deadline_exceeded"), turn


def test_a_log_masks_the_keys_that_the_file_names_and_escapes_control_characters(served: Service, llm: LLM) -> None:
    llm.call(("chatty", {}))
    llm.answer("done")
    assert served.post("/turn", message="talk", agent="strict").json()["reply"] == "done"
    assert "the key is *** here␛[2J" in served.log(), "no text of others commands the terminal"
    assert KEY not in served.log()


@pytest.mark.parametrize("file", sorted(BROKEN.glob("*.toml")), ids=lambda file: file.stem)
def test_a_mistake_is_a_sentence_with_file_agent_key_and_mend(file: Path) -> None:
    with pytest.raises(StartError) as caught:
        Catalog(load_agents_file(file))
    sentences = caught.value.message
    assert KEY not in sentences + repr(caught.value.__cause__)
    shown = sentences.replace(str(file), "FILE").replace(str(BROKEN), "FOLDER")
    assert shown.splitlines() == [line[3:] for line in file.read_text().splitlines() if line.startswith("#> ")]


def test_a_mistake_stops_the_start_and_the_check_names_it(tmp_path: Path) -> None:
    file = BROKEN / "two-mistakes.toml"
    settings = {"AGENTS": "", "AGENTS_FILE": str(file)}
    status, _, errors = run(tmp_path, settings, "serve")
    assert status == 2
    assert f"{file}: [agents.shop] max_steps: should be greater than or equal to 1" in errors
    status, output, _ = run(tmp_path, settings, "check")
    assert status == 1
    assert f"agents      FAIL  {file}: [agents.shop] scratchpad: should be a valid boolean" in output


def test_the_shipped_schema_is_current_and_finds_mistakes() -> None:
    text = files("smolsessions.agents.config").joinpath(FILE).read_text("utf-8")
    assert text == schema_text(), "make refresh writes it"
    check = Draft202012Validator(json.loads(text))
    check.validate(tomllib.loads(ONE_AGENT.format(base="http://127.0.0.1:9/v1")))
    for at in ("unknown-key", "unknown-kind", "key-in-the-file", "tool-as-text", "limit-unknown", "mcp-secret-in-env"):
        assert not check.is_valid(tomllib.loads((BROKEN / f"{at}.toml").read_text())), at


FAILING = """
import os
def make():
    raise ValueError("bad " + os.environ["SHOP_KEY"] + ".")
"""
FAILING_MODULE = """
import os
raise RuntimeError("bad " + os.environ["SHOP_KEY"])
"""


@pytest.mark.parametrize(("module", "text"), [("failing_shop", FAILING), ("failing_module", FAILING_MODULE)])
def test_errors_of_a_factory_hide_keys(module: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_KEY", f"correct horse battery {module}")
    (tmp_path / f"{module}.py").write_text(text)
    file = tmp_path / "agents.toml"
    models = ONE_AGENT.partition("[agents.shop]")[0].format(base="http://127.0.0.1:9/v1")
    file.write_text(f'{models}[agents.shop]\nfactory = "{module}:make"\n')
    with pytest.raises(StartError) as caught:
        Catalog(load_agents_file(file))
    assert caught.value.message.startswith(f"{file}: [agents.shop] ")
    assert "Error: bad ***; fix" in caught.value.message
    assert "horse" not in caught.value.message


def test_an_agent_with_tool_servers_alone_needs_their_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "smolsessions.agents.tools.mcp", None)
    monkeypatch.setenv("SHOP_KEY", KEY)
    file = tmp_path / "agents.toml"
    other = '[agents.other]\nkind = "code"\nmodel = "small"\nmcp = ["files"]\n[mcp.files]\ncommand = "true"\n'
    file.write_text(ONE_AGENT.format(base="http://127.0.0.1:9/v1") + other)
    shop, with_servers = load_agents_file(file)
    assert list(Catalog([shop]).infos) == ["shop"]
    with pytest.raises(StartError) as caught:
        Catalog([with_servers])
    sentence = "[agents.other] mcp: needs a package that is missing; pip install 'smolsessions[mcp]'"
    assert caught.value.message == f"{file}: {sentence}"
    (tmp_path / "mcp-1.26.0.dist-info").mkdir()
    (tmp_path / "mcp-1.26.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mcp\nVersion: 1.26.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(StartError, match=r"needs mcp 2, and 1\.26\.0 is here, which smolagents' own MCPClient needs"):
        Catalog([load_agents_file(file)[1]])


def test_base_tools_without_packages_are_named_as_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ddgs", None)
    monkeypatch.setenv("SHOP_KEY", KEY)
    file = tmp_path / "agents.toml"
    file.write_text(ONE_AGENT.format(base="http://127.0.0.1:9/v1") + "add_base_tools = true\n")
    with pytest.raises(StartError) as caught:
        Catalog(load_agents_file(file))
    sentence = "[agents.shop] add_base_tools: needs ddgs; pip install 'smolsessions[web-tools]'"
    assert caught.value.message == f"{file}: {sentence}"


def test_each_key_reaches_the_agent_and_the_agents_that_it_manages(tmp_path: Path) -> None:
    templates = (BROKEN / "undefined.yaml").read_text().replace("{{ the_weather }}", "Never use {{ 6 * 7 }}.")
    (tmp_path / "prompts.yaml").write_text(templates)
    file = tmp_path / "agents.toml"
    file.write_text(data("every_key.toml"))
    factories = dict(load_agents_file(file))
    info = Catalog(list(factories.items())).infos[AgentName("lead")]
    lead: Any = factories["lead"]()
    clerk = lead.managed_agents["clerk"]
    reader = clerk.managed_agents["reader"]
    assert [model.model_id for model in with_fallbacks(lead.model)] == ["gpt-4o", "gpt-5"]
    assert (clerk.model.model_id, reader.model.model_id) == ("gpt-5", "tiny")
    assert lead.model is factories["lead"]().model, "one pool of connections"
    assert {"temperature": 0.5, "top_p": 0.9, "seed": 3}.items() <= lead.model.kwargs.items()
    assert (lead.system_prompt, lead.instructions) == ("Never use 42.", "Be brief.")
    assert (lead.max_steps, lead.planning_interval, lead.code_block_tags) == (4, 2, ("<run>", "</run>"))
    assert lead.additional_authorized_imports == ["math", "json"]
    assert reader.code_block_tags == ("```python", "```")
    options = options_of(lead)
    assert (options.executor, options.model_retries, options.scratchpad) == ("thread", 5, True)
    assert (list(options.unsafe_to_repeat), options_of(reader).code_limits) == (["calculator"], {"cpu_s": 3})
    assert (options_of(clerk).remembers, options_of(factories["clerk"]()).remembers) == (True, False)
    assert (info.description, info.examples, info.deadline_s) == ("Leads.", ("How many?",), 12.5)
    assert (info.code_runs_in, [tool.name for tool in info.tools]) == (
        "thread",
        ["calculator", "clock", "note_write", "note_read", "clerk"],
    )
    assert info.policy


PAGE = ROOT / "docs" / "agents.md"
ROWS = {row["what"]: row["config"] for row in yaml.safe_load(data("agent_configs.yaml"))}
MADE = {what: config for what, config in ROWS.items() if "provider = " in config or "executor = " in config}
SERVED = {what: config for what, config in ROWS.items() if what not in MADE or re.search('"(child|thread)"', config)}
KEYS = ("OPENAI_API_KEY", "AZURE_KEY", "ANTHROPIC_API_KEY", "HF_KEY", "E2B_KEY")
REVISION = "0123456789abcdef0123456789abcdef01234567"
HEAD = """
[models.small]
provider = "openai"
id = "gpt-4o"
base = "{base}"
"""
EXTRA = re.compile(r"pip install 'smolsessions\[(azure|litellm|bedrock|transformers|docker|e2b|modal|blaxel)\]'")
TOOLS = {
    "own tools: instance, class or factory": {"search"},
    "smolagents' own tools": {"visit_webpage"},
    "MCP server as a process": {"add", "greet"},
    "MCP server over HTTP": {"add", "greet"},
    "files of a conversation": {"read_file", "write_file", "edit_file", "glob", "grep"},
    "approvals and questions of a person": {"search", "ask_user"},
    "approvals by a function": {"search"},
    "a given folder, read-only": {"read_file", "glob", "grep"},
}
CODE = data("documented_agents.txt")


def agent_text(name: str, config: str, *, folder: Path, mcp_url: str) -> str:
    """Return the tables of one row, with addresses and paths of this machine."""
    agent, _, server = config.partition("[mcp.files] ")
    lines = [f"[agents.{name}]", agent.strip()]
    if "kind" not in config and not re.search("^(factory|folder|hub) =", config, re.MULTILINE):
        lines.append('kind = "tool_calling"')
    if not re.search("^(factory|model) =", config, re.MULTILINE):
        lines.append('model = "small"')
    if server:
        lines += [f"[mcp.{name}]", server]
    text = "\n".join(lines) + "\n"
    text = text.replace('mcp = ["files"]', f'mcp = ["{name}"]').replace("https://host.example/mcp", mcp_url)
    return text.replace("/srv/handbook", str(folder / "handbook")).replace("my-server", str(folder / "my-server"))


def write_around(folder: Path) -> None:
    """Write the modules, the saved agent and the program that the rows name."""
    (folder / "handbook").mkdir()
    (folder / "my_tools.py").write_text(CODE)
    (folder / "my_agents.py").write_text(CODE)
    ToolCallingAgent([], RuleModel()).save(folder / "saved")
    program = folder / "my-server"
    program.write_text(f"#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m tests.support.mcp_server stdio\n")
    program.chmod(0o700)


def test_each_kind_of_agent_serves_a_turn(llm: LLM, tmp_path: Path) -> None:
    write_around(tmp_path)
    names = {what: f"row{number}" for number, what in enumerate(SERVED)}
    with HttpServer(tmp_path) as server, Hub(tmp_path / "saved", "ada/agent", REVISION) as hub:
        tables = [agent_text(names[what], SERVED[what], folder=tmp_path, mcp_url=server.url) for what in SERVED]
        settings = write_agents(tmp_path, HEAD.format(base=llm.base_url) + "\n".join(tables))
        environment = {"FILES_TOKEN": "token-55", "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hub")}
        with Service(tmp_path, settings, environment, forked=False) as service:
            for what, name in names.items():
                described = service.get(f"/agents/{name}")
                assert TOOLS.get(what, set()) <= {tool["name"] for tool in described["tools"]}, what
                code = "final_answer('done')"
                if "structured_output" in SERVED[what]:
                    llm.say(json.dumps({"thought": "", "code": code}))
                elif described["kind"] == "CodeAgent":
                    llm.say(f"<code>{code}</code>")
                elif "factory" not in SERVED[what]:
                    llm.answer("done")
                turn = service.post("/turn", message="What is 12 * 7?", agent=name).json()
                assert turn["status"] == "finished", (what, turn)
                assert "84" in turn["reply"] or turn["reply"] == "done", what
            assert "token-55" not in service.log()


@pytest.mark.parametrize("what", MADE)
def test_each_model_and_executor_is_made(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.setenv(name, "sk-no-key-11")
    file = tmp_path / "agents.toml"
    text = agent_text("row", MADE[what], folder=tmp_path, mcp_url="")
    file.write_text(HEAD.format(base="http://127.0.0.1:9/v1") + text)
    Draft202012Validator(json.loads(schema_text())).validate(tomllib.loads(file.read_text()))
    try:
        catalog = Catalog(load_agents_file(file))
    except StartError as error:
        assert EXTRA.search(error.message), error.message  # noqa: PT017 - an extra that is not installed is named
    else:
        assert list(catalog.infos) == ["row"]


def test_the_whole_example_serves_a_turn_with_all_its_parts(llm: LLM, tmp_path: Path) -> None:
    write_around(tmp_path)
    example = PAGE.read_text().partition("<!-- whole -->\n```toml\n")[2].partition("```")[0]
    key = 'api_key_env = "OPENAI_API_KEY"'
    assert key in example
    text = example.replace(key, f'{key}\nbase = "{llm.base_url}"').replace("my-server", str(tmp_path / "my-server"))
    settings = write_agents(tmp_path, text)
    llm.call(("write_file", {"path": "notes/sum.md", "content": "42"}))
    llm.call(("add", {"a": 40, "b": 2}))
    llm.call(("researcher", {"task": "How much is it?"}))
    llm.say("<code>import math\nfinal_answer(math.sqrt(1764))</code>")
    llm.answer("It is 42.")
    environment = {"FILES_TOKEN": "token-55", "OPENAI_API_KEY": "sk-no-key-11"}
    with Service(tmp_path, settings, environment, forked=False) as service:
        turn = service.post("/turn", message="How much is 40 + 2?", agent="manager").json()
    assert (turn["reply"], turn["tool_call_names"]) == ("It is 42.", ["write_file", "add", "researcher"]), turn


OWN = "tests.support.own_tools"
COUNTING = """
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
    assert {tool.name for tool in loaded(base=True)} == {"web_search", "visit_webpage"}
    assert [tool.name for tool in loaded("smolagents:VisitWebpageTool", base=True)].count("visit_webpage") == 1


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
    with Service(tmp_path, write_agents(tmp_path, COUNTING.format(base=llm.base_url))) as service:
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
