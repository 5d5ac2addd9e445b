"""Models that cannot work stop the start, with the remedy and without a value that could be a key."""

import sys
from typing import Any

import pytest
from smolagents import ToolCallingAgent

from smolsessions.agents.config.schema import ModelTable
from smolsessions.agents.models.providers import add_fallbacks, make_model
from smolsessions.agents.option_checks import check_options
from smolsessions.core.errors import StartError

KEY = "sk-live-4f1d0c7e9a5b"
PACKAGES = {"openai": "openai", "azure": "openai", "litellm": "litellm", "bedrock": "boto3", "transformers": "torch"}
NEEDED: dict[str, dict[str, Any]] = {
    "azure": {"base": "http://127.0.0.1:1", "api_version": "2024-10-21", "api_key_env": "MODEL_KEY"},
    "openai": {"api_key_env": "MODEL_KEY"},
    "bedrock": {"region": "eu-central-1"},
    "litellm": {"id": "ollama_chat/m"},
}
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no provider of LiteLLM": ({"provider": "litellm"}, "write it as provider/name"),
    "Ollama without chats": ({"provider": "litellm", "id": "ollama/m"}, "write ollama_chat/ in its place"),
    "an address of the host": ({"provider": "litellm", "id": "ollama_chat/m"}, "OLLAMA_API_BASE would choose"),
    "no key of LiteLLM": ({"provider": "litellm", "id": "anthropic/m"}, "LiteLLM wants the provider's key"),
    "no cache to ask for": (
        {"provider": "huggingface", "base": "http://127.0.0.1:1", "prompt_cache": True},
        "InferenceClientModel cannot ask for a cache",
    ),
    "no token": ({"provider": "huggingface"}, "Hugging Face wants a token"),
    "no key": ({"provider": "openai"}, "OpenAI wants a key"),
    "no region": ({"provider": "bedrock"}, "Bedrock needs a region"),
    "a key of Bedrock": ({"provider": "bedrock", "region": "x", "api_key_env": "MODEL_KEY"}, "AWS's own credentials"),
    "a wrong region": ({"provider": "bedrock", "region": KEY + " "}, "the model cannot be made (InvalidRegionError"),
    "no version of Azure": ({"provider": "azure", "api_key_env": "MODEL_KEY"}, "Azure needs base"),
    "a key as a provider": (
        {"provider": "huggingface", "base": "http://127.0.0.1:1", "options": {"inference_provider": KEY}},
        "an endpoint in base takes no provider",
    ),
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", KEY)
    monkeypatch.setenv("OLLAMA_API_BASE", "http://elsewhere.invalid")


@pytest.mark.parametrize("provider", PACKAGES)
def test_a_missing_extra_is_named_with_the_command(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[provider], None)
    monkeypatch.delenv("OLLAMA_API_BASE")
    table = ModelTable.model_validate({"provider": provider, "id": "m"} | NEEDED.get(provider, {}))
    with pytest.raises(StartError, match=rf"missing \(.*{PACKAGES[provider]}.*install 'smolsessions\[{provider}\]'"):
        make_model(table)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_mend(mistake: str) -> None:
    table, sentence = MISTAKES[mistake]
    with pytest.raises(StartError) as caught:
        make_model(ModelTable.model_validate({"id": "m"} | table))
    assert sentence in caught.value.message
    assert KEY not in caught.value.message


def test_fallbacks_are_checked_like_the_model() -> None:
    tables = [{"provider": "openai", "id": "m"}, {"provider": "bedrock", "id": "m"}]
    model = add_fallbacks(*(make_model(ModelTable.model_validate(each | NEEDED[each["provider"]])) for each in tables))
    with pytest.raises(StartError, match="it suits a CodeAgent alone"):
        check_options("shop", ToolCallingAgent([], model))
