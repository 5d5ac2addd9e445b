"""Identity of an agent's model and of its package."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

from smolsessions.agents.run.failures import attribute
from smolsessions.agents.values.json_forms import utf8_text
from smolsessions.core.records import ModelIdentity

MAX_CHARS = 200
_PROVIDERS = {
    "AzureOpenAIModel": "azure",
    "OpenAIModel": "openai",
    "LiteLLMModel": "litellm",
    "InferenceClientModel": "huggingface",
    "AmazonBedrockModel": "bedrock",
    "TransformersModel": "transformers",
    "VLLMModel": "vllm",
    "MLXModel": "mlx",
}
_USER = re.compile(r"(?<=://)[^/@]*@|[?#].*")
"""Parts of an address, as some models have for an id, that may hold a key."""


def model_identity(model: object) -> ModelIdentity:
    """Return provider and id of a model. The provider is its class, unless that derives from one of smolagents."""
    kinds = [each for each in type(model).__mro__ if each.__module__.startswith("smolagents")]
    known = (_PROVIDERS[each.__name__] for each in kinds if each.__name__ in _PROVIDERS)
    found = attribute(model, "model_id")
    text = utf8_text(str.__str__(found)) if isinstance(found, str) else ""  # a subclass of text may have its own code
    return ModelIdentity(next(known, type(model).__name__), _USER.sub("", text[:MAX_CHARS]) or None)


def release_of(factory: Callable[..., Any]) -> str | None:
    """Return the release of the package that holds a factory: of its distribution, or its `__version__`."""
    with contextlib.suppress(Exception):  # a foreign factory: any attribute may raise
        while isinstance(factory, functools.partial):
            factory = factory.func
        package = inspect.unwrap(factory).__module__.partition(".")[0]
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
        version = getattr(sys.modules.get(package), "__version__", None)
        return utf8_text(version)[:MAX_CHARS] if type(version) is str else None
    return None
