"""Agents of agents.toml, one of each kind: each serves a turn, or is made, or names what to install."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from smolagents import ToolCallingAgent

from smolsessions.agents.catalog import Catalog
from smolsessions.agents.config.assembly import load_agents_file
from smolsessions.agents.config.schema import schema_text
from smolsessions.agents.demo.agents import RuleModel
from smolsessions.core.errors import StartError
from tests.support.data import data
from tests.support.hub import Hub
from tests.support.llm import LLM
from tests.support.service import ROOT, Service
from tests.support.tool_servers import HttpServer

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
        file = tmp_path / "agents.toml"
        file.write_text(HEAD.format(base=llm.base_url) + "\n".join(tables))
        settings = {"AGENTS": "", "DEMO_AGENTS": "0", "AGENTS_FILE": str(file)}
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
    file = tmp_path / "agents.toml"
    file.write_text(text)
    llm.call(("write_file", {"path": "notes/sum.md", "content": "42"}))
    llm.call(("add", {"a": 40, "b": 2}))
    llm.call(("researcher", {"task": "How much is it?"}))
    llm.say("<code>import math\nfinal_answer(math.sqrt(1764))</code>")
    llm.answer("It is 42.")
    settings = {"AGENTS": "", "DEMO_AGENTS": "0", "AGENTS_FILE": str(file)}
    environment = {"FILES_TOKEN": "token-55", "OPENAI_API_KEY": "sk-no-key-11"}
    with Service(tmp_path, settings, environment, forked=False) as service:
        turn = service.post("/turn", message="How much is 40 + 2?", agent="manager").json()
    assert (turn["reply"], turn["tool_call_names"]) == ("It is 42.", ["write_file", "add", "researcher"]), turn
