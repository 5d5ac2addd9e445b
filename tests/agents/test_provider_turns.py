"""Turns of agents.toml whose providers fail: repeats, fallbacks, and keys that nothing shows.

An environment that has LiteLLM tests LiteLLM alone, as test_providers.py does.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.providers import KEY, Answer, Provider, provider
from tests.support.service import Service
from tests.support.stopwatch import Stopwatch
from tests.support.store_server import running_store
from tests.support.stored_texts import stored_texts
from tests.support.streaming import log_of
from tests.support.turns import submit_turn, wait_for_end
from tests.support.waiting import wait_until

HAS_LITELLM = bool(importlib.util.find_spec("litellm"))
OTHER_KEY = f"{KEY}-other"
OWN = """
[models.first]
provider = "openai"
id = "m"
base = "{url}/v1"
api_key_env = "FIRST_KEY"
fallbacks = ["second"]
first_byte_s = 1
timeout_s = 1

[models.second]
provider = "azure"
id = "m"
base = "{url}"
api_version = "2024-10-21"
api_key_env = "SECOND_KEY"

[models.alone]
provider = "huggingface"
id = "m"
base = "{url}"
api_key_env = "FIRST_KEY"

[models.bedrock]
provider = "bedrock"
id = "m"
base = "{url}"
region = "eu-central-1"

[agents.coder]
kind = "code"
model = "bedrock"
executor = "thread"
"""
OF_LITELLM = """
[models.first]
provider = "litellm"
id = "ollama_chat/m"
base = "{url}"
api_key_env = "FIRST_KEY"
fallbacks = ["second"]
first_byte_s = 1
timeout_s = 1

[models.second]
provider = "litellm"
id = "anthropic/claude-opus-4-20250514"
base = "{url}"
api_key_env = "SECOND_KEY"

[models.alone]
provider = "litellm"
id = "openai/m"
base = "{url}/v1"
api_key_env = "FIRST_KEY"
"""
AGENTS = """
[agents.shop]
kind = "tool_calling"
model = "first"
model_retries = 1

[agents.lone]
kind = "tool_calling"
model = "alone"
model_retries = 2

[agents.lead]
kind = "tool_calling"
model = "first"
managed_agents = ["helper"]

