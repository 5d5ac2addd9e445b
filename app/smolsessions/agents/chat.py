"""The `chat` agent: a ToolCallingAgent on any endpoint that speaks OpenAI's chat protocol.

Only the operator's settings choose key and address. smolagents loads a stray `.env` on import, but its OPENAI_API_KEY
and OPENAI_BASE_URL have no effect here. Without the name of a key, a placeholder is sent, as local endpoints require.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError
from smolagents import LogLevel, Model, PromptTemplates, Tool, ToolCallingAgent

import smolsessions
from smolsessions.agents.config.schema import ModelOptions, ModelTable
from smolsessions.agents.config.templates import check_jinja, smolagents_templates
from smolsessions.agents.demo.tools import Calculator, Clock, TextStats
from smolsessions.agents.models.providers import make_model
from smolsessions.core.errors import StartError

_TOOLS: tuple[Callable[[], Tool], ...] = (Calculator, Clock, TextStats)
_SETTINGS = {"base": "api_base"}
_HOW_TO_FIX = (
    "SMOLSESSIONS_MODEL_ID is the model's name, SMOLSESSIONS_MODEL_API_BASE its address (http://…), and "
    "SMOLSESSIONS_MODEL_API_KEY_ENV the name of the environment variable with its key: set it to this name, not to the "
    "key"
)


@dataclasses.dataclass(frozen=True)
class ChatOptions:
    """Settings of the chat agent, as `settings.py` describes them."""

    model_id: str
    api_base: str | None = None
    api_key_env: str | None = None
    first_byte_s: float = 300
    timeout_s: float = 60
    retries: int = 2
    max_tokens: int | None = None
    temperature: float | None = None
    system_prompt: str | None = None


def chat_factory(options: ChatOptions) -> Callable[[], ToolCallingAgent]:
    """Return a factory of the chat agent. Its first call raises `StartError` if a setting is missing or wrong."""
    parts = functools.cache(functools.partial(_parts, options))
    lock = threading.Lock()

    def make() -> ToolCallingAgent:
        with lock:  # all agents share one model with its connection pool, so two first calls must not make two
            model, templates = parts()
        chat = ToolCallingAgent(
            tools=[tool() for tool in _TOOLS],
            model=model,
            prompt_templates=templates,
            name="chat",
            description=f"A chat with {options.model_id}, which can calculate, tell the time and count words.",
            verbosity_level=LogLevel.OFF,
        )
        return smolsessions.options(chat, model_retries=options.retries)

    return make


def _parts(options: ChatOptions) -> tuple[Model, PromptTemplates]:
    """Return the model and the prompt templates that all chat agents share."""
    templates = smolagents_templates("toolcalling_agent")
    if options.system_prompt is not None:
        check_jinja("SMOLSESSIONS_MODEL_SYSTEM_PROMPT", options.system_prompt)
        templates = PromptTemplates(**{**templates, "system_prompt": options.system_prompt})
    chosen: dict[str, Any] = {"max_tokens": options.max_tokens, "temperature": options.temperature}
    try:
        table = ModelTable(
            provider="openai",
            id=options.model_id,
            base=options.api_base,
            api_key_env=options.api_key_env,
            first_byte_s=options.first_byte_s,
            timeout_s=options.timeout_s,
            options=ModelOptions(**{name: value for name, value in chosen.items() if value is not None}),
        )
        return make_model(table), templates
    except ValidationError as error:
        names = {str(mistake["loc"][0]) for mistake in error.errors(include_input=False)}
        settings = ", ".join(f"SMOLSESSIONS_MODEL_{_SETTINGS.get(name, name).upper()}" for name in sorted(names))
        raise StartError(f"the agent chat: {settings} cannot be used; {_HOW_TO_FIX}") from None
    except StartError as error:
        sentence = error.message.replace("api_key_env: ", "SMOLSESSIONS_MODEL_API_KEY_ENV ")
        raise StartError(f"the agent chat: {sentence} ({_HOW_TO_FIX})") from error
