"""Retries of model clients, unseen by the turn and without its deadline: switched off, as the service makes its own."""

from __future__ import annotations

from typing import Any

from smolagents.models import RETRY_MAX_ATTEMPTS

_DEFAULT = 2  # of the clients of OpenAI and Azure, and of LiteLLM's router
_OF_BEDROCK = {"event_name": "needs-retry.bedrock-runtime", "unique_id": "retry-config-bedrock-runtime"}


def disable_client_retries(model: Any) -> int:
    """Let a model and its client repeat no failed call. Return how often they still do, as their author has set."""
    retryer: Any = getattr(model, "retryer", None)
    client: Any = getattr(model, "client", None)
    chosen = []
    if getattr(retryer, "max_attempts", None) == RETRY_MAX_ATTEMPTS:
        retryer.max_attempts = 1
    if getattr(client, "__name__", None) == "litellm":  # its module is the client, and takes a number with each call
        if client.num_retries is None and "num_retries" not in model.kwargs:
            model.kwargs.setdefault("max_retries", 0)
        chosen += [model.kwargs.get(name) for name in ("max_retries", "num_retries")]
    elif events := getattr(getattr(client, "meta", None), "events", None):  # of botocore
        attempts = (client.meta.config.retries or {}).get("total_max_attempts")
        if attempts is None:
            events.unregister(**_OF_BEDROCK)
        else:
            chosen.append(attempts - 1)
    else:
        for name in ("max_retries", "num_retries"):
            if getattr(client, name, None) == _DEFAULT and name not in getattr(model, "client_kwargs", ()):
                setattr(client, name, 0)
            chosen.append(getattr(client, name, None))
    return max([getattr(retryer, "max_attempts", 1) - 1, *(number for number in chosen if isinstance(number, int))])
