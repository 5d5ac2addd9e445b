"""The `chat` agent: a ToolCallingAgent on any endpoint that speaks OpenAI's chat protocol.

Key and address are what the operator names and nothing else: without a key's name a placeholder is sent, as local
endpoints want it, and neither OPENAI_API_KEY nor OPENAI_BASE_URL of a stray `.env` (smolagents loads it on import)
decides where a conversation goes and whose key pays for it.
"""

from __future__ import annotations

import functools
import importlib.resources
import os
import re
import threading
from typing import TYPE_CHECKING, Any

import yaml
from smolagents import LogLevel, OpenAIModel, ToolCallingAgent

from app.agents.demo_tools import Calculator, Clock, TextStats
from app.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from openai import Stream
    from openai.types.chat import ChatCompletionChunk
    from smolagents import PromptTemplates, Tool
    from smolagents.utils import Retrying

OPENAI_BASE = "https://api.openai.com/v1"
NO_KEY = "none"
_CONNECT_S = 10.0
_TOOLS: tuple[Callable[[], Tool], ...] = (Calculator, Clock, TextStats)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(r"[!-~]+")


def chat_factory(
    *, model_id: str, api_base: str | None, api_key_env: str | None, timeout_s: float
) -> Callable[[], ToolCallingAgent]:
    """Make the factory of one chat agent; what is missing shows as a `StartError` when the factory is called.

    `api_base` None is OpenAI itself. `api_key_env` names the variable that holds the key. `timeout_s` bounds the
    endpoint's silence, not the whole answer, which may drip for longer: the turn's deadline bounds that.
    """
    model = functools.cache(functools.partial(_model, model_id, api_base, api_key_env, timeout_s))
    lock = threading.Lock()

    def make() -> ToolCallingAgent:
        with lock:  # all agents share one model, and so one connection pool: two first calls must not make two
            shared = model()
        return ToolCallingAgent(
            tools=[tool() for tool in _TOOLS],
            model=shared,
            prompt_templates=_prompt_templates(),
            name="chat",
            description=f"A chat with {model_id}, which can calculate, tell the time and count words.",
            verbosity_level=LogLevel.OFF,
        )

    return make


class IncompleteStreamError(ConnectionError):
    """A streamed answer ended before the model had finished it."""


class _Secret(str):
    """A key that shows itself only where it is formatted into a header, in no repr of what holds it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def _model(model_id: str, api_base: str | None, api_key_env: str | None, timeout_s: float) -> OpenAIModel:
    key = _key(api_base, api_key_env)
    try:
        import openai  # noqa: PLC0415 - an extra, and 0.3 s that only this agent needs
    except ImportError as error:
        raise StartError("the chat agent needs the openai package; pip install 'smolsessions[openai]'") from error
    model = OpenAIModel(
        model_id=model_id,
        api_base=api_base or OPENAI_BASE,
        api_key=key,
        # No retries, here or in smolagents (which sleeps 120 s and more): a turn that may be tried again says so.
        client_kwargs={"max_retries": 0, "timeout": openai.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_S))},
        retry=False,
    )
    # The one seam where all of a stream's events pass.
    model.retryer = functools.partial(_ask, model.retryer)  # type: ignore[assignment]
    return model


def _ask(retryer: Retrying, create: Callable[..., Any], **arguments: Any) -> Any:
    answer = retryer(create, **arguments)
    return _whole(answer) if arguments.get("stream") else answer


def _whole(events: Stream[ChatCompletionChunk]) -> Iterator[ChatCompletionChunk]:
    """Pass events on; raise where they end early, which openai and smolagents take for the end of a whole answer."""
    finished = False
    with events:
        for event in events:
            finished = finished or any(choice.finish_reason for choice in event.choices)
            yield event
    if not finished:
        raise IncompleteStreamError("The stream ended without a finish reason.")


def _key(api_base: str | None, api_key_env: str | None) -> _Secret:
    if not api_key_env:
        if not api_base:
            raise StartError(
                "the chat agent asks OpenAI itself, which wants a key: name the environment variable that holds it in "
                "SMOLSESSIONS_MODEL_API_KEY_ENV, or an endpoint that needs none in SMOLSESSIONS_MODEL_API_BASE"
            )
        return _Secret(NO_KEY)
    if not _VARIABLE.fullmatch(api_key_env):  # not repeated: it may well be the key
        raise StartError(
            "SMOLSESSIONS_MODEL_API_KEY_ENV holds no name; set it to the name of the environment variable that holds "
            "the key, not to the key"
        )
    key = os.environ.get(api_key_env, "").strip()
    if not key:
        raise StartError(f"the chat agent's key is missing; set the environment variable {api_key_env} to it")
    if not _KEY.fullmatch(key):  # a header refuses it, with an exception that shows it
        raise StartError(
            f"the environment variable {api_key_env} holds no key, having blanks or letters beyond ASCII; mend it"
        )
    return _Secret(key)


@functools.cache
def _prompt_templates() -> PromptTemplates:
    """Parse smolagents' own templates once: each agent would spend 2.3 ms on it. Nobody writes to them."""
    text = importlib.resources.files("smolagents.prompts").joinpath("toolcalling_agent.yaml").read_text("utf-8")
    templates: PromptTemplates = yaml.safe_load(text)
    return templates
