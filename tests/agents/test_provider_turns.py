"""Turns of agents.toml whose providers fail: repeats, fallbacks, and keys that nothing shows.

An environment that has LiteLLM tests LiteLLM alone, as test_providers.py does.
"""

import importlib.util
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.data import data
from tests.support.providers import KEY, Answer, Provider, Request, used
from tests.support.service import Service, wait_until, write_agents
from tests.support.streaming import log_of
from tests.support.transfer import export, import_document
from tests.support.turns import cancel, submit_turn, wait_for_end

HAS_LITELLM = bool(importlib.util.find_spec("litellm"))
OTHER_KEY = f"{KEY}-other"
ENDPOINTS = (
    ("/api/chat", "/v1/messages") if HAS_LITELLM else ("/v1/chat/completions", "/openai/deployments/m/chat/completions")
)
ANSWER = Answer(calls=(("final_answer", {"answer": "It is 42."}),))
BROKEN = Answer(status=500, body={"error": {"message": f"broken {KEY}"}})
CODE = Answer(("Thought: easy\n<code>\nfinal_answer(6 * 7)\n</code>",))
MARK = re.compile("cachePoint|cache_control")
MARKED_END = re.compile(r'("cache_control": {"type": "ephemeral"}|{"cachePoint": {"type": "default"})}\]}\]$')
QUESTION = "how is the weather in Lisbon?"


@pytest.fixture(scope="module")
def server() -> Iterator[Provider]:
    with Provider() as running:
        yield running


@pytest.fixture(scope="module")
def service(server: Provider, folder: Path) -> Iterator[Service]:
    models = data("litellm_models.toml" if HAS_LITELLM else "own_models.toml")
    keys = {"FIRST_KEY": KEY, "SECOND_KEY": OTHER_KEY, "AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": KEY}
    traps = {"LITELLM_LOG": "DEBUG", "LITELLM_PRINT_STANDARD_LOGGING_PAYLOAD": "true"}
    settings = write_agents(folder, models.format(url=server.url) + data("provider_agents.toml"))
    with Service(folder / "service", settings, keys | traps, forked=False) as running:
        yield running
        assert KEY not in running.log()


def limited(retry_after: str) -> Answer:
    return Answer(status=429, body={"error": {"message": f"slow down {KEY}"}}, headers={"Retry-After": retry_after})


def play(service: Service, server: Provider, *answers: Answer, agent: str = "shop", **body: Any) -> dict[str, Any]:
    server.play(*answers)
    turn: dict[str, Any] = service.post("/turn", agent=agent, message=QUESTION, **body).json()
    return turn


def called(server: Provider) -> list[str]:
    return [request.path.partition("?")[0] for request in server.requests]


def test_a_fallback_answers_once_the_repeats_are_used_up(service: Service, server: Provider) -> None:
    turn = play(service, server, BROKEN, BROKEN, ANSWER)
    assert (turn["status"], turn["reply"], turn["attempts"]) == ("finished", "It is 42.", 1), turn
    assert called(server) == [ENDPOINTS[0], ENDPOINTS[0], ENDPOINTS[1]]
    keys = [KEY in "".join(request.headers.values()) for request in server.requests]
    assert (keys, OTHER_KEY in "".join(server.requests[2].headers.values())) == ([True] * 3, True)
    assert [frame.event for frame in log_of(service, turn)].count("message.restarted") == 2


def test_a_refused_key_is_not_tried_again_but_the_fallback_is(service: Service, server: Provider) -> None:
    turn = play(service, server, Answer(status=401, body={"error": f"no {KEY}"}), ANSWER)
    assert (turn["reply"], called(server)) == ("It is 42.", [*ENDPOINTS])


def test_the_last_failure_is_that_of_the_turn(service: Service, server: Provider) -> None:
    refused = Answer(status=401, body={"error": {"message": f"no {OTHER_KEY}"}})
    turn = play(service, server, BROKEN, BROKEN, refused)
    assert (turn["status"], turn["error"]["code"]) == ("failed", "model_auth")
    line = [line for line in service.log().splitlines() if "model_proxy model" in line][-1]
    assert (" at http://127.0.0.1:" in line, "HTTP 401" in line, OTHER_KEY in line) == (True, True, False), line


def test_a_limited_call_waits_as_long_as_the_provider_asks(service: Service, server: Provider) -> None:
    turn = play(service, server, limited("1"), ANSWER, agent="lone")
    assert turn["reply"] == "It is 42.", turn
    first, second = (request.at for request in server.requests)
    assert second - first >= 1


def test_a_fallback_is_not_kept_waiting(service: Service, server: Provider) -> None:
    turn = play(service, server, limited("30"), ANSWER)
    assert (turn["reply"], called(server)) == ("It is 42.", [*ENDPOINTS])
    assert turn["timing"]["duration_ms"] < 30_000


