"""Model calls of a turn: their timeouts, retries, usage and prompts, and their connections, which a stop ends."""

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smolsessions.agents.config.schema import ModelTable
from smolsessions.agents.factories import check_factory
from smolsessions.agents.models.streams import timeouts_of
from smolsessions.core.errors import StartError
from tests.support import endpoint as agents
from tests.support.endpoint import AGENTS, Endpoint
from tests.support.llm import LLM
from tests.support.providers import used
from tests.support.service import PATIENCE_S, Service
from tests.support.streaming import log_of
from tests.support.tiers import mostly_deep
from tests.support.turns import cancel, submit_turn, wait_for_end

CHAT = {"AGENTS": agents.AGENTS, "DEMO_AGENTS": "0", "DEFAULT_AGENT": "chat", "MODEL_ID": "m"}

FILED = '[agents.filed]\nkind = "tool_calling"\nmodel = {{provider = "openai", id = "m", base = "{url}"}}\n'


@pytest.fixture(scope="module")
def provider() -> Iterator[Endpoint]:
    with Endpoint() as running:
        yield running


@pytest.fixture(scope="module")
def hasty(provider: Endpoint, folder: Path) -> Iterator[Service]:
    """Yield a service whose chat has a long timeout for an answer's first byte and a short one between its pieces."""
    settings = {
        "MODEL_API_BASE": provider.base_url,
        "MODEL_FIRST_BYTE_S": "60",
        "MODEL_TIMEOUT_S": "2",
        "MODEL_RETRIES": "0",
        "MODEL_MAX_TOKENS": "50",
        "MODEL_TEMPERATURE": "0.25",
        "MODEL_SYSTEM_PROMPT": "Be {% raw %}{{brief}}{% endraw %}.",
    }
    with Service(folder, CHAT | settings, {"ENDPOINT_URL": provider.base_url}) as running:
        yield running


def test_an_answer_may_begin_late(hasty: Service) -> None:
    turn = hasty.post("/turn", message="slow").json()
    assert turn["reply"] == "done", turn


def test_an_answer_that_falls_silent_times_out(hasty: Service) -> None:
    turn = hasty.post("/turn", message="silent").json()
    assert turn["error"]["code"] == "model_timeout"
    assert turn["timing"]["duration_ms"] < 60_000, "the timeout of the first byte"


def test_the_settings_of_chat_reach_its_model(hasty: Service, provider: Endpoint) -> None:
    hasty.post("/turn", message="hello")
    body = provider.requests[-1].body
    assert (body["max_tokens"], body["temperature"]) == (50, 0.25)
    assert body["messages"][0]["content"] in ("Be {{brief}}.", [{"type": "text", "text": "Be {{brief}}."}])


def test_a_model_that_delegates_to_one_with_a_stream_is_streamed(hasty: Service, provider: Endpoint) -> None:
    turn = hasty.post("/turn", message="hello", agent="delegating").json()
    assert turn["status"] == "finished", turn
    assert provider.requests[-1].body["stream"] is True


def test_usage_that_was_reported_counts_though_the_call_fails(hasty: Service) -> None:
    turn = hasty.post("/turn", message="counted").json()
    assert (turn["status"], turn["error"]["code"], turn["error"]["retryable"]) == ("failed", "model_error", True)
    assert turn["usage"] == used(3, 2)


def test_a_stream_that_breaks_at_the_end_of_the_window_is_an_overflow(hasty: Service) -> None:
    turn = hasty.post("/turn", message="overflow").json()
    assert turn["error"]["code"] == "context_overflow"
    assert "token_budget" in turn["error"]["message"]
    assert "Roll it back" in turn["error"]["message"]


@pytest.mark.parametrize("mode", ["null", "empty"])
@pytest.mark.parametrize("name", ["openai", "streaming"])
def test_a_call_without_text_prompts_as_smolagents(
    hasty: Service, provider: Endpoint, monkeypatch: pytest.MonkeyPatch, name: str, mode: str
) -> None:
    monkeypatch.setenv("ENDPOINT_URL", provider.base_url)
    began = len(provider.requests)
    {"openai": agents.make_openai, "streaming": agents.make_streaming}[name]().run(mode)
    hasty.post("/turn", agent=name, message=mode)
    bare, bare_second, ours, ours_second = [each.body["messages"] for each in provider.requests[began:]]
    assert ours == bare
    assert ours_second == bare_second


