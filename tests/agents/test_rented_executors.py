"""Agents of agents.toml whose code runs in a container or a rented sandbox, through the vendors' own clients."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smolsessions.agents.catalog import Catalog
from smolsessions.agents.config.assembly import load_agents_file
from smolsessions.core.errors import StartError
from tests.support.llm import LLM
from tests.support.sandboxes import DockerDaemon, E2BService, Sandboxes, serving
from tests.support.service import Service, wait_until, write_agents
from tests.support.tiers import mostly_deep

KEY = "e2b-key-of-a-team-91c3"
AGENT = """
[agents.coder]
kind = "code"
model = {{provider = "openai", id = "gpt-4o", base = "{base}"}}
tools = {tools}
executor = "{executor}"
{rest}
"""


def write_agent(
    folder: Path, executor: str, rest: str = "", tools: str = "[]", base: str = "http://127.0.0.1:9/v1"
) -> dict[str, str]:
    return write_agents(folder, AGENT.format(executor=executor, rest=rest, tools=tools, base=base))


@pytest.fixture(params=mostly_deep(["docker", "e2b"], fast=["e2b"]))
def rented(request: pytest.FixtureRequest, tmp_path: Path, llm: LLM) -> Iterator[tuple[str, Sandboxes, Service]]:
    """Return the executor's name, the server that it calls, and a service with an agent that uses it."""
    is_docker = request.param == "docker"
    rest = "" if is_docker else 'executor_key_env = "TEAM_KEY"\nexecutor_options = {timeout = 900}'
    settings = write_agent(tmp_path, request.param, rest, '["tests.support.remote:Note"]', llm.base_url)
    with serving(DockerDaemon if is_docker else E2BService, tmp_path, KEY) as places:
        environment = {
            "DOCKER_HOST": places.url.replace("http:", "tcp:"),
            "E2B_API_URL": places.url,
            "E2B_SANDBOX_URL": places.url,
            "E2B_HTTP_VERSION": "1.1",
            "TEAM_KEY": KEY,
        }
        with Service(tmp_path, settings, environment, forked=False) as service:
            yield request.param, places, service


def play(llm: LLM, service: Service, *blocks: str, **body: Any) -> dict[str, Any]:
    for block in blocks:
        llm.say(f"Thought: run it.\n<code>\n{block}\n</code>")
    turn: dict[str, Any] = service.post("/turn", message="Run it.", agent="coder", **body).json()
    assert turn["status"] == "finished", turn["error"]
    return turn


def test_code_runs_through_the_vendors_own_client(rented: tuple[str, Sandboxes, Service], llm: LLM) -> None:
    name, places, service = rented
    (listed,) = service.get("/agents")["items"]
    assert (listed["code_runs_in"], listed["code_confinement"]) == (name, "not run here")
    assert f"not run here, but in a remote executor ({name})" in listed["limitations"][0]
    assert places.started == []

    turn = play(llm, service, "x = 41\nprint('now', x)", "1 / 0", "final_answer({'x': x + 1, 'at': (1, 2)})")
    assert turn["output"] == {"x": 42, "at": [1, 2]}
    assert (turn["tool_call_names"], turn["dropped_variables"]) == ([], [])
    shown = [s["observations"] or s["error"]["message"] for s in service.steps(turn) if s["type"] == "action"]
    assert "now 41" in shown[0]
    assert all(words in shown[1] for words in ("ZeroDivisionError", "division by zero"))
    assert "\x1b" not in shown[1]
    if name == "docker":
        published = places.asked[0]["HostConfig"]["PortBindings"]["8888/tcp"][0]
        assert (published["HostIp"], published["HostPort"] != "8888") == ("127.0.0.1", True)
        assert places.asked[0]["Labels"] == {"smolsessions": "executor"}
    else:
        assert places.asked[0]["timeout"] == 900

    places.end(0)
    again = play(llm, service, "print(x)", "final_answer(1)", conversation_id=turn["conversation_id"])
    lost = next(step for step in service.steps(again) if step["type"] == "action" and step["turn"] == 2)
    assert "These variables of earlier code are gone: x." in (lost["error"] or {}).get("message", ""), lost
    assert (len(places.started), again["output"]) == (2, 1)
    service.stop()
    wait_until(lambda: places.running == 0)
    assert KEY not in service.log()


def test_a_vendor_that_refuses_the_key_costs_a_block_and_shows_no_key(tmp_path: Path, llm: LLM) -> None:
    rest = 'executor_key_env = "TEAM_KEY"'
    with serving(E2BService, tmp_path, "another-key") as places:
        environment = {"E2B_API_URL": places.url, "E2B_HTTP_VERSION": "1.1", "TEAM_KEY": KEY}
        settings = write_agent(tmp_path, "e2b", rest, base=llm.base_url)
        with Service(tmp_path, settings, environment, forked=False) as service:
            turn = play(llm, service, "print(1)", "final_answer(2)", max_steps=1)
            steps = service.steps(turn)
    assert "(e2b) could not be started (AuthenticationException), so no code ran" in str(steps)
    assert "hold no key of a team" in service.log()
    assert KEY not in service.log() + str(steps)


@pytest.mark.parametrize(
    ("executor", "rest", "tools", "words"),
    [
        ("modal", "", "[]", "[agents.coder] executor: the executor modal needs packages that are missing; run pip"),
        ("e2b", 'executor_key_env = "NO_SUCH"', "[]", "[agents.coder] executor_key_env: names a variable that is not"),
        ("docker", "code_limits = {cpu_s = 1}", "[]", "cpu_s: a remote executor has only the limit wall_s"),
        ("docker", 'workspace = {readonly = ["**"]}', "[]", 'workspace: executor = "docker" cannot call a workspace'),
        ("docker", 'mcp = ["files"]\n[mcp.files]\ncommand = "x"', "[]", 'mcp: executor = "docker" cannot call MCP'),
    ],
)
def test_a_mistaken_executor_stops_the_start(executor: str, rest: str, tools: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(StartError) as caught:
        Catalog(load_agents_file(Path(write_agent(tmp_path, executor, rest, tools)["AGENTS_FILE"])))
    assert words in caught.value.message
