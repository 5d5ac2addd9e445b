"""Models behind an address: OpenAI's protocol, Azure, Hugging Face's inference, and Amazon Bedrock.

Servers such as vLLM, MLX and llama.cpp speak OpenAI's protocol, and so does text-generation-inference Hugging Face's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from smolagents import AmazonBedrockModel, AzureOpenAIModel, InferenceClientModel, OpenAIModel

from smolsessions.agents.config.schema import ModelTable
from smolsessions.agents.models.keys import KEY_OR_BASE, NO_KEY, Secret, read_key
from smolsessions.agents.models.streams import IncompleteAnswerError, check_streams, timeouts_of
from smolsessions.core.errors import StartError

M = TypeVar("M")

OPENAI_BASE = "https://api.openai.com/v1"
_OF_CLIENT = {"inference_provider": "provider", "bill_to": "bill_to"}
_NAMES = {"temperature": "temperature", "top_p": "topP", "max_tokens": "maxTokens"}


def make_openai(table: ModelTable) -> OpenAIModel:
    base = table.base or OPENAI_BASE
    if base == OPENAI_BASE and not table.api_key_env:
        raise StartError(f"OpenAI wants a key: {KEY_OR_BASE}")
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


def make_huggingface(table: ModelTable) -> InferenceClientModel:
    if not table.base and not table.api_key_env:
        raise StartError(f"Hugging Face wants a token: {KEY_OR_BASE}")
    options = table.options.model_dump(exclude_none=True)
    client = {ours: options.pop(name) for name, ours in _OF_CLIENT.items() if name in options}
    if table.base and client:
        raise StartError(f"an endpoint in base takes no {', '.join(sorted(client))}; remove it, or remove base")
    connect_s, read_s = timeouts_of(table)
    timeout: Any = (connect_s, read_s, read_s, read_s)  # smolagents calls it an int, and its client takes httpx's form
    # With an address, its client refuses a name.
    address: dict[str, Any] = {"model_id": None, "base_url": table.base} if table.base else {"model_id": table.id}
    model = InferenceClientModel(
        **address,
        **client,
        token=read_key(table.api_key_env) if table.api_key_env else Secret(NO_KEY),
        timeout=timeout,
        retry=False,
        **options,
    )
    model.model_id = table.id
    check_streams(model, table.timeout_s)
    return model


class _BedrockClient:
    """Client whose answers have the `tool_calls` that smolagents reads from each, and Bedrock sends from none."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def converse(self, **arguments: Any) -> Any:
        answer = self._client.converse(**arguments)
        if "output" not in answer:  # boto3 takes a cut body, or a proxy's page, for an empty answer
            raise IncompleteAnswerError("The answer has no output.")
        answer["output"]["message"].setdefault("tool_calls", None)
        return answer


def make_bedrock(table: ModelTable) -> AmazonBedrockModel:
    """Make a model for agents that write code: smolagents' class sends no usable tools."""
    import boto3  # noqa: PLC0415 - an extra
    from botocore.config import Config  # noqa: PLC0415

    if not table.region:
        raise StartError("Bedrock needs a region; set region to it, such as eu-central-1")
    if table.api_key_env:
        raise StartError(
            "Bedrock takes AWS's own credentials (its variables, its files, or the role of the machine); remove "
            "api_key_env"
        )
    connect_s, read_s = timeouts_of(table)
    client = boto3.client(
        "bedrock-runtime",
        region_name=table.region,
        endpoint_url=table.base,
        config=Config(retries={"total_max_attempts": 1}, read_timeout=read_s, connect_timeout=connect_s),
    )
    options = table.options.model_dump(exclude_none=True)
    sent: Any = {"inferenceConfig": {_NAMES[name]: value for name, value in options.items()}} if options else {}
    return AmazonBedrockModel(model_id=table.id, client=_BedrockClient(client), retry=False, **sent)
