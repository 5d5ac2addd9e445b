"""Agent whose memory grows: it looks up an article in each turn."""

from __future__ import annotations

import random
import re
from typing import Any

from smolagents import ChatMessage, LogLevel, MessageRole, Model, MultiStepAgent, TokenUsage, ToolCallingAgent, tool

from benchmarks.agents import call_of, last_text, templates

REMEMBERER = {
    "AGENTS": "rememberer=benchmarks.rememberer:make_rememberer",
    "DEFAULT_AGENT": "rememberer",
    "DEMO_AGENTS": "false",
}
ARTICLE_CHARS = 1000
_SYSTEM_TOKENS, _MESSAGE_TOKENS = 1800, 130  # close to the estimate of an article's step
_ORDER = re.compile(r"Look up topic (\d+)\.$")
_FOUND = re.compile(r"Article on topic (\d+):")
_random = random.Random(7)
_WORDS = ["".join(_random.choices("etaoinshrdlucmfw", k=_random.randint(2, 9))) for _ in range(800)]
_TEXT = " ".join(_random.choices(_WORDS, k=20_000))
_SUMMARY = f"Articles on topics were looked up and told of; {_TEXT[:300]}"


def order(topic: int) -> str:
    """Return the message that asks for a topic's article. Its turn has a task and two steps."""
    return f"Look up topic {topic}."


def answer(topic: int) -> str:
    """Return the expected reply to that message."""
    return f"I have read of topic {topic}."


def article(topic: int) -> str:
    """Return a topic's article as the tool finds it."""
    start = topic * 977 % (len(_TEXT) - ARTICLE_CHARS)
    return f"Article on topic {topic}: {_TEXT[start : start + ARTICLE_CHARS].strip()}"


@tool
def look_up(topic: int) -> str:
    """Finds an article.

    Args:
        topic: The article's topic.
    """
    return article(topic)


class ScriptedModel(Model):  # type: ignore[misc, unused-ignore]
    """Looks at the last message only, so that it costs the same at any length. Counts tokens by messages."""

    def generate(
        self, messages: list[ChatMessage], *_args: Any, tools_to_call_from: Any = None, **_kwargs: Any
    ) -> ChatMessage:
        tokens = _SYSTEM_TOKENS + _MESSAGE_TOKENS * len(messages)
        if tools_to_call_from:
            return call_of(*_next(last_text(messages)), tokens)
        usage = TokenUsage(input_tokens=tokens, output_tokens=20)
        return ChatMessage(role=MessageRole.ASSISTANT, content=_SUMMARY, token_usage=usage)


def _next(text: str) -> tuple[str, dict[str, Any]]:
    if found := _FOUND.search(text):
        return "final_answer", {"answer": answer(int(found[1]))}
    if asked := _ORDER.search(text):
        return "look_up", {"topic": int(asked[1])}
    raise ValueError(f"the last message is none of this benchmark's: {text[:200]!r}")


def make_rememberer() -> MultiStepAgent:
    """Make the agent. Its conversations have policies of their own."""
    return ToolCallingAgent(
        tools=[look_up], model=ScriptedModel(), prompt_templates=templates(), verbosity_level=LogLevel.OFF
    )