[agents.helper]
kind = "tool_calling"
model = "alone"
description = "Helps."
"""
ENDPOINTS = (
    ("/api/chat", "/v1/messages") if HAS_LITELLM else ("/v1/chat/completions", "/openai/deployments/m/chat/completions")
)
ANSWER = Answer(call=("final_answer", {"answer": "It is 42."}))
BROKEN = Answer(status=500, body={"error": {"message": f"broken {KEY}"}})
QUESTION = "how is the weather in Lisbon?"


@pytest.fixture(scope="module")
def server() -> Iterator[Provider]:
    with provider() as running:
        yield running


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("providers") / "store"


@pytest.fixture(scope="module")
def service(server: Provider, store: Path) -> Iterator[Service]:
    file = store.parent / "agents.toml"
    file.write_text((OF_LITELLM if HAS_LITELLM else OWN).format(url=server.url) + AGENTS)
    keys = {"FIRST_KEY": KEY, "SECOND_KEY": OTHER_KEY, "AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": KEY}
    traps = {"LITELLM_LOG": "DEBUG", "LITELLM_PRINT_STANDARD_LOGGING_PAYLOAD": "true"}
    with running_store(store) as data:
        settings = data.settings | {"AGENTS": "", "AGENTS_FILE": str(file), "DEMO_AGENTS": "0"}
        with Service(store.parent / "service", settings, keys | traps, forked=False) as running:
            yield running


def limited(retry_after: str) -> Answer:
    return Answer(status=429, body={"error": {"message": f"slow down {KEY}"}}, headers={"Retry-After": retry_after})


def play(service: Service, server: Provider, *answers: Answer, agent: str = "shop", **body: Any) -> dict[str, Any]:
    server.play(*answers)
    turn: dict[str, Any] = service.post("/turn", agent=agent, message=QUESTION, **body).json()
    return turn


def called(server: Provider) -> list[str]:
    return [request.path.partition("?")[0] for request in server.requests]


def restarts(service: Service, turn: dict[str, Any]) -> int:
    return sum(frame.event == "message.restarted" for frame in log_of(service, turn))


def test_a_fallback_answers_once_the_repeats_are_used_up(service: Service, server: Provider) -> None:
    turn = play(service, server, BROKEN, BROKEN, ANSWER)

    assert (turn["status"], turn["reply"], turn["attempts"]) == ("finished", "It is 42.", 1), turn
    assert called(server) == [ENDPOINTS[0], ENDPOINTS[0], ENDPOINTS[1]]
    keys = [KEY in "".join(request.headers.values()) for request in server.requests]
    assert (keys, OTHER_KEY in "".join(server.requests[2].headers.values())) == ([True] * 3, True)
    assert restarts(service, turn) == 2


def test_a_refused_key_is_not_tried_again_but_the_fallback_is(service: Service, server: Provider) -> None:
    turn = play(service, server, Answer(status=401, body={"error": f"no {KEY}"}), ANSWER)

    assert (turn["reply"], called(server)) == ("It is 42.", [*ENDPOINTS])


def test_the_last_failure_is_that_of_the_turn(service: Service, server: Provider) -> None:
    refused = Answer(status=401, body={"error": {"message": f"no {OTHER_KEY}"}})
    turn = play(service, server, BROKEN, BROKEN, refused)

    assert (turn["status"], turn["error"]["code"]) == ("failed", "model_auth")


def test_a_limited_call_waits_as_long_as_the_provider_asks(service: Service, server: Provider) -> None:
    turn = play(service, server, limited("1"), ANSWER, agent="lone")

    assert turn["reply"] == "It is 42.", turn
    first, second = (request.at for request in server.requests)
    assert 1 <= second - first < 4


def test_a_fallback_is_not_kept_waiting(service: Service, server: Provider) -> None:
    with Stopwatch() as watch:
        turn = play(service, server, limited("30"), ANSWER)

    assert (turn["reply"], called(server)) == ("It is 42.", [*ENDPOINTS])
    assert watch.s < 3


def test_a_wait_beyond_the_deadline_ends_the_turn_at_once(service: Service, server: Provider) -> None:
    with Stopwatch() as watch:
        turn = play(service, server, limited("30"), agent="lone", deadline_s=25)

    assert (turn["error"]["code"], turn["error"]["retryable"], len(server.requests)) == ("rate_limited", True, 1)
    assert watch.s < 5


@pytest.mark.parametrize("fault", ["cut", "abort", "stall", "error"])
def test_a_stream_that_had_begun_is_restarted(service: Service, server: Provider, fault: Any) -> None:
    turn = play(service, server, Answer(("never read ", "to its end"), fault=fault), ANSWER)

    frames = [frame.data for frame in log_of(service, turn)]
    place = next(index for index, event in enumerate(frames) if event["type"] == "message.restarted")
    texts = [
        "".join(event["text"] for event in part if event["type"] == "message.delta")
        for part in (frames[:place], frames[place:])
    ]
    assert texts == ["never read to its end", "It is 42."]
    assert called(server) == [ENDPOINTS[0]] * 2


@pytest.mark.parametrize(
    "answer", [limited("20"), Answer(fault="silent")], ids=["in a wait for a repeat", "in a silent call"]
)
def test_a_stop_ends_a_call_at_once(service: Service, server: Provider, answer: Answer) -> None:
    server.play(answer)
    turn = submit_turn(service, agent="lone", message=QUESTION)
    wait_until(lambda: len(server.requests) == 1)
    with Stopwatch() as watch:
        service.post(f"/conversations/{turn['conversation_id']}/turns/1/cancel")

        assert wait_for_end(service, turn)["status"] == "cancelled"
    assert watch.s < 5
    assert "does not heed a stop" not in service.log()


@pytest.mark.skipif(HAS_LITELLM, reason="boto3 makes these calls")
def test_an_agent_on_bedrock_writes_code(service: Service, server: Provider) -> None:
    turn = play(service, server, Answer(("Thought: easy\n<code>\nfinal_answer(6 * 7)\n</code>",)), agent="coder")

    assert (turn["reply"], turn["usage"]) == ("42", {"input_tokens": 3, "output_tokens": 2}), turn


def test_no_key_is_shown_or_stored(service: Service, server: Provider, store: Path) -> None:
    echo = Answer(status=400, body={"error": {"message": f"bad {KEY} and {OTHER_KEY}"}})
    turns = [
        play(service, server, echo, echo),
        play(service, server, Answer(fault="error"), Answer(fault="error"), echo),
        play(service, server, BROKEN, BROKEN, ANSWER),
        play(service, server, Answer(call=("helper", {"task": "help"})), echo, ANSWER, agent="lead"),
    ]
    shown = [repr(turns)]
    for turn in turns:
        conversation = f"/conversations/{turn['conversation_id']}"
        shown += [frame.raw.decode() for frame in log_of(service, turn)]
        shown += [service.client.get(f"{conversation}{path}").text for path in ("", "/turns", "/messages", "/export")]
    shown += [service.client.get(path).text for path in ("/agents", "/agents/shop", "/agents/lone", "/metrics")]
    stored = stored_texts(store, *(turn["conversation_id"] for turn in turns))

    assert QUESTION.encode() in stored
    assert b"bad ***" in stored, "the step holds the error of the managed agent"
    assert KEY.encode() not in stored
    assert not [text for text in [*shown, service.log()] if KEY in text]
    assert QUESTION not in service.log()
