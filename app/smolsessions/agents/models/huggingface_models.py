"""Hugging Face inference: its router, a dedicated endpoint, or a server of text-generation-inference."""

from __future__ import annotations

from typing import Any

from smolagents import InferenceClientModel

from smolsessions.agents.config.schema import ModelTable
from smolsessions.agents.models.keys import NO_KEY, Secret, read_key
from smolsessions.agents.models.streams import check_streams, timeouts_of
from smolsessions.core.errors import StartError

_OF_CLIENT = {"inference_provider": "provider", "bill_to": "bill_to"}


def make_huggingface(table: ModelTable) -> InferenceClientModel:
    if not table.base and not table.api_key_env:
        raise StartError(
            "Hugging Face wants a token: name the environment variable that holds it in api_key_env, or an endpoint "
            "that needs none in base"
        )
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
