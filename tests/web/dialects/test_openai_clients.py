"""Other clients of OpenAI's Responses: npm `openai`, openai-agents, a conformance suite, and streams that are cut."""

import itertools
import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright._impl._driver import compute_driver_executable

from tests.support.data import FOLDER
from tests.support.debian import skip
from tests.support.environments import OPENAI_CLIENTS, environment
from tests.support.llm import LLM
from tests.support.providers import Answer
from tests.support.service import CODELESS, Service
from tests.support.store_server import running_store
from tests.support.streaming import Event
from tests.support.waiting import PATIENCE_S
from tests.web.dialects.clients import openai_of
from tools.node_programs import NoNodeError, programs

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]

EVERY = 4  # events
SCRIPT: list[Event] = [
    {"call": [["echo", {"text": "first"}]], "pace_s": 0.01},
    {"call": [["echo", {"text": "second"}], ["echo", {"text": "third"}]], "pace_s": 0.01},
    {"say": "It is said in the end.", "pace_s": 0.05},
]
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


def url_of(service: Service) -> str:
    return f"{str(service.client.base_url).rstrip('/')}/openai/v1"


def output_of(*command: str) -> Any:
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ran.stdout, ran.stderr
    return json.loads(ran.stdout)


def test_openai_agents_run_agents_of_this_service(asking: Service, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", OPENAI_CLIENTS)
    got = output_of(python, str(FOLDER / "openai_agents.txt"), url_of(asking))
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


def test_the_library_in_node(asking: Service) -> None:
    try:
        folder = programs().parent.parent
    except NoNodeError as error:
        skip(str(error))
    program = folder / "node_modules" / ".openai_client.mjs"  # beside the packages that it imports
    program.write_text((FOLDER / "openai_client.mjs").read_text())
    kinds = ["reasoning", "mcp_call", "reasoning", "message"]
    assert output_of(str(compute_driver_executable()[0]), str(program), url_of(asking)) == {
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
    (tmp_path / "agents.toml").write_text(TALKER.format(base=llm.base_url))
    settings = {"AGENTS": "", "DEMO_AGENTS": "0", "AGENTS_FILE": str(tmp_path / "agents.toml")}
    comply = [str(Path(python).with_name("llm-comply")), "-k", "any", "-m", "o3", "--json"]
    said = Answer(("I think.",), calls=(("final_answer", {"answer": "Hello."}),))
    with Service(tmp_path / "service", settings) as service:
        llm.play(*[said] * 20)
        suite = output_of(*comply, "-u", url_of(service))
        failed = {case["id"]: case["errors"] for case in suite["results"] if case["status"] != "passed"}
        assert failed.keys() == {"tool-calling", *NOT_SERVED}, failed
        llm.play(Answer(calls=(("get_weather", {"location": "San Francisco"}),)))
        suite = output_of(*comply, "-u", url_of(service), "-f", "tool-calling")
        assert suite["results"][0]["status"] == "passed", suite


def test_a_stream_that_was_cut_is_whole_in_another_process(tmp_path: Path) -> None:
    with running_store(tmp_path / "store") as store, ExitStack() as stack:
        settings = CODELESS | store.settings
        here, there = Service(tmp_path / "a", settings), Service(tmp_path / "b", settings)
        stack.callback(lambda: here.stop())  # noqa: PLW0108 - whichever runs then
        here.start()
        whole, attempts = read(here, []), []
        for after in range(1, len(whole), EVERY):
            there.start()
            there.process.send_signal(signal.SIGSTOP)  # it takes no turn
            events = read(here, [], after)
            here.kill()
            there.process.send_signal(signal.SIGCONT)
            here, there = there, here
            assert output_in(read(here, events)) == output_in(whole), after
            conversation = events[0].response.conversation.id
            attempts.append(here.get(f"/conversations/{conversation}/turns/1")["attempts"])
        assert attempts.count(2) > len(attempts) / 2, "few turns were still running"


def read(service: Service, events: list[Any], most: int = sys.maxsize) -> list[Any]:
    """Read the rest of the events of a response, or the first ones of a new one."""
    with openai_of(service) as client:
        stream: Any
        if events:
            after = events[-1].sequence_number
            stream = client.responses.retrieve(events[0].response.id, stream=True, starting_after=after)
        else:
            stream = client.responses.create(model="streamed", input=json.dumps(SCRIPT), stream=True)
        with stream:
            return events + list(itertools.islice(stream, most))


def output_in(events: list[Any]) -> list[Any]:
    """Return the output without its ids, which the events before the last one have shown piece by piece."""
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    done = {event.item.id: event.item for event in events if event.type == "response.output_item.done"}
    texts = dict.fromkeys(done, "")
    for event in events:
        if event.type in {"response.output_text.delta", "response.reasoning_summary_text.delta"}:
            texts[event.item_id] += event.delta
    output = events[-1].response.output
    for item in output:
        assert item == done[item.id]
        if item.type == "message":
            assert texts[item.id] == item.content[0].text
    return [item.model_dump(exclude={"id"}) for item in output]
