"""The agent of all contenders: five small tools and a scripted model that costs next to nothing at any length."""

from __future__ import annotations

import importlib.resources
import operator
import random
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import yaml
from smolagents import ChatMessage, LogLevel, MessageRole, Model, TokenUsage, ToolCallingAgent, tool
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction

_OPERATORS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_QUESTION = "What is "
CALL_MS = 50  # delay of the waiting model, as of one behind a network
WAITING = {"AGENTS": "bench=benchmarks.agents:make_waiting_agent", "DEMO_AGENTS": "false"}
_ids = random.Random(1)  # as long and as hard to compress as a provider's, the same in every run


def question(number: int) -> str:
    """Return the message of a conversation's turn `number`."""
    return f"{_QUESTION}{number} * 7?"


def right_answer(number: int) -> str:
    """Return the expected reply to the message of turn `number`."""
    return f"The result is {number * 7}."


class ScriptedModel(Model):  # type: ignore[misc, unused-ignore]
    """Calls the calculator, then gives its result as the final answer. Looks at the last message only."""

    def __init__(self, call_ms: int = 0) -> None:
        super().__init__()
        self._call_ms = call_ms

    def generate(self, messages: list[ChatMessage], *_args: Any, **_kwargs: Any) -> ChatMessage:
        if self._call_ms:
            time.sleep(self._call_ms / 1000)
        text = last_text(messages)
        if messages[-1].role == MessageRole.TOOL_RESPONSE:
            result = text.removeprefix("Observation:\n")
            return call_of("final_answer", {"answer": f"The result is {result}."})
        return call_of("calculator", {"expression": text.rpartition(_QUESTION)[2].rstrip("?")})


def last_text(messages: list[ChatMessage]) -> str:
    content: Any = messages[-1].content
    return str(content[-1]["text"] if isinstance(content, list) else content)


def call_of(name: str, arguments: dict[str, Any], input_tokens: int = 1200) -> ChatMessage:
    """Return the message of a model that calls a tool."""
    function = ChatMessageToolCallFunction(name=name, arguments=arguments)
    call = ChatMessageToolCall(id=f"call_{_ids.getrandbits(96):024x}", type="function", function=function)
    usage = TokenUsage(input_tokens=input_tokens, output_tokens=20)
    return ChatMessage(role=MessageRole.ASSISTANT, content=None, tool_calls=[call], token_usage=usage)


@tool
def calculator(expression: str) -> int:
    """Calculates with whole numbers.

    Args:
        expression: Two numbers with an operator between them, such as "12 * 7".
    """
    left, sign, right = expression.split()
    return _OPERATORS[sign](int(left), int(right))


@tool
def count_words(text: str) -> int:
    """Counts the words of a text.

    Args:
        text: The text, in any language that writes spaces between words.
    """
    return len(text.split())


@tool
def to_celsius(fahrenheit: float) -> float:
    """Converts a temperature.

    Args:
        fahrenheit: Degrees Fahrenheit.
    """
    return (fahrenheit - 32) / 1.8


@tool
def find_city(name: str, country: str) -> str:
    """Looks a city up and says where it lies.

    Args:
        name: The city's name in English.
        country: The country's name in English.
    """
    return f"{name} lies in {country}."


@tool
def send_note(recipient: str, note: str) -> str:
    """Sends a short note to a person.

    Args:
        recipient: The person's name.
        note: The text of the note.
    """
    return f"{recipient} has got {len(note)} characters."


TOOLS = [calculator, count_words, to_celsius, find_city, send_note]


def make_agent() -> ToolCallingAgent:
    """Make an agent as a careful user does: the prompts' YAML is parsed once. Service and naive service use it."""
    return _agent(ScriptedModel())


def make_waiting_agent() -> ToolCallingAgent:
    """Make the same agent with a slow model, which does not hold the interpreter while it waits."""
    return _agent(ScriptedModel(CALL_MS))


def make_shipped_agent() -> ToolCallingAgent:
    """Make an agent as smolagents' own examples do: the bare contender."""
    return ToolCallingAgent(tools=TOOLS, model=ScriptedModel(), verbosity_level=LogLevel.OFF)


def _agent(model: ScriptedModel) -> ToolCallingAgent:
    return ToolCallingAgent(tools=TOOLS, model=model, prompt_templates=templates(), verbosity_level=LogLevel.OFF)


@cache
def templates() -> Any:
    """Return the prompts. Their YAML is parsed once."""
    return yaml.safe_load(
        importlib.resources.files("smolagents.prompts").joinpath("toolcalling_agent.yaml").read_text()
    )
