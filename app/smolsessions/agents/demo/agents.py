"""Demo agents that need no key and no network: a small set of rules replaces the language model."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Generator, Iterator
from typing import Any

from smolagents import ChatMessage, CodeAgent, LogLevel, MessageRole, Model, TokenUsage, Tool, ToolCallingAgent, models

import smolsessions
from smolsessions.agents.config.templates import smolagents_templates
from smolsessions.agents.demo.rules import COUNTING, FORCED_FAILURE, Call, Exchange, Part, summarize_by_rules
from smolsessions.agents.demo.tools import TOOLS
from smolsessions.agents.memory.step_types import text_in
from smolsessions.agents.memory.summarizer import INSTRUCTION

MAX_STEPS = 8
COUNTING_PACE_S = 0.1
MAX_PIECES = 100  # of a text in a stream; a longer text has longer pieces
NO_LLM = "Its model is a small set of rules and no LLM; it needs no key and no network."


EXAMPLES = (
    "What is 12 * 7 and what time is it in Europe/Berlin?",
    "Note that the key is under the mat.",
    "Count to 50.",
    "Please fail.",
)
CODE_EXAMPLES = ("What is 2 ** 64?", "Count the words in: To be or not to be", "Count to 50.", "What is 1 / 0?")


def make_demo() -> ToolCallingAgent:
    agent = ToolCallingAgent(**_options(ToolCallingAgent, "demo", "calling tools"))
    return smolsessions.options(agent, examples=EXAMPLES)


def make_demo_code() -> CodeAgent:
    # smolagents' own timeout costs a thread and does not return early
    agent = CodeAgent(**_options(CodeAgent, "demo_code", "writing Python"), executor_kwargs={"timeout_seconds": None})
    return smolsessions.options(agent, examples=CODE_EXAMPLES)


def _options(kind: type[ToolCallingAgent | CodeAgent], name: str, method: str) -> dict[str, Any]:
    return {
        "tools": [make() for make in TOOLS],
        "model": RuleModel(),
        "prompt_templates": smolagents_templates("code_agent" if kind is CodeAgent else "toolcalling_agent"),
        "name": name,
        "description": f"Calculates, tells the time, takes notes and counts words by {method}. {NO_LLM}",
        "max_steps": MAX_STEPS,
        "verbosity_level": LogLevel.OFF,
    }


class DemoFailure(Exception):  # noqa: N818 - a client reads this name
    """Failure of the model, on demand."""


class RuleModel(Model):
    """Model that replies by rules. The same messages yield the same reply.

    Token counts are the words of the current message and of the reply. The history is not counted, because the rules
    read it only for questions about it.
    """

    def __init__(self) -> None:
        super().__init__(model_id="rules")

    def generate(
        self,
        messages: list[ChatMessage],
        stop_sequences: list[str] | None = None,
        response_format: dict[str, str] | None = None,  # noqa: ARG002
        tools_to_call_from: list[Tool] | None = None,
        **_: Any,
    ) -> ChatMessage:
        if not (stop_sequences or tools_to_call_from) and text_in(messages[0]) == INSTRUCTION:
            content = summarize_by_rules(text_in(messages[-1]))
            return ChatMessage(MessageRole.ASSISTANT, content, token_usage=TokenUsage(0, len(content.split())))
        exchange = Exchange.current(messages)
        if FORCED_FAILURE.fullmatch(exchange.task):
            raise DemoFailure
        parts, next_calls = exchange.resolve()
        names = dict.fromkeys(call.tool for call in next_calls)
        content = f"I call {' and '.join(names)}." if names else ""
        calls: list[models.ChatMessageToolCall] = []
        if tools_to_call_from:
            called = [(call.tool, call.arguments) for call in next_calls]
            for number, (name, given) in enumerate(called or [("final_answer", {"answer": _joined(parts)})], 1):
                function = models.ChatMessageToolCallFunction(
                    name=name, arguments=json.dumps(given, ensure_ascii=False)
                )
                call_id = f"call_{len(messages)}_{number}"  # unique in the conversation; smolagents sorts results by id
                calls.append(models.ChatMessageToolCall(function, id=call_id, type="function"))
        elif stop_sequences:
            content = _code(parts, next_calls, thought=content or "I answer.")
        else:  # smolagents asks for a final answer at the step limit
            content = _joined([f"No step was left to call {p.tool}." if isinstance(p, Call) else p for p in parts])
        words = sum(len(text.split()) for text in (content, *(call.function.arguments for call in calls)))
        usage = TokenUsage(input_tokens=len(exchange.task.split()), output_tokens=words)
        return ChatMessage(MessageRole.ASSISTANT, content, tool_calls=calls, token_usage=usage)

    def generate_stream(self, messages: list[ChatMessage], **options: Any) -> Generator[models.ChatMessageStreamDelta]:
        message = self.generate(messages, **options)
        deltas = [models.ChatMessageStreamDelta(content=piece) for piece in _pieces(str(message.content))]
        for index, call in enumerate(message.tool_calls or []):
            name = models.ChatMessageToolCallFunction(name=call.function.name, arguments="")
            parts = [models.ChatMessageToolCallStreamDelta(index=index, id=call.id, type="function", function=name)]
            for piece in _pieces(call.function.arguments):
                fragment = models.ChatMessageToolCallFunction(name="", arguments=piece)
                parts.append(models.ChatMessageToolCallStreamDelta(index=index, function=fragment))
            deltas += [models.ChatMessageStreamDelta(tool_calls=[part]) for part in parts]
        deltas[-1].token_usage = message.token_usage
        is_slow = COUNTING.fullmatch(Exchange.current(messages).task)
        for delta in deltas:
            if is_slow:
                time.sleep(COUNTING_PACE_S)  # an answer slow enough to watch and to stop
            yield delta


def _pieces(text: str) -> Iterator[str]:
    words = re.findall(r"\s*\S+|\s+", text)
    at_once = len(words) // MAX_PIECES + 1
    return ("".join(words[start : start + at_once]) for start in range(0, len(words), at_once))


def _code(parts: list[Part], next_calls: list[Call], thought: str) -> str:
    """Return code that makes the calls, and answers if none is left then."""
    lines, answer = [], []
    for number, part in enumerate(parts, 1):
        if isinstance(part, str):
            answer.append(_literal(part))
        elif part in next_calls:
            arguments = ", ".join(f"{name}={_literal(value)}" for name, value in part.arguments.items())
            lines += [f"result_{number} = {part.tool}({arguments})", f"print(result_{number})"]
            answer.append(f"{_literal(part.before)} + result_{number} + {_literal(part.after)}")
    if len(answer) == len(parts):
        lines.append(f'final_answer("\\n".join([{", ".join(answer)}]))')
    return "\n".join([f"Thought: {thought}", "<code>", *lines, "</code>"])


def _literal(text: str) -> str:
    """Return a string literal that is safe from code tags and smolagents' rewriting of `final_answer = …`."""
    return json.dumps(text, ensure_ascii=False).replace("<", "\\u003c").replace("final_answer", "final\\u005fanswer")


def _joined(parts: list[Part]) -> str:
    return "\n".join(part for part in parts if isinstance(part, str))
