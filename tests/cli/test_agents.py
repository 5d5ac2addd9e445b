"""Commands `agents check|show|schema`: they make agents, and call nothing."""

import json
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.data import data
from tests.support.llm import LLM
from tests.support.service import run, wait_until, write_agents
from tests.support.tiers import mostly_deep
from tests.support.tool_servers import HOSTILE

KEY = "sk-live-4f1d0c7e9a5b"
FILE = data("broken_agents.toml")


@pytest.fixture
def settings(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("SHOP_KEY", KEY)
    return write_agents(tmp_path, FILE.format(base=llm.base_url))


def test_check_makes_each_agent_and_names_the_broken_one(settings: dict[str, str], llm: LLM, tmp_path: Path) -> None:
    file = tmp_path / "agents.toml"
    file.write_text(file.read_text() + 'tools = ["nowhere_at_all:search"]\n')
    status, output, errors = run(tmp_path, settings, "agents", "check")
    assert status == 1, output + errors
    shop, clerk = output.splitlines()
    assert clerk.startswith(f"clerk: FAIL  {file}: [agents.clerk] tools: ")
    assert shop.startswith(f"shop: FAIL  {file}: [agents.clerk] tools: "), "it manages the clerk"
    file.write_text(file.read_text().replace("nowhere_at_all:search", "smolsessions.agents.demo.tools:Clock"))
    status, output, errors = run(tmp_path, settings, "agents", "check", "clerk")
    assert (status, output.split(", fingerprint")[0]) == (0, "clerk: ok    CodeAgent, clock"), errors
    assert llm.requests == []


def test_show_prints_model_tools_fingerprint_and_prompts(settings: dict[str, str], llm: LLM, tmp_path: Path) -> None:
    status, output, errors = run(tmp_path, settings, "agents", "show", "shop")
    assert status == 0, errors
    for text in (
        "deadline_s: 90",
        "approve: calc*",
        "ask_user: true",
        "calculator(expression): ",
        "Answer like a shopkeeper.",
        "system prompt of /clerk:",
    ):
        assert text in output
    _, listed, _ = run(tmp_path, settings, "agents", "check", "shop")
    assert f"fingerprint: {listed.split()[-1]}" in output
    assert (KEY in output + errors, llm.requests) == (False, [])
    for words in (
        ("check", "tests.support.agents:make_code"),
        ("check", "code", "--agent", "code=tests.support.agents:make_code"),
    ):
        status, output, errors = run(tmp_path, {"AGENTS": "", "DEMO_AGENTS": "0"}, "agents", *words)
        assert (status, output.split(",")[0]) == (0, "code: ok    CodeAgent"), output + errors
    status, _, errors = run(tmp_path, settings, "agents", "show", KEY)
    assert (status, errors) == (2, "smolsessions: no agent has that name; there are: shop, clerk\n")


@pytest.mark.parametrize("command", mostly_deep(["serve", "check", "agents show shop"], fast=["serve"]))
def test_a_failed_start_leaves_no_mcp_server_behind(settings: dict[str, str], tmp_path: Path, command: str) -> None:
    script = f"sleep 600 >/dev/null 2>&1 & echo $! > {tmp_path}/started; exec {sys.executable} -m {HOSTILE} names"
    file = tmp_path / "agents.toml"
    text = file.read_text().replace("deadline_s = 90", 'mcp = ["one"]\nunsafe_to_repeat = ["nothing"]')  # found late
    file.write_text(f"{text}\n[mcp.one]\ncommand = 'sh'\nargs = ['-c', '{script}']\n")
    status, output, errors = run(tmp_path, settings, *command.split())
    assert status, output
    assert "unsafe_to_repeat" in output + errors
    started = int((tmp_path / "started").read_text())
    wait_until(lambda: not psutil.pid_exists(started))


def test_schema_prints_the_schema_of_the_file(tmp_path: Path) -> None:
    status, output, _ = run(tmp_path, {}, "agents", "schema")
    assert status == 0
    assert {"models", "agents", "mcp"} == json.loads(output)["properties"].keys()
