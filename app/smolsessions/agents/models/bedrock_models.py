"""Amazon Bedrock's Converse interface, for agents that write code: smolagents' class sends no usable tools."""

from __future__ import annotations

from typing import Any

from smolagents import AmazonBedrockModel

from smolsessions.agents.config.schema import ModelTable
from smolsessions.agents.models.streams import IncompleteAnswerError, timeouts_of
from smolsessions.core.errors import StartError

_NAMES = {"temperature": "temperature", "top_p": "topP", "max_tokens": "maxTokens"}


class _Client:
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
    return AmazonBedrockModel(model_id=table.id, client=_Client(client), retry=False, **sent)
