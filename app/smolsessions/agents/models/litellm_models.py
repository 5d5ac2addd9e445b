"""LiteLLM: Ollama, Anthropic and many other providers, each by its own protocol."""

from __future__ import annotations

import importlib.util
import logging
import os
from typing import Any

from smolagents import LiteLLMModel

from smolsessions.agents.config.schema import ModelTable
from smolsessions.agents.models.keys import KEY_OR_BASE, NO_KEY, Secret, read_key
from smolsessions.agents.models.streams import check_streams, timeouts_of
from smolsessions.core.errors import StartError

_OF_CLOUDS = ("bedrock", "sagemaker", "vertex_ai")
"""Providers that authenticate by their cloud. For some, any key would replace that."""
_SIGNED = ("bedrock", "sagemaker")
"""Those of them that sign a request instead of sending a secret, whatever its address."""
_HEADERS = "OPENAI_CUSTOM_HEADERS"
_LOCAL = {
    "LITELLM_MODE": "PRODUCTION",  # else it loads a `.env`
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else its import fetches a list of prices
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
}
"""Variables that keep LiteLLM from asking the network for more than answers."""
_REVEALING = (
    "LITELLM_PRINT_STANDARD_LOGGING_PAYLOAD",
    "LITELLM_DISABLE_REDACT_SECRETS",
    "LITELLM_LOG",
    "LITELLM_LENS_URL",
)
"""Variables that let LiteLLM print prompts and keys, or send them to others."""


def make_litellm(table: ModelTable) -> LiteLLMModel:
    provider, has_name, _ = table.id.partition("/")
    if not has_name:
        raise StartError("LiteLLM's id names the provider, too; write it as provider/name, such as ollama_chat/qwen3")
    if provider == "ollama":
        raise StartError("LiteLLM's ollama/ has no chats and no tools; write ollama_chat/ in its place")
    name = provider.removesuffix("_chat").upper()
    for variable in (f"{name}_API_BASE", f"{name}_BASE_URL"):  # LiteLLM would send the key there
        if not table.base and os.environ.get(variable):
            raise StartError(f"the variable {variable} would choose the address; write it into base, or unset it")
    if not (table.base or table.api_key_env or provider in {*_OF_CLOUDS, "ollama_chat"}):
        raise StartError(f"LiteLLM wants the provider's key: {KEY_OR_BASE}")
    if table.base and os.environ.get(_HEADERS):
        raise StartError(f"the variable {_HEADERS} would be sent to the address in base; unset it")
    # Imported so that it neither prints, nor logs, nor reports to others.
    for name in _REVEALING:
        os.environ.pop(name, None)
    for name, value in _LOCAL.items():
        os.environ.setdefault(name, value)
    import litellm  # noqa: PLC0415 - an extra, and seconds that only its agents need

    if not importlib.util.find_spec("mcp"):  # which it needs for calls with tools, undeclared
        raise ModuleNotFoundError(name="mcp")
    litellm.suppress_debug_info = True  # it prints, beside each error
    litellm.telemetry = litellm.set_verbose = False
    for callbacks in ("callbacks", "input_callback", "success_callback", "failure_callback", "service_callback"):
        setattr(litellm, callbacks, [])
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):  # their texts hold prompts; the service logs failures
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.CRITICAL)
    if provider not in litellm.provider_list:
        raise StartError("LiteLLM does not know the provider that the id begins with; fix the part before the slash")
    import httpx  # noqa: PLC0415 - LiteLLM brings it

    if provider == "ollama_chat":
        # LiteLLM would look the model up at localhost, whatever its base, and offer it no tools if it is not there.
        known = {"litellm_provider": provider, "mode": "chat", "supports_function_calling": True}
        litellm.model_cost.setdefault(table.id, known)
    is_signed = provider in _SIGNED or (provider in _OF_CLOUDS and not table.base)
    connect_s, read_s = timeouts_of(table)
    model = LiteLLMModel(
        model_id=table.id,
        api_base=table.base,
        api_key=read_key(table.api_key_env) if table.api_key_env else None if is_signed else Secret(NO_KEY),
        max_retries=0,
        timeout=httpx.Timeout(read_s, connect=connect_s),
        retry=False,
        **table.options.model_dump(exclude_none=True),
    )
    check_streams(model, table.timeout_s, _has_ended)
    return model


def _has_ended(stream: Any) -> bool:
    """Return whether the provider itself ended the answer: LiteLLM invents a finish reason if it did not."""
    return getattr(stream, "received_finish_reason", None) is not None
