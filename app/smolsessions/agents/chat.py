"""The `chat` agent: a ToolCallingAgent on any endpoint that speaks OpenAI's chat protocol.

Only the operator's settings choose key and address. smolagents loads a stray `.env` on import, but its OPENAI_API_KEY
and OPENAI_BASE_URL have no effect here. Without the name of a key, a placeholder is sent, as local endpoints require.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import os
import re
import threading
from typing import TYPE_CHECKING, Any

import jinja2
import yaml
from smolagents import LogLevel, OpenAIModel, ToolCallingAgent

import smolsessions
from smolsessions.agents.demo.tools import Calculator, Clock, TextStats
from smolsessions.agents.run.model_connections import current_call
from smolsessions.core.errors import StartError

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


@dataclasses.dataclass(frozen=True)
class ChatOptions:
    """Settings of the chat agent. The turn's deadline bounds the whole answer."""

    model_id: str
    api_base: str | None = None
    """None: OpenAI itself."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key."""
    first_byte_s: float = 300
    """Timeout of the first byte: a local model reads its prompt first."""
    timeout_s: float = 60
    """Longest pause within a streamed answer."""
    retries: int = 0
    max_tokens: int | None = None
    temperature: float | None = None
    system_prompt: str | None = None
    """Template in place of smolagents' own system prompt."""


def chat_factory(options: ChatOptions) -> Callable[[], ToolCallingAgent]:
    """Return the factory of the chat agent. Calling it raises `StartError` if an option is missing or wrong."""
    model = functools.cache(functools.partial(_model, options))
    lock = threading.Lock()

    def make() -> ToolCallingAgent:
        with lock:  # all agents share one model with its connection pool, so two first calls must not make two
            shared = model()
        chat = ToolCallingAgent(
            tools=[tool() for tool in _TOOLS],
            model=shared,
            prompt_templates=_prompt_templates(options.system_prompt),
            name="chat",
            description=f"A chat with {options.model_id}, which can calculate, tell the time and count words.",
            verbosity_level=LogLevel.OFF,
        )
        return smolsessions.options(chat, model_retries=options.retries)

    return make


class IncompleteStreamError(ConnectionError):
    """A streamed answer ended before its finish reason."""


class _Secret(str):
    """A key whose repr hides it. It appears only when it is formatted into a header."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def _model(options: ChatOptions) -> OpenAIModel:
    key = _key(options.api_base, options.api_key_env)
    try:
        import openai  # noqa: PLC0415 - an extra, and 0.3 s that only this agent needs
    except ImportError as error:
        raise StartError("the chat agent needs the openai package; pip install 'smolsessions[openai]'") from error
    first_byte_s = max(options.first_byte_s, options.timeout_s)
    api_base = options.api_base or OPENAI_BASE
    # OpenAI's reasoning models refuse max_tokens; other endpoints may not know max_completion_tokens.
    limit = "max_completion_tokens" if api_base == OPENAI_BASE else "max_tokens"
    chosen: dict[str, Any] = {limit: options.max_tokens, "temperature": options.temperature}
    model = OpenAIModel(
        model_id=options.model_id,
        api_base=api_base,
        api_key=key,
        # The model proxy retries, visibly to readers. smolagents' own retries sleep 120 s and more.
        client_kwargs={
            "max_retries": 0,
            "timeout": openai.Timeout(first_byte_s, connect=min(first_byte_s, _CONNECT_S)),
        },
        retry=False,
        **{name: value for name, value in chosen.items() if value is not None},
    )
    # All events of a stream pass through this attribute.
    model.retryer = functools.partial(_ask, model.retryer, options.timeout_s)  # type: ignore[assignment]
    return model


def _ask(retryer: Retrying, timeout_s: float, create: Callable[..., Any], **arguments: Any) -> Any:
    answer = retryer(create, **arguments)
    return _whole(answer, timeout_s) if arguments.get("stream") else answer


def _whole(events: Stream[ChatCompletionChunk], timeout_s: float) -> Iterator[ChatCompletionChunk]:
    """Yield the events. Raise if they end early: openai and smolagents would accept half an answer."""
    finished = False
    with events:
        for event in events:
            if call := current_call():
                call.read_timeout_s = timeout_s
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
def _prompt_templates(system_prompt: str | None) -> PromptTemplates:
    """Parse smolagents' own templates once, which takes 2.3 ms. They are shared by all chat agents."""
    text = importlib.resources.files("smolagents.prompts").joinpath("toolcalling_agent.yaml").read_text("utf-8")
    templates: PromptTemplates = yaml.safe_load(text)
    if system_prompt is not None:
        try:
            jinja2.Environment(autoescape=False).parse(system_prompt)  # noqa: S701 - a prompt is no HTML
        except jinja2.TemplateError as error:
            raise StartError(
                f"SMOLSESSIONS_MODEL_SYSTEM_PROMPT is no Jinja template ({error}); write {{{{ and {{% as text with "
                "{% raw %} … {% endraw %} around them"
            ) from error
        templates["system_prompt"] = system_prompt
    return templates
