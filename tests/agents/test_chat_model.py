"""The `chat` agent against a real HTTP server, and the reports of its failures."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import IncompleteRead

import httpx2
import pytest
from smolagents import AgentError, ChatMessage, Model, OpenAIModel, RunResult, ToolCallingAgent
from smolagents.utils import AgentGenerationError

from smolsessions.agents.chat import ChatOptions, chat_factory
from smolsessions.agents.run.failures import classify, is_swallowed_failure
from smolsessions.core.records import Failure
from tests.support.llm import LLM

KEY = "sk-test-4f1d0c7e9a"
TIMEOUT_S = 4.0
QUESTION = "what is six times seven?"


@pytest.fixture
def make(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], ToolCallingAgent]]:
    monkeypatch.setenv("CHAT_KEY", KEY)
    factory = chat_factory(ChatOptions("gpt-4o", llm.base_url, "CHAT_KEY", first_byte_s=TIMEOUT_S, timeout_s=TIMEOUT_S))
    with closing(model_of(factory()).client):
        yield factory


@pytest.fixture
def agent(make: Callable[[], ToolCallingAgent]) -> ToolCallingAgent:
    return make()


def model_of(agent: ToolCallingAgent) -> OpenAIModel:
    assert isinstance(agent.model, OpenAIModel)
    return agent.model


def fail(agent: ToolCallingAgent) -> Failure:
    with pytest.raises(AgentGenerationError) as caught:
        agent.run(QUESTION)
    return classify(caught.value)


class TestTheFactory:
    def test_makes_agents_that_share_only_the_model_and_the_prompts(self, make: Callable[[], ToolCallingAgent]) -> None:
        one, other = make(), make()
        assert one is not other
        assert one.memory is not other.memory
        assert one.model is other.model
        assert one.prompt_templates is other.prompt_templates
        assert not {id(tool) for tool in one.tools.values()} & {id(tool) for tool in other.tools.values()}

    def test_makes_one_model_however_many_ask_at_once(self, llm: LLM) -> None:
        factory = chat_factory(ChatOptions("gpt-4o", llm.base_url, None))
        together = threading.Barrier(8)

        def ask(_: int) -> OpenAIModel:
            together.wait()
            return model_of(factory())

        with ThreadPoolExecutor(8) as threads:
            models = list(threads.map(ask, range(8)))
        assert len({id(model) for model in models}) == 1
        models[0].client.close()

    def test_never_uses_keys_and_addresses_of_the_environment(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", "http://stray.invalid/v1")
        keyless = chat_factory(ChatOptions("gpt-4o", llm.base_url, None))()
        openai = chat_factory(ChatOptions("gpt-4o", None, "OPENAI_API_KEY"))()
        llm.answer("42")
        with closing(model_of(keyless).client), closing(model_of(openai).client):
            keyless.run(QUESTION)
            assert [request.key for request in llm.requests] == ["none"]
            assert model_of(openai).client.base_url.host == "api.openai.com"

    @pytest.mark.parametrize("base", [None, "https://api.openai.com/v1"])
    def test_limits_an_answer_by_reasoning_models(self, monkeypatch: pytest.MonkeyPatch, base: str | None) -> None:
        monkeypatch.setenv("CHAT_KEY", KEY)
        model = model_of(chat_factory(ChatOptions("gpt-5-mini", base, "CHAT_KEY", max_tokens=50))())
        with closing(model.client):
            assert model.kwargs == {"max_completion_tokens": 50}

    def test_sets_the_timeouts_of_connecting_and_reading(self, llm: LLM) -> None:
        slow = chat_factory(ChatOptions("gpt-4o", llm.base_url, first_byte_s=120))()
        with closing(model_of(slow).client) as client:
            assert (client.timeout.connect, client.timeout.read) == (10, 120)


class TestAFailingModel:
    def test_is_recognised_in_a_planning_step_that_wraps_nothing(self, llm: LLM, agent: ToolCallingAgent) -> None:
        planner = ToolCallingAgent(tools=[], model=agent.model, planning_interval=1, verbosity_level=-1)
        llm.fail(429)
        with pytest.raises(Exception, match="429") as caught:
            planner.run(QUESTION)
        assert not isinstance(caught.value, AgentError)
        assert classify(caught.value).code == "rate_limited"

    @pytest.mark.parametrize("is_failure", [True, False])
    def test_at_max_steps_is_told_from_an_answer(self, llm: LLM, agent: ToolCallingAgent, is_failure: bool) -> None:
        llm.call(("clock", {}))
        if is_failure:
            llm.fail(500, message=f"key {KEY}")
        else:
            llm.say("Error in generating final LLM output: that is what the page says.")
        result = agent.run(QUESTION, max_steps=1, return_full_result=True)
        assert isinstance(result, RunResult)
        assert result.state == "max_steps_error"
        assert is_swallowed_failure(result.output) == is_failure


class Raising(Model):
    """A model of another provider, of which only the exceptions matter here."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(model_id="raising")
        self.error = error

    def generate(self, *_: object, **__: object) -> ChatMessage:
        raise self.error


