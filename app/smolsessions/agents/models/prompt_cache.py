"""Prompt caching: requests say where a provider's cache of a prompt ends, or which conversation it is of.

A prompt is what the last one was, byte for byte, and more, unless a memory policy or an author's code changes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from smolagents import Model
from smolagents.models import MessageRole

from smolsessions.caller import CALLER
from smolsessions.core.errors import StartError

_MARK = "_smolsessions_prompt_cache"
_POINT = {"cachePoint": {"type": "default"}}
_TAKE_KEYS = ("openai/", "azure/")
_TAKE_MARKS = ("claude", "anthropic", "bedrock/")
"""Parts of the ids of LiteLLM whose providers know the one or the other."""


def cache_prompts(model: Model) -> None:
    """Ask a model's provider to cache prompts, from now on. Raises `StartError` if it cannot be asked."""
    if hasattr(model, _MARK):
        return
    prepare: Any = getattr(model, "_prepare_completion_kwargs", None)
    kinds, model_id = {kind.__name__ for kind in type(model).__mro__}, str(model.model_id)
    is_litellm = "LiteLLMModel" in kinds
    if "OpenAIModel" in kinds or (is_litellm and model_id.startswith(_TAKE_KEYS)):
        prepared = partial(_with_key, prepare)
    elif is_litellm and any(part in model_id for part in _TAKE_MARKS):
        prepared = partial(_with_marks, prepare)
    elif "AmazonBedrockModel" in kinds:
        prepared = partial(_with_points, prepare)
    else:
        raise StartError(
            f"prompt_cache: {type(model).__name__} cannot ask for a cache of this model's prompts, as OpenAI, Azure, "
            "Bedrock, and LiteLLM's openai/…, azure/…, bedrock/… and Claude can; leave it out"
        )
    setattr(model, _MARK, True)
    setattr(model, "_prepare_completion_kwargs", prepared)  # noqa: B010 - a method of its class


def _with_key(prepare: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Send a digest of owner and conversation: requests of one key go to the server that has the prompt."""
    request = prepare(*args, **options)
    if caller := CALLER.get(None):
        names = json.dumps([caller.owner, caller.conversation_id]).encode()
        request.setdefault("prompt_cache_key", hashlib.sha256(names).hexdigest()[:32])
    return request


def _with_marks(prepare: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Mark the ends of the system prompt and of the history, as Anthropic does."""
    request = prepare(*args, **options)
    messages = request["messages"]
    system = [message for message in messages[:1] if message["role"] == MessageRole.SYSTEM]
    for message in (*system, *messages[-1:]):
        parts = message["content"] if isinstance(message["content"], list) else []
        if part := next((part for part in reversed(parts) if part.get("text") != ""), None):
            part["cache_control"] = {"type": "ephemeral"}
    return request


def _with_points(prepare: Callable[..., Any], messages: list[Any], **options: Any) -> Any:
    """Put Bedrock's marks at these ends, and keep messages apart.

    smolagents joins texts of one role, and gives all messages one. The next prompt would then change the last block
    of this one, and the cache knows whole blocks.
    """
    request = prepare(messages=messages[:1], **options)
    joined = request["messages"]
    if messages and getattr(messages[0], "role", None) == MessageRole.SYSTEM:
        joined[-1]["content"].append(_POINT)
    for message in messages[1:]:
        for each in prepare(messages=[message], **options)["messages"]:
            if each["role"] == joined[-1]["role"]:
                joined[-1]["content"] += each["content"]
            else:
                joined.append(each)
    if joined and joined[-1]["content"][-1] is not _POINT:
        joined[-1]["content"].append(_POINT)
    return request
