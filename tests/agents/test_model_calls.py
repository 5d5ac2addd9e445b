"""Model calls of a turn: their timeouts, retries, usage and prompts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from smolsessions.agents.config.schema import ModelTable
from smolsessions.agents.factories import check_factory
from smolsessions.agents.models.streams import timeouts_of
from smolsessions.core.errors import StartError
from tests.support import endpoint as agents
from tests.support.endpoint import Endpoint
from tests.support.llm import LLM
from tests.support.providers import used
from tests.support.service import PATIENCE_S, Service
from tests.support.streaming import log_of

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
    said = "".join(event["text"] for event in events[last:] if event["type"] == "message.delta")
    assert said == "at last"


def test_retries_end_with_the_deadline(service: Service, llm: LLM) -> None:
    for _ in range(3):
        llm.fall_silent()
    turn = service.post("/turn", message="hello", deadline_s=2).json()
    assert turn["error"]["code"] == "deadline_exceeded"
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
    table = ModelTable(provider="openai", id="gpt-4o", first_byte_s=2, timeout_s=60)
    assert timeouts_of(table) == (2, 2)