@pytest.fixture(scope="module")
def service(_llm_server: LLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("repeating")
    (folder / "agents.toml").write_text(FILED.format(url=_llm_server.base_url))
    settings = {"MODEL_API_BASE": _llm_server.base_url, "MODEL_TIMEOUT_S": "1", "MODEL_FIRST_BYTE_S": "1"}
    settings |= CHAT | {"AGENTS_FILE": str(folder / "agents.toml")}
    with Service(folder / "service", settings, {"ENDPOINT_URL": _llm_server.base_url}) as running:
        yield running


def test_a_call_that_fails_in_transit_is_made_again(service: Service, llm: LLM) -> None:
    llm.fail(503)
    llm.break_stream()
    llm.answer("at last")
    turn = service.post("/turn", message="hello").json()
    assert (turn["status"], turn["reply"], turn["step_count"], turn["attempts"]) == ("finished", "at last", 1, 1), turn
    assert len(llm.requests) == 3
    events = [frame.data for frame in log_of(service, turn)]
    assert [event["type"] for event in events].count("message.restarted") == 2
    last = max(place for place, event in enumerate(events) if event["type"] == "message.restarted")
    assert "".join(event["text"] for event in events[last:] if event["type"] == "message.delta") == "at last"


def test_retries_end_with_the_deadline(service: Service, llm: LLM) -> None:
    for _ in range(3):
        llm.fall_silent()
    assert service.post("/turn", message="hello", deadline_s=2).json()["error"]["code"] == "deadline_exceeded"
    assert llm.is_idle(within_s=PATIENCE_S)


@pytest.mark.parametrize(
    ("agent", "requests", "restarts"),
    [("openai", 3, 2), ("azure", 3, 2), ("inference", 3, 2), ("filed", 3, 2), ("retried", 2, 1), ("twice", 3, 0)],
)
def test_the_service_repeats_a_call_twice_by_default(
    service: Service, llm: LLM, agent: str, requests: int, restarts: int
) -> None:
    llm.fail(500)
    llm.fail(500)
    llm.answer("at last")
    turn = service.post("/turn", agent=agent, message="hello").json()
    assert (turn["status"], len(llm.requests)) == ("finished" if requests == 3 else "failed", requests), turn
    assert [frame.event for frame in log_of(service, turn)].count("message.restarted") == restarts


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "This model does not support image inputs"),
        (404, "No endpoints found that support image input"),
        (500, "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"),
    ],
)
def test_an_image_that_the_model_cannot_read_is_named(service: Service, llm: LLM, status: int, message: str) -> None:
    llm.fail(status, message=message)
    error = service.post("/turn", message="hello").json()["error"]
    assert (error["code"], error["retryable"]) == ("model_unsupported_input", False)
    assert len(llm.requests) == 1


def test_a_client_with_retries_of_its_own_is_named_at_start(hasty: Service) -> None:
    (hint,) = [line for line in hasty.log().splitlines() if "as set by its author" in line]
    assert "'twice' repeats failed calls 2 times" in hint


def test_retries_that_are_no_number_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENDPOINT_URL", "http://127.0.0.1:1/v1")
    with pytest.raises(StartError, match="the agent 'eager': model_retries: should be a valid integer"):
        check_factory("eager", agents.make_eager)


def test_the_wait_for_the_first_byte_may_be_shorter_than_silence_later() -> None:
    assert timeouts_of(ModelTable(provider="openai", id="gpt-4o", first_byte_s=2, timeout_s=60)) == (2, 2)


CLIENTS = ("openai", "openai-whole", "openai-httpx", "azure", "inference")
DEADLINES_S = (1, 4, 16, 64)  # the next one if the machine was too slow to begin the call before this one
MODES = ("prefill", "headers", "silent", "endless")
CASES = [(agent, mode) for agent in CLIENTS for mode in MODES if agent != "openai-whole" or mode == "prefill"]
FAST = [
    *(("openai", mode) for mode in MODES),
    ("openai-whole", "prefill"),
    ("openai-httpx", "endless"),
    ("azure", "headers"),
    ("inference", "silent"),
]


