"""OpenAI's protocol: OpenAI itself, Azure, and every server that speaks it, such as vLLM, MLX and llama.cpp."""

from __future__ import annotations

from typing import Any

from smolagents import AzureOpenAIModel, OpenAIModel

from smolsessions.agents.config.schema import ModelTable
from smolsessions.agents.models.keys import NO_KEY, Secret, read_key
from smolsessions.agents.models.streams import check_streams, timeouts_of
from smolsessions.core.errors import StartError

OPENAI_BASE = "https://api.openai.com/v1"


def make_openai(table: ModelTable) -> OpenAIModel:
    base = table.base or OPENAI_BASE
    if base == OPENAI_BASE and not table.api_key_env:
        raise StartError(
            "OpenAI wants a key: name the environment variable that holds it in api_key_env, or an endpoint that "
            "needs none in base"
        )
    key = read_key(table.api_key_env) if table.api_key_env else Secret(NO_KEY)
    model = OpenAIModel(
        model_id=table.id,
        api_base=base,
        api_key=key,
        client_kwargs=_client_options(table),
        retry=False,
        **_options(table, is_openai=base == OPENAI_BASE),
    )
    if base != OPENAI_BASE:
        _drop_headers_of_the_host(model.client)
    check_streams(model, table.timeout_s)
    return model


def make_azure(table: ModelTable) -> AzureOpenAIModel:
    if not (table.base and table.api_version and table.api_key_env):
        raise StartError("Azure needs base (its endpoint), api_version and api_key_env; set all three")
    model = AzureOpenAIModel(
        model_id=table.id,
        azure_endpoint=table.base,
        api_key=read_key(table.api_key_env),
        api_version=table.api_version,
        client_kwargs=_client_options(table),
        retry=False,
        **_options(table, is_openai=True),
    )
    _drop_headers_of_the_host(model.client)
    check_streams(model, table.timeout_s)
    return model


def _drop_headers_of_the_host(client: Any) -> None:
    """Drop what the client takes from OPENAI_ORG_ID, OPENAI_PROJECT_ID and OPENAI_CUSTOM_HEADERS, for any address."""
    client.organization = client.project = None
    client._custom_headers = {}  # noqa: SLF001 - no argument turns them off


def _client_options(table: ModelTable) -> dict[str, Any]:
    """Return options of the client: no retries, which the model proxy makes, and a timeout."""
    import openai  # noqa: PLC0415 - an extra, and 0.3 s that only its agents need

    connect_s, read_s = timeouts_of(table)
    return {"max_retries": 0, "timeout": openai.Timeout(read_s, connect=connect_s)}


def _options(table: ModelTable, *, is_openai: bool) -> dict[str, Any]:
    options: dict[str, Any] = table.options.model_dump(exclude_none=True)
    # OpenAI's reasoning models refuse max_tokens; other endpoints may not know max_completion_tokens.
    if is_openai and "max_tokens" in options:
        options["max_completion_tokens"] = options.pop("max_tokens")
    return options
