"""Identity of an agent's model and of its package. Foreign code may fail or hang here, so nothing raises."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import inspect
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

from smolsessions.agents.values.json_forms import utf8_text
from smolsessions.core.records import ModelIdentity

READ_S = 1.0
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
_stuck: set[type] = set()
"""Classes of models with a property that hung. It is not read again."""


def model_identity(model: object) -> ModelIdentity:
    """Return provider and id of a model, as far as they can be read."""
    kind, found = type(model), model_id_of(model)
    name = next((_PROVIDERS[base.__name__] for base in kind.__mro__ if _is_known(base)), kind.__name__)
    # A subclass of text may have code of its own.
    text = utf8_text(str.__str__(found)) if isinstance(found, str) else ""
    return ModelIdentity(name, _USER.sub("", text[:MAX_CHARS]) or None)


def model_id_of(model: object) -> object:
    """Return the attribute `model_id` of a model, or None."""
    try:
        return _read(model, "model_id")
    except Exception:  # noqa: BLE001 - a foreign class
        return None


def release_of(factory: Callable[..., Any]) -> str | None:
    """Return the release of the package that holds a factory: of its distribution, or its `__version__`."""
    with contextlib.suppress(Exception):
        while isinstance(factory, functools.partial):
            factory = factory.func
        package = inspect.unwrap(factory).__module__.partition(".")[0]
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
        version = getattr(sys.modules.get(package), "__version__", None)
        return utf8_text(version)[:MAX_CHARS] if type(version) is str else None
    return None


def _is_known(kind: type) -> bool:
    return kind.__module__.startswith("smolagents") and kind.__name__ in _PROVIDERS


def _read(model: object, name: str) -> object:
    """Read an attribute. Code behind it, such as a property, has a second for it."""
    held = object.__getattribute__(model, "__dict__")
    if name in held:
        return held[name]
    static = inspect.getattr_static(type(model), name, None)
    if static is None and not hasattr(type(model), "__getattr__"):
        return None
    return static if isinstance(static, str) else _bounded(type(model), lambda: getattr(model, name, None))


def _bounded(kind: type, read: Callable[[], object]) -> object:
    if kind in _stuck:
        return None
    found: list[object] = []

    def run() -> None:
        with contextlib.suppress(BaseException):
            found.append(read())

    thread = threading.Thread(target=run, name="identity", daemon=True)
    thread.start()
    thread.join(READ_S)
    if thread.is_alive():
        _stuck.add(kind)
    return found[0] if found else None