def test_a_wait_beyond_the_deadline_ends_the_turn_at_once(service: Service, server: Provider) -> None:
    turn = play(service, server, limited("30"), agent="lone", deadline_s=20)
    assert (turn["error"]["code"], turn["error"]["retryable"], len(server.requests)) == ("rate_limited", True, 1)


def test_a_stop_ends_the_wait_for_a_repeat_at_once(service: Service, server: Provider) -> None:
    server.play(limited("20"))
    turn = submit_turn(service, agent="lone", message=QUESTION)
    wait_until(lambda: len(server.requests) == 1)
    cancel(service, turn)
    assert wait_for_end(service, turn)["status"] == "cancelled"
    assert "ignores a request to stop" not in service.log()


@pytest.mark.skipif(HAS_LITELLM, reason="boto3 makes these calls")
def test_an_agent_on_bedrock_writes_code(service: Service, server: Provider) -> None:
    turn = play(service, server, CODE, agent="coder")
    assert (turn["reply"], turn["usage"]) == ("42", used(3, 2)), turn


OPENAIS = {"prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 0}}
OPENAIS_USED = used(3, 2, cached_input_tokens=2) | ({} if HAS_LITELLM else {"reasoning_tokens": 0})
CACHED_USED = used(14, 2, cached_input_tokens=7, cache_write_tokens=4)
DETAILS: list[tuple[str, Any, Any]] = [("lone", OPENAIS, OPENAIS_USED)]
if HAS_LITELLM:
    ANTHROPICS = {"cache_read_input_tokens": 7, "cache_creation_input_tokens": 4}
    DETAILS += [("cached", ANTHROPICS, CACHED_USED), ("shop", {}, used(3, 2))]
else:
    ODD = {"prompt_tokens_details": None, "completion_tokens_details": {"reasoning_tokens": "many"}}
    BEDROCKS = {"cacheReadInputTokens": 7, "cacheWriteInputTokens": 4}
    DETAILS += [("cached", OPENAIS, OPENAIS_USED), ("shop", ODD, used(3, 2)), ("coder", BEDROCKS, CACHED_USED)]


@pytest.mark.parametrize(("agent", "usage", "expected"), DETAILS)
def test_a_turn_counts_cached_and_reasoning_tokens(
    service: Service, server: Provider, agent: str, usage: Any, expected: Any
) -> None:
    turn = play(service, server, replace(CODE if agent == "coder" else ANSWER, usage=usage), agent=agent)
    assert turn["usage"] == expected, turn
    assert service.steps(turn)[-1]["usage"] == expected
    assert [each.data["usage"] for each in log_of(service, turn) if each.event == "step.finished"] == [expected]
    said = {name: count for name, count in expected.items() if count is not None}
    document = export(service, turn["conversation_id"])
    exported = [document, export(service, import_document(service, document)["id"])]
    assert [each["steps"][-1]["token_usage"] for each in exported] == [said] * 2
    assert [each["turns"][-1]["usage"] for each in exported] == [expected] * 2


def test_a_plan_shows_them_as_a_step_does(service: Service, server: Provider) -> None:
    turn = play(service, server, Answer(usage=OPENAIS), replace(ANSWER, usage=OPENAIS), agent="planner")
    assert [step.get("usage") for step in service.steps(turn)] == [None, OPENAIS_USED, OPENAIS_USED]


@pytest.mark.parametrize("agent", ["cached"] if HAS_LITELLM else ["cached", "coder"])
def test_prompts_of_consecutive_turns_share_their_beginning(service: Service, server: Provider, agent: str) -> None:
    answers = [CODE] * 2 if agent == "coder" else [Answer(calls=(("calculator", {"expression": "6 * 7"}),)), ANSWER]
    first = play(service, server, *answers, agent=agent)
    asked = [*server.requests]
    server.play(*answers)
    second = service.post("/turn", conversation_id=first["conversation_id"], message="And in Porto?").json()
    assert second["status"] == "finished", second
    asked += server.requests
    prompts = [without_marks(request).rstrip("]}") for request in asked]
    for shorter, longer in itertools.pairwise(prompts):
        assert longer.startswith(shorter)
    other = play(service, server, *answers, agent=agent)
    requests = [*asked, *server.requests]
    keys = {request.body.get("prompt_cache_key") for request in requests}
    if agent == "coder" or HAS_LITELLM:
        assert keys == {None}
        assert {len(MARK.findall(request.raw.decode())) for request in requests} == {2}
        assert all(MARKED_END.search(request.text) for request in requests)
    else:
        assert [len(key) for key in keys] == [32, 32]
        assert not any(turn["conversation_id"] in str(key) for key in keys for turn in (first, other))


def without_marks(request: Request) -> str:
    prompt = {name: request.body.get(name) for name in ("system", "messages")}
    text = json.dumps(prompt).replace(', "cache_control": {"type": "ephemeral"}', "")
    return text.replace(', {"cachePoint": {"type": "default"}}', "")
