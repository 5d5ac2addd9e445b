"""Other clients of OpenAI's Responses: npm `openai`, openai-agents, and a conformance suite."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.data import FOLDER
from tests.support.environments import OPENAI_CLIENTS, environment
from tests.support.llm import LLM
from tests.support.providers import Answer
from tests.support.service import Service, run_program, write_agents
from tests.web.dialects.clients import node_command

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]

TALKER = """
[models.small]
provider = "openai"
id = "gpt-4o"
base = "{base}"

[agents.o3]
kind = "tool_calling"
model = "small"
"""
NOT_SERVED = {  # cases of the conformance suite that fail, each with its reason
    "compact-response": "an agent has memory policies of its own, so no client compacts",
    "compact-missing-model": "as above",
}


def output_of(*command: str) -> Any:
    ran = run_program(command)
    assert ran.stdout, ran.stderr
    return json.loads(ran.stdout)


def test_openai_agents_run_agents_of_this_service(service: Service, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", OPENAI_CLIENTS)
    got = output_of(python, str(FOLDER / "openai_agents.txt"), f"{service.url}/openai/v1")
    kinds = ["reasoning_item", "tool_call_item", "reasoning_item", "message_output_item"]
    assert got == {
        "plain": ["one", kinds],
        "history": True,
        "streamed": "streamed",
        "tool": True,
        "approval": [1, "sent"],
        "failed": "InternalServerError",
        "conversation": [True, True],
    }


def test_the_library_in_node(service: Service) -> None:
    kinds = ["reasoning", "mcp_call", "reasoning", "message"]
    assert output_of(*node_command(service, "openai_client.mjs", "/openai/v1")) == {
        "plain": "one",
        "streamed": ["streamed", "streamed", kinds],
        "resumed": "streamed",
        "tool": True,
        "approval": "sent",
        "failed": 500,
        "status": "failed",
        "cancelled": "cancelled",
        "items": ["message", *kinds],
    }


def test_open_responses_conform(llm: LLM, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", OPENAI_CLIENTS)
    settings = write_agents(tmp_path, TALKER.format(base=llm.base_url))
    comply = str(Path(python).with_name("llm-comply"))
    said = Answer(("I think.",), calls=(("final_answer", {"answer": "Hello."}),))
    with Service(tmp_path / "service", settings) as service:
        command = [comply, "-k", "any", "-m", "o3", "--json", "-u", f"{service.url}/openai/v1"]
        llm.play(*[said] * 20)
        suite = output_of(*command)
        failed = {case["id"]: case["errors"] for case in suite["results"] if case["status"] != "passed"}
        assert failed.keys() == {"tool-calling", *NOT_SERVED}, failed
        llm.play(Answer(calls=(("get_weather", {"location": "San Francisco"}),)))
        suite = output_of(*command, "-f", "tool-calling")
        assert suite["results"][0]["status"] == "passed", suite
