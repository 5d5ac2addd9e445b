"""OpenAI's protocol: OpenAI itself, Azure, and every server that speaks it, such as vLLM, MLX and llama.cpp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from smolagents import AzureOpenAIModel, OpenAIModel

from smolsessions.agents.config.schema import ModelTable
from smolsessions.agents.models.keys import NO_KEY, Secret, read_key
from smolsessions.agents.models.streams import check_streams, timeouts_of
from smolsessions.core.errors import StartError

M = TypeVar("M")

OPENAI_BASE = "https://api.openai.com/v1"


def make_openai(table: ModelTable) -> OpenAIModel:
    base = table.base or OPENAI_BASE
    if base == OPENAI_BASE and not table.api_key_env:
        raise StartError(
            "OpenAI wants a key: name the environment variable that holds it in api_key_env, or an endpoint that "
            "needs none in base"
        )
    return _made(OpenAIModel, table, is_openai=base == OPENAI_BASE, api_base=base)


def make_azure(table: ModelTable) -> AzureOpenAIModel:
    if not (table.base and table.api_version and table.api_key_env):
        raise StartError("Azure needs base (its endpoint), api_version and api_key_env; set all three")
    return _made(AzureOpenAIModel, table, is_openai=True, azure_endpoint=table.base, api_version=table.api_version)


def _made(kind: Callable[..., M], table: ModelTable, *, is_openai: bool, **address: Any) -> M:
    import openai  # noqa: PLC0415 - an extra, and 0.3 s that only its agents need

    options: dict[str, Any] = table.options.model_dump(exclude_none=True)
    # OpenAI's reasoning models refuse max_tokens; other endpoints may not know max_completion_tokens.
    if is_openai and "max_tokens" in options:
        options["max_completion_tokens"] = options.pop("max_tokens")
    connect_s, read_s = timeouts_of(table)
    model: Any = kind(
        model_id=table.id,
        **address,
        api_key=read_key(table.api_key_env) if table.api_key_env else Secret(NO_KEY),
        client_kwargs={"max_retries": 0, "timeout": openai.Timeout(read_s, connect=connect_s)},
        retry=False,
        **options,
    )
    if address.get("api_base") != OPENAI_BASE:
        # The client takes them from OPENAI_ORG_ID, OPENAI_PROJECT_ID and OPENAI_CUSTOM_HEADERS, for any address.
        model.client.organization = model.client.project = None
        model.client._custom_headers = {}  # noqa: SLF001 - no argument turns them off
    check_streams(model, table.timeout_s)
    return cast("M", model)
