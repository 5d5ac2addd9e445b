"""Models of agents.toml against servers that speak their providers' protocols: answers, failures and keys.

LiteLLM needs an older client of OpenAI. An environment that has it tests LiteLLM alone.
"""

import functools
import hashlib
import hmac
import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from smolagents import (
    AmazonBedrockModel,
    AzureOpenAIModel,
    ChatMessage,
    InferenceClientModel,
    LiteLLMModel,
    LiteLLMRouterModel,
    MessageRole,
    Model,
    OpenAIModel,
)

from smolsessions.agents.config.schema import ModelTable
from smolsessions.agents.models.keys import without_secrets
from smolsessions.agents.models.providers import disable_client_retries, make_model
from smolsessions.agents.run.failures import classify_call
from smolsessions.agents.run.model_connections import ModelCall
from smolsessions.agents.run.model_proxy import retry_after_s
from smolsessions.core.errors import StartError
from tests.support.environments import LITELLM, environment
from tests.support.providers import KEY, PIECES, USAGE, Answer, Provider
from tests.support.service import ROOT, run_program
from tests.support.tiers import deep

TIMES = {"first_byte_s": 60, "timeout_s": 60}
HASTY = {"first_byte_s": 0.5, "timeout_s": 0.5}  # for answers that never end
OPENAI = {"provider": "openai", "id": "m", "api_key_env": "PROVIDER_KEY", "options": {"temperature": 0.25}} | TIMES
TABLES: dict[str, dict[str, Any]] = {
    "openai": OPENAI,
    "azure": OPENAI | {"provider": "azure", "api_version": "2024-10-21"},
    "huggingface": OPENAI | {"provider": "huggingface"},
    "bedrock": {"provider": "bedrock", "id": "m", "region": "eu-central-1", "options": {"temperature": 0.25}} | TIMES,
    "ollama": OPENAI | {"provider": "litellm", "id": "ollama_chat/m"},
    "anthropic": OPENAI | {"provider": "litellm", "id": "anthropic/claude-opus-4-20250514"},
    "openai by litellm": OPENAI | {"provider": "litellm", "id": "openai/m"},
    "bedrock by litellm": {
        "provider": "litellm",
        "id": "bedrock/anthropic.claude-v2:1",
        "options": {"temperature": 0.25},
    }
    | TIMES,
}
HAS_LITELLM = bool(importlib.util.find_spec("litellm"))
HERE = [name for name, table in TABLES.items() if (table["provider"] == "litellm") == HAS_LITELLM]
AWS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": KEY, "AWS_REGION": "eu-central-1"}
OF_THE_HOST = dict.fromkeys(("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "HF_TOKEN"), "HOSTS") | {
    "OPENAI_CUSTOM_HEADERS": "X-Gateway: HOSTS"
}
"""Variables that clients would send to any address."""
AUTH, LIMITED, SPENT = ("model_auth", False), ("rate_limited", True), ("rate_limited", False)
OVERFLOW, UNREADABLE = ("context_overflow", False), ("model_unsupported_input", False)
TIMEOUT, UNREACHABLE = ("model_timeout", True), ("model_unreachable", True)
FAILED, REFUSED = ("model_error", True), ("model_error", False)
RETRY_AFTER = {"Retry-After": "7"}


def openai(status: int, message: str, code: str | None = None, **headers: str) -> Answer:
    return Answer(status=status, body={"error": {"message": message, "type": "x", "code": code}}, headers=headers)


def anthropic(status: int, kind: str, message: str, **headers: str) -> Answer:
    return Answer(status=status, body={"type": "error", "error": {"type": kind, "message": message}}, headers=headers)


def plain(status: int, message: str, **headers: str) -> Answer:
    return Answer(status=status, body={"error": message}, headers=headers)


def aws(status: int, kind: str, message: str = "x", **headers: str) -> Answer:
    return Answer(status=status, body={"message": message}, headers={"x-amzn-ErrorType": kind, **headers})


Cases = dict[str, tuple[Answer, tuple[str, bool]]]
OF_OPENAI: Cases = {
    "401": (openai(401, f"Incorrect API key provided: {KEY}", "invalid_api_key"), AUTH),
    "429": (openai(429, "Rate limit reached", "rate_limit_exceeded", **RETRY_AFTER), LIMITED),
    "quota": (openai(429, "You exceeded your current quota", "insufficient_quota"), SPENT),
    "402": (openai(402, "Insufficient Balance"), SPENT),
    "too long": (openai(400, "The maximum context length is 4096 tokens.", "context_length_exceeded"), OVERFLOW),
    "image": (openai(400, "Invalid content type. image_url is only supported by certain models."), UNREADABLE),
    "404": (openai(404, "The model `m` does not exist", "model_not_found"), REFUSED),
    "408": (openai(408, "Request timed out"), TIMEOUT),
    "500": (openai(500, f"broken {KEY}"), FAILED),
    "503": (openai(503, "busy", **RETRY_AFTER), FAILED),
}
OF_BEDROCK: Cases = {
    "no access": (aws(403, "AccessDeniedException", f"You don't have access to the model {KEY}"), AUTH),
    "expired": (aws(403, "ExpiredTokenException", "The security token included in the request is expired"), AUTH),
    "throttled": (aws(429, "ThrottlingException", "Too many requests", **RETRY_AFTER), LIMITED),
    "too long": (aws(400, "ValidationException", "Input is too long for requested model."), OVERFLOW),
    "image": (aws(400, "ValidationException", "This model doesn't support the image field."), UNREADABLE),
    "404": (aws(404, "ResourceNotFoundException"), REFUSED),
    "late": (aws(408, "ModelTimeoutException"), TIMEOUT),
    "model": (aws(424, "ModelErrorException"), FAILED),
    "500": (aws(500, "InternalServerException", f"broken {KEY}"), FAILED),
}
CASES: dict[str, Cases] = {
    "openai": OF_OPENAI,
    "openai by litellm": OF_OPENAI,
    "azure": {
        **OF_OPENAI,
        "401": (openai(401, f"Access denied due to invalid subscription key {KEY}", "401"), AUTH),
        "429": (openai(429, "Requests have exceeded call rate limit", "429", **{"retry-after-ms": "7000"}), LIMITED),
        "404": (openai(404, "The API deployment does not exist.", "DeploymentNotFound"), REFUSED),
    },
    "huggingface": {
        "401": (plain(401, f"Invalid username or password. {KEY}"), AUTH),
        "429": (plain(429, "Too many requests", **RETRY_AFTER), LIMITED),
        "quota": (plain(402, "You have exceeded your monthly included credits"), SPENT),
        "too long": (plain(422, "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000"), OVERFLOW),
        "image": (plain(400, "This model does not support image input"), UNREADABLE),
        "404": (plain(404, "Model m does not exist"), REFUSED),
        "503": (plain(503, f"Model m is currently loading {KEY}"), FAILED),
    },
    "bedrock": {**OF_BEDROCK, "quota": (aws(400, "ServiceQuotaExceededException"), SPENT)},
    "bedrock by litellm": OF_BEDROCK,
    "ollama": {
        "401": (plain(401, f"unauthorized {KEY}"), AUTH),
        "429": (plain(429, "you've reached your hourly usage limit", **RETRY_AFTER), LIMITED),
        "too long": (plain(400, "the input length exceeds the context length"), OVERFLOW),
        "image": (plain(500, "this model is missing data required for image input"), UNREADABLE),
        "404": (plain(404, "model 'm' not found"), REFUSED),
        "500": (plain(500, f"llama runner process has terminated {KEY}"), FAILED),
    },
    "anthropic": {
        "401": (anthropic(401, "authentication_error", f"invalid x-api-key {KEY}"), AUTH),
        "403": (anthropic(403, "permission_error", "x"), AUTH),
        "429": (anthropic(429, "rate_limit_error", "This would exceed the rate limit", **RETRY_AFTER), LIMITED),
        "credit": (anthropic(400, "invalid_request_error", "Your credit balance is too low."), SPENT),
        "too long": (anthropic(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000"), OVERFLOW),
        "image": (anthropic(400, "invalid_request_error", "image input is not supported"), UNREADABLE),
        "404": (anthropic(404, "not_found_error", "model: m"), REFUSED),
        "529": (anthropic(529, "overloaded_error", f"Overloaded {KEY}"), FAILED),
    },
}
FAULTS: Cases = {
    "silent": (Answer(fault="silent"), TIMEOUT),
    "stall": (Answer(fault="stall"), TIMEOUT),
    "cut": (Answer(fault="cut"), FAILED),
    "abort": (Answer(fault="abort"), FAILED),
    "error": (Answer(fault="error"), FAILED),
    "html": (Answer(fault="html"), FAILED),
}
ONLY_STREAMS = {"stall", "cut", "error"}
TAKE_PAGES = {"openai", "azure"}
"""Providers whose client takes a proxy's page for a whole answer."""


@pytest.fixture(scope="module")
def server() -> Iterator[Provider]:
    with pytest.MonkeyPatch.context() as patch, Provider() as running:
        for name, value in ({"PROVIDER_KEY": KEY, **AWS} | ({} if HAS_LITELLM else OF_THE_HOST)).items():
            patch.setenv(name, value)
        yield running


@functools.cache
def model_at(name: str, url: str, *, is_hasty: bool = False) -> Model:
    base = f"{url}/v1" if name.startswith("openai") else url
    table = TABLES[name] | {"base": base} | (HASTY if is_hasty else {})
    return make_model(TypeAdapter(ModelTable).validate_python(table))


def ask(model: Model, way: str) -> tuple[str, tuple[int, int]]:
    messages: Any = [ChatMessage(MessageRole.USER, [{"type": "text", "text": "hello"}])]
    with ModelCall(set()):
        if way == "whole":
            message = model.generate(messages)
            assert message.token_usage
            return str(message.content), (message.token_usage.input_tokens, message.token_usage.output_tokens)
        deltas = [*model.generate_stream(messages)]  # type: ignore[attr-defined]
    usage = next(delta.token_usage for delta in reversed(deltas) if delta.token_usage)
    return "".join(delta.content or "" for delta in deltas), (usage.input_tokens, usage.output_tokens)


def error_of(model: Model, way: str) -> Exception:
    try:
        answer = ask(model, way)
    except Exception as error:  # noqa: BLE001 - of which library is the test's question
        return error
    raise AssertionError(answer)


def ways(name: str, case: str = "") -> list[str]:
    """Return the ways to call a model: smolagents' Bedrock does not stream."""
    return ([] if name == "bedrock" else ["streamed"]) + ([] if case in ONLY_STREAMS else ["whole"])


@pytest.mark.parametrize(("name", "way"), [(name, way) for name in HERE for way in ways(name)])
def test_an_answer_comes_with_its_usage(server: Provider, name: str, way: str) -> None:
    server.play(Answer())
    assert ask(model_at(name, server.url), way) == ("".join(PIECES), USAGE)
    (request,) = server.requests
    assert "0.25" in request.raw.decode()
    assert "HOSTS" not in "".join(request.headers.values())
    if "bedrock" in name:
        assert_signed(request.path, request.headers, request.raw)
    else:
        shown = {header: value for header, value in request.headers.items() if KEY in value}
        header = {"azure": "api-key", "anthropic": "x-api-key"}.get(name, "authorization")
        assert shown == {header: KEY if "key" in header else f"Bearer {KEY}"}


@pytest.mark.parametrize(
    ("name", "way", "case"),
    [(name, way, case) for name in HERE for case in CASES[name] | FAULTS for way in ways(name, case)],
)
def test_a_failure_has_its_code_after_one_request(server: Provider, name: str, way: str, case: str) -> None:
    answer, expected = (CASES[name] | FAULTS)[case]
    server.play(answer)
    if case == "html" and way == "whole" and name in TAKE_PAGES:
        expected = REFUSED
    error = error_of(model_at(name, server.url, is_hasty=expected == TIMEOUT), way)
    failure = classify_call(error)
    assert (failure.code, failure.retryable) == expected, repr(error)
    assert KEY not in failure.message + without_secrets(str(error))
    asks_to_wait = {header.lower() for header in answer.headers} & {"retry-after", "retry-after-ms"}
    assert retry_after_s(error) == (7 if asks_to_wait else 0)
    assert len(server.requests) == 1


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(("name", "way"), [(name, way) for name in HERE for way in ways(name)])
def test_a_provider_that_is_not_there_is_unreachable(name: str, way: str) -> None:
    error = error_of(model_at(name, "http://127.0.0.1:1"), way)
    failure = classify_call(error)
    assert (failure.code, failure.retryable) == UNREACHABLE, repr(error)


IN_CODE: dict[str, Callable[[str], Any]] = {
    "openai": lambda url: OpenAIModel("m", api_base=f"{url}/v1", api_key=KEY),
    "azure": lambda url: AzureOpenAIModel("m", azure_endpoint=url, api_key=KEY, api_version="2024-10-21"),
    "huggingface": lambda url: InferenceClientModel(None, base_url=url, token=KEY),  # type: ignore[arg-type]  # it may
    "bedrock": lambda url: AmazonBedrockModel("m", client_kwargs={"endpoint_url": url, "region_name": "eu-central-1"}),
    "litellm": lambda url: LiteLLMModel("openai/m", api_base=f"{url}/v1", api_key=KEY),
    "router of litellm": lambda url: LiteLLMRouterModel(
        "m",
        [{"model_name": "m", "litellm_params": {"model": "openai/m"}}],
        api_base=f"{url}/v1",  # smolagents sends both with each call, also if they are None
        api_key=KEY,
    ),
}


@pytest.mark.parametrize("name", [name for name in IN_CODE if ("litellm" in name) == HAS_LITELLM])
def test_a_client_made_in_code_repeats_no_call_once_it_is_adopted(server: Provider, name: str) -> None:
    model_at(HERE[0], server.url)  # keeps LiteLLM quiet
    model = IN_CODE[name](server.url)
    assert disable_client_retries(model) == 0
    server.play(Answer(status=429, body={"error": {"message": "slow down"}}), Answer())
    error_of(model, "whole")
    assert len(server.requests) == 1


def assert_signed(path: str, headers: dict[str, str], body: bytes) -> None:
    """Check a signature as AWS does (version 4)."""
    scope, names, signature = (part.partition("=")[2] for part in headers["authorization"].split(", "))
    assert headers["authorization"].startswith(f"AWS4-HMAC-SHA256 Credential={AWS['AWS_ACCESS_KEY_ID']}/")
    scope = scope.partition("/")[2]
    canonical = [
        "POST",
        path.replace("%", "%25"),
        "",
        *(f"{name}:{headers[name]}" for name in names.split(";")),
        "",
        names,
        hashlib.sha256(body).hexdigest(),
    ]
    digest = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", headers["x-amz-date"], scope, digest])
    key = f"AWS4{KEY}".encode()
    for part in [*scope.split("/"), text]:
        key = hmac.digest(key, part.encode(), "sha256")
    assert key.hex() == signature


@pytest.mark.skipif(not HAS_LITELLM, reason="LiteLLM knows the names")
def test_a_provider_that_litellm_does_not_know_is_refused() -> None:
    with pytest.raises(StartError, match="LiteLLM does not know the provider"):
        make_model(ModelTable(provider="litellm", id="antropic/m", base="http://127.0.0.1:1"))


@deep
@pytest.mark.skipif(HAS_LITELLM, reason="this is that environment")
def test_litellm_in_its_own_environment(tmp_path: Path) -> None:
    python = environment(tmp_path / "litellm", LITELLM)
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-o", "filterwarnings=default", "-s"]
    files = [__file__, str(Path(__file__).with_name("test_provider_turns.py"))]
    traps = {"LITELLM_LOG": "DEBUG", "LITELLM_PRINT_STANDARD_LOGGING_PAYLOAD": "true", "CI": ""}
    others = {"PYTHONDONTWRITEBYTECODE", *OF_THE_HOST}  # the tests above set those of the host
    compiled = {name: value for name, value in os.environ.items() if name not in others}
    ended = run_program([python, "-m", "pytest", *options, *files], cwd=ROOT, env=compiled | traps, timeout=580)
    assert not ended.returncode, ended.stdout[-5000:]
    assert KEY not in ended.stdout + ended.stderr
    assert "hello" not in ended.stdout + ended.stderr