@pytest.fixture(scope="module")
def hosted(provider: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(provider, tmp_path_factory.mktemp("hosted")) as running:
        yield running


def serving(provider: Endpoint, folder: Path, **settings: str) -> Service:
    named = {"AGENTS": AGENTS, "DEMO_AGENTS": "0"} | settings
    return Service(folder, named, {"ENDPOINT_URL": provider.base_url})


def in_call(service: Service, provider: Endpoint, agent: str, mode: str, **body: Any) -> dict[str, Any]:
    calls = provider.calls
    turn = submit_turn(service, agent=agent, message=mode, **body)
    assert provider.wait(lambda it: it.calls > calls, within_s=PATIENCE_S)
    if mode in {"silent", "endless"}:  # the first piece has arrived
        where = f"/conversations/{turn['conversation_id']}/turns/{turn['turn']}/events"
        with service.client.stream("GET", where) as answer:
            assert any("message.delta" in line for line in answer.iter_lines())
    return turn


def is_let_go(provider: Endpoint) -> bool:
    return provider.wait(lambda it: it.open_calls == 0, within_s=PATIENCE_S)


@pytest.mark.parametrize(("agent", "mode"), mostly_deep(CASES, fast=FAST, several=True))
def test_a_stop_ends_the_providers_work(hosted: Service, provider: Endpoint, agent: str, mode: str) -> None:
    turn = in_call(hosted, provider, agent, mode)
    cancel(hosted, turn)
    assert is_let_go(provider)
    assert wait_for_end(hosted, turn)["status"] == "cancelled"
    assert "ignores a request to stop" not in hosted.log()


@pytest.mark.parametrize("mode", mostly_deep(MODES, fast=["silent"]))
def test_a_deadline_ends_it(hosted: Service, provider: Endpoint, mode: str) -> None:
    calls = provider.calls
    for deadline_s in DEADLINES_S:
        turn = wait_for_end(hosted, submit_turn(hosted, agent="openai", message=mode, deadline_s=deadline_s))
        assert is_let_go(provider)
        assert turn["error"]["code"] == "deadline_exceeded"
        if provider.calls > calls:
            break
    assert provider.calls == calls + 1


def test_a_client_that_goes_away_and_wants_it_so_ends_it(hosted: Service, provider: Endpoint) -> None:
    calls = provider.calls
    body = {"agent": "openai", "message": "prefill"}
    headers = {"Accept": "text/event-stream"}
    with hosted.client.stream("POST", "/turn?on_disconnect=cancel", json=body, headers=headers):
        assert provider.wait(lambda it: it.calls > calls, within_s=PATIENCE_S)
    assert is_let_go(provider)


def test_a_drain_ends_it_after_its_time(provider: Endpoint, tmp_path: Path) -> None:
    with serving(provider, tmp_path, DRAIN_S="1") as service:
        in_call(service, provider, "openai", "prefill")
        since = time.monotonic()
        service.process.send_signal(signal.SIGTERM)
        assert is_let_go(provider)
        assert time.monotonic() - since > 0.9
        assert service.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("agent", CLIENTS)
def test_a_connection_is_used_again(hosted: Service, provider: Endpoint, agent: str) -> None:
    first = hosted.post("/turn", agent=agent, message="hello").json()
    connections, calls = provider.connections, provider.calls
    for _ in range(5):
        turn = hosted.post("/turn", conversation_id=first["conversation_id"], message="hello").json()
        assert turn["reply"] == "done", json.dumps(turn)
    assert (provider.connections, provider.calls) == (connections, calls + 5)


@pytest.mark.parametrize("agent", mostly_deep(["encrypted", "encrypted_httpx"], fast=["encrypted"]))
def test_a_stop_ends_a_tls_handshake(tmp_path: Path, agent: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE_S)
        environment = {"SILENT_URL": "https://{}:{}/v1".format(*silent.getsockname())}
        settings = {"AGENTS": f"{agent}=tests.support.endpoint:make_{agent}", "DEMO_AGENTS": "0"}
        with Service(tmp_path, settings, environment) as service:
            turn = submit_turn(service, agent=agent, message="hello")
            connection, _ = silent.accept()
            with connection:
                connection.settimeout(PATIENCE_S)
                assert connection.recv(1, socket.MSG_PEEK) == b"\x16"  # the handshake has begun
                cancel(service, turn)
                while connection.recv(4096):
                    pass
                assert wait_for_end(service, turn)["status"] == "cancelled"
            assert "ignores a request to stop" not in service.log()