class SulkyError(Exception):
    """Error with a property that cannot be read, as in httpx."""

    @property
    def status_code(self) -> int:
        raise RuntimeError(KEY)


def shaped(name: str = "ProviderError", **attributes: object) -> Exception:
    """Make an exception with the name and attributes of one from a library that is not installed here."""
    kind: type[Exception] = type(name, (Exception,), attributes)
    return kind(KEY)


def http_error(status: int) -> httpx2.HTTPStatusError:
    request = httpx2.Request("POST", "http://provider.invalid")
    return httpx2.HTTPStatusError(KEY, request=request, response=httpx2.Response(status, request=request))


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def met_while_handling(error: Exception, handled: Exception) -> Exception:
    error.__context__ = handled
    return error


def generation_error(error: BaseException) -> AgentGenerationError:
    agent = ToolCallingAgent(tools=[], model=Raising(error), verbosity_level=-1)
    with pytest.raises(AgentGenerationError) as caught:
        agent.run(QUESTION)
    return caught.value


class TestClassify:
    @pytest.mark.parametrize(
        ("error", "code", "retryable"),
        [
            (httpx2.ReadError(KEY), "model_error", True),
            (httpx2.RemoteProtocolError(KEY), "model_error", True),
            (TimeoutError(KEY), "model_timeout", True),
            (IncompleteRead(b""), "model_error", True),
            (shaped("AuthenticationError"), "model_auth", False),
            (shaped("RateLimitError"), "rate_limited", True),
            (shaped("ContextWindowExceededError", status_code=400), "context_overflow", False),
            (shaped("ChunkedEncodingError"), "model_error", True),
            (shaped(status_code=429), "rate_limited", True),
            (shaped(code="429"), "rate_limited", True),
            (shaped(code="invalid_api_key", status_code=400), "model_auth", False),
            (shaped(body={"code": "context_length_exceeded"}), "context_overflow", False),
            (shaped(body={"error": {"code": "context_length_exceeded"}}), "context_overflow", False),
            (shaped(body="<html>", code=None, status_code=lambda: 500), "model_error", False),
            (RuntimeError("exceeds the available context size"), "context_overflow", False),
            (caused(RuntimeError(KEY), http_error(401)), "model_auth", False),
            (met_while_handling(RuntimeError(KEY), http_error(401)), "model_auth", False),
            (ValueError(KEY), "model_error", False),
            (SulkyError(KEY), "model_error", False),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
    )
    def test_knows_a_models_exception_by_its_shape(self, error: Exception, code: str, retryable: bool) -> None:
        failure = classify(generation_error(error))
        assert (failure.code, failure.retryable) == (code, retryable)
        assert KEY not in repr(failure)

    def test_calls_a_callbacks_exception_the_agents_own(self) -> None:
        def notify(*_: object, **__: object) -> None:
            raise http_error(429)

        agent = ToolCallingAgent(tools=[], model=Raising(ValueError(KEY)), step_callbacks=[notify], verbosity_level=-1)
        with pytest.raises(httpx2.HTTPStatusError) as caught:
            agent.run(QUESTION)
        failure = classify(caught.value)
        assert (failure.code, failure.retryable) == ("agent_error", False)
        assert KEY not in repr(failure)

    def test_ends_where_causes_go_in_circles(self) -> None:
        one, other = ValueError(KEY), ValueError(KEY)
        one.__cause__, other.__cause__ = other, one
        wrapped, again = generation_error(one), generation_error(other)
        assert classify(wrapped).code == "model_error"
        wrapped.__cause__, again.__cause__ = again, wrapped
        assert classify(wrapped).code == "model_error"

    def test_reads_a_generation_error_that_came_without_its_cause(self) -> None:
        error = generation_error(ValueError("the maximum context length is 4096"))
        error.__cause__ = None
        assert classify(error).code == "context_overflow"

    @pytest.mark.parametrize(
        "output",
        [None, "Error in generating final LLM output: x", [], ["text"], [{"type": "text", "text": "42"}], {"text": 1}],
    )
    def test_takes_other_outputs_for_answers(self, output: object) -> None:
        assert not is_swallowed_failure(output)
