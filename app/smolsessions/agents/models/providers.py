"""Models of tables of agents.toml, and their fallbacks."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from smolagents import Model, MultiStepAgent, ToolCallingAgent
from smolagents.models import RETRY_MAX_ATTEMPTS, STRUCTURED_GENERATION_PROVIDERS

from smolsessions.agents.config.schema import ModelTable
from smolsessions.agents.models.api_models import make_azure, make_bedrock, make_huggingface, make_openai
from smolsessions.agents.models.keys import without_secrets
from smolsessions.agents.models.litellm_models import make_litellm
from smolsessions.agents.models.prompt_cache import cache_prompts
from smolsessions.agents.models.transformers_models import make_transformers
from smolsessions.core.errors import StartError

_MAKERS: dict[str, Callable[[ModelTable], Model]] = {
    "openai": make_openai,
    "azure": make_azure,
    "litellm": make_litellm,
    "huggingface": make_huggingface,
    "bedrock": make_bedrock,
    "transformers": make_transformers,
}
_FALLBACKS = "_smolsessions_fallbacks"
_PACKAGES = {"azure": ["openai"], "huggingface": ["huggingface_hub"], "bedrock": ["boto3"]}
_PACKAGES["transformers"] = ["torch", "transformers"]
"""Packages of providers that are not called as their package."""
_CLIENT_RETRIES = 2  # of the clients of OpenAI and Azure, and of LiteLLM's router
_OF_BEDROCK = {"event_name": "needs-retry.bedrock-runtime", "unique_id": "retry-config-bedrock-runtime"}


def add_fallbacks(model: Model, *fallbacks: Model) -> Model:
    if fallbacks:
        setattr(model, _FALLBACKS, fallbacks)
    return model


def with_fallbacks(model: Model) -> tuple[Model, ...]:
    """Return a model and those that are called in this order if it fails."""
    fallbacks = getattr(model, _FALLBACKS, ())
    return (model, *fallbacks) if isinstance(fallbacks, tuple) else (model,)


def check_model(name: str, agent: MultiStepAgent) -> None:
    """Refuse a model that cannot do what its agent asks of it."""
    is_structured = getattr(agent, "_use_structured_outputs_internally", False)
    for model in with_fallbacks(agent.model):
        kinds = {kind.__name__ for kind in type(model).__mro__}
        if "AmazonBedrockModel" in kinds and isinstance(agent, ToolCallingAgent):
            raise StartError(
                f"the agent {name!r}: smolagents' Bedrock sends no usable tools, so it suits a CodeAgent alone; make "
                "it one, or use LiteLLM's bedrock/…"
            )
        if "InferenceClientModel" in kinds:
            client = getattr(model, "client_kwargs", {})
            gives_structure = client.get("provider") in STRUCTURED_GENERATION_PROVIDERS
        else:
            gives_structure = not kinds & {"TransformersModel", "AmazonBedrockModel"}
        if is_structured and not gives_structure:
            raise StartError(
                f"the agent {name!r}: {type(model).__name__} gives no structured output; leave it out, or use another "
                "model"
            )


def make_model(table: ModelTable) -> Model:
    """Return the model of a table, without its fallbacks. Raises `StartError`."""
    try:
        model = _MAKERS[table.provider](table)
        if table.prompt_cache:
            cache_prompts(model)
    except ImportError as error:
        packages = _PACKAGES.get(table.provider, [table.provider])
        missing = " and ".join(name for name in packages if importlib.util.find_spec(name) is None)
        missing = f" ({missing or error.name})" if missing or error.name else ""
        raise StartError(
            f'provider = "{table.provider}" needs packages that are missing{missing}; pip install '
            f"'smolsessions[{table.provider}]'"
        ) from error
    except StartError:
        raise
    except Exception as error:  # noqa: BLE001 - of any provider
        text = without_secrets(str(error), [value for value in (table.id, table.base, table.region) if value])
        raise StartError(f"the model cannot be made ({type(error).__name__}: {text}); fix its table") from None
    return model


def disable_client_retries(model: Any) -> int:
    """Let a model and its client repeat no failed call: the service does, within the turn and its deadline.

    Returns how often they still do, as their author has set.
    """
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
            if getattr(client, name, None) == _CLIENT_RETRIES and name not in getattr(model, "client_kwargs", ()):
                setattr(client, name, 0)
            chosen.append(getattr(client, name, None))
    return max([getattr(retryer, "max_attempts", 1) - 1, *(number for number in chosen if isinstance(number, int))])
