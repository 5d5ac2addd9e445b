"""Demo agents that need no key and no network: a small set of rules replaces the language model."""

from __future__ import annotations

import json
import re
import time
from functools import cache
from typing import TYPE_CHECKING, Any

from smolagents import ChatMessage, CodeAgent, LogLevel, MessageRole, Model, TokenUsage, Tool, ToolCallingAgent
from smolagents.models import (
    ChatMessageStreamDelta,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    ChatMessageToolCallStreamDelta,
)

from smolsessions.agents.demo.rules import (
    COUNTING,
    ERROR,
    FORCED_FAILURE,
    OBSERVATION,
    Call,
    Exchange,
    Part,
    parse,
    short,
    summarize_by_rules,
)
from smolsessions.agents.demo.tools import TOOLS
from smolsessions.agents.memory.step_cache import text_in
from smolsessions.agents.memory.summarizer import INSTRUCTION

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

MAX_STEPS = 8
COUNTING_PACE_S = 0.1
MAX_PIECES = 100  # of a text in a stream; a longer text has longer pieces
LOGS, LAST_OUTPUT = "Execution logs:\n", "Last output from code snippet:\n"
NO_LLM = "Its model is a small set of rules and no LLM; it needs no key and no network."


def make_demo() -> ToolCallingAgent:
    return ToolCallingAgent(**_options(ToolCallingAgent, "demo", "calling tools"))


def make_demo_code() -> CodeAgent:
    # smolagents' own timeout costs a thread and does not return early
    return CodeAgent(**_options(CodeAgent, "demo_code", "writing Python"), executor_kwargs={"timeout_seconds": None})


def _options(kind: type[ToolCallingAgent | CodeAgent], name: str, method: str) -> dict[str, Any]:
    return {
        "tools": [make() for make in TOOLS],
        "model": RuleModel(),
        "prompt_templates": _prompts(kind),
        "name": name,
        "description": f"Calculates, tells the time, takes notes and counts words by {method}. {NO_LLM}",
        "max_steps": MAX_STEPS,
        "verbosity_level": LogLevel.OFF,
    }


@cache
def _prompts(kind: type[ToolCallingAgent | CodeAgent]) -> Any:
    """Return smolagents' own templates, parsed once and shared. They must not be changed in place."""
    return kind(tools=[], model=RuleModel(), verbosity_level=LogLevel.OFF).prompt_templates


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
        calls: list[ChatMessageToolCall] = []
        if tools_to_call_from:
            content, calls = _tool_calls(exchange, {tool.name for tool in tools_to_call_from})
        elif not stop_sequences:  # as smolagents asks for a final answer at the step limit
            content = _last_answer(exchange)
        elif "<end_plan>" in stop_sequences:
            content = _plan(exchange)
        else:
            content = _code(exchange)
        words = sum(len(text.split()) for text in (content, *(call.function.arguments for call in calls)))
        usage = TokenUsage(input_tokens=len(exchange.task.split()), output_tokens=words)
        return ChatMessage(MessageRole.ASSISTANT, content, tool_calls=calls, token_usage=usage)

    def generate_stream(self, messages: list[ChatMessage], **options: Any) -> Generator[ChatMessageStreamDelta]:
        message = self.generate(messages, **options)
        deltas = [*_deltas(message)]
        deltas[-1].token_usage = message.token_usage
        is_slow = COUNTING.fullmatch(Exchange.current(messages).task)
        for delta in deltas:
            if is_slow:
                time.sleep(COUNTING_PACE_S)  # an answer slow enough to watch and to stop
            yield delta


def _deltas(message: ChatMessage) -> Iterator[ChatMessageStreamDelta]:
    for piece in _pieces(str(message.content)):
        yield ChatMessageStreamDelta(content=piece)
    for index, call in enumerate(message.tool_calls or []):
        name = ChatMessageToolCallFunction(name=call.function.name, arguments="")
        head = ChatMessageToolCallStreamDelta(index=index, id=call.id, type="function", function=name)
        yield ChatMessageStreamDelta(tool_calls=[head])
        for piece in _pieces(call.function.arguments):
            fragment = ChatMessageToolCallFunction(name="", arguments=piece)
            yield ChatMessageStreamDelta(tool_calls=[ChatMessageToolCallStreamDelta(index=index, function=fragment)])


def _pieces(text: str) -> Iterator[str]:
    words = re.findall(r"\s*\S+|\s+", text)
    at_once = len(words) // MAX_PIECES + 1
    return ("".join(words[start : start + at_once]) for start in range(0, len(words), at_once))


def _tool_calls(exchange: Exchange, offered: set[str]) -> tuple[str, list[ChatMessageToolCall]]:
    parts = _resolve(exchange, offered)
    pending = [part for part in parts if isinstance(part, Call)]
    called = [(call.tool, call.arguments) for call in pending] or [("final_answer", {"answer": _joined(parts)})]
    prefix = f"call_{len(exchange.messages)}"  # unique in the conversation; smolagents sorts results by id
    return _thought(parts), [
        ChatMessageToolCall(
            ChatMessageToolCallFunction(name=name, arguments=json.dumps(arguments, ensure_ascii=False)),
            id=f"{prefix}_{number}",
            type="function",
        )
        for number, (name, arguments) in enumerate(called, 1)
    ]


def _code(exchange: Exchange) -> str:
    parts = _resolve(exchange, exchange.offered_as_functions(("calculator", "clock", "note", "text_stats")))
    lines, answer = [], []
    for number, part in enumerate(parts, 1):
        if isinstance(part, str):
            answer.append(_literal(part))
            continue
        lines += [f"result_{number} = {_source(part)}", f"print(result_{number})"]
        answer.append(f"{_literal(part.before)} + result_{number} + {_literal(part.after)}")
    lines.append(
        f"final_answer({answer[0]})" if len(answer) == 1 else f'final_answer("\\n".join([{", ".join(answer)}]))'
    )
    return "\n".join([f"Thought: {_thought(parts) or 'I answer.'}", "<code>", *lines, "</code>"])


def _thought(parts: list[Part]) -> str:
    names = dict.fromkeys(part.tool for part in parts if isinstance(part, Call))
    return f"I call {' and '.join(names)}." if names else ""


def _source(call: Call) -> str:
    return f"{call.tool}({', '.join(f'{name}={_literal(value)}' for name, value in call.arguments.items())})"


def _literal(text: str) -> str:
    """Return a string literal that is safe from code tags and smolagents' rewriting of `final_answer = …`."""
    return json.dumps(text, ensure_ascii=False).replace("<", "\\u003c").replace("final_answer", "final\\u005fanswer")


def _plan(exchange: Exchange) -> str:
    calls = [part for part in _resolve(exchange) if isinstance(part, Call)]
    steps = [f"Call {call.tool} with {json.dumps(call.arguments, ensure_ascii=False)}." for call in calls]
    steps.append("Give the final answer.")
    return "A plan by rules, not by an LLM:\n" + "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))


def _last_answer(exchange: Exchange) -> str:
    parts = _resolve(exchange)
    return _joined([f"No step was left to call {part.tool}." if isinstance(part, Call) else part for part in parts])


def _joined(parts: list[Part]) -> str:
    return "\n".join(part for part in parts if isinstance(part, str))


def _resolve(exchange: Exchange, offered: set[str] | None = None) -> list[Part]:
    """Replace the finished calls by sentences. The remaining calls are still to be made."""
    parts = [
        f"I was given no tool named {part.tool}."
        if offered is not None and isinstance(part, Call) and part.tool not in offered
        else part
        for part in parse(exchange)
    ]
    unexplained = 0
    for response in exchange.responses():
        pending = {index: part for index, part in enumerate(parts) if isinstance(part, Call)}
        if response.startswith(OBSERVATION):
            for (index, call), value in zip(pending.items(), _values(response, len(pending)), strict=False):
                parts[index] = f"{call.before}{value}{call.after}"
            continue
        # smolagents drops the results of a failed call's siblings, so they stay pending and are called again.
        blamed = [index for index, call in pending.items() if _is_blamed(call, response)]
        unexplained += not blamed
        for index in blamed or (pending if unexplained > 1 else ()):
            parts[index] = f"The {pending[index].tool} tool said: {_reason(response, pending[index])}"
    return parts


def _values(observation: str, expected: int) -> list[str]:
    text = observation.removeprefix(OBSERVATION)
    whole = not text.startswith(LOGS) or LAST_OUTPUT in text
    text = text.removeprefix(LOGS).partition(LAST_OUTPUT)[0]
    lines = [" ".join(text.split())] if expected == 1 else [line for line in text.split("\n") if line]
    return lines + ["(nothing)"] * (expected - len(lines)) if whole else lines


def _is_blamed(call: Call, error: str) -> bool:
    return f"'{call.tool}' with arguments {call.arguments}" in error or f" = {_source(call)}' due to" in error


def _reason(response: str, call: Call) -> str:
    text = response.partition(ERROR)[2].partition("\nNow let's retry")[0].partition("\nPlease try again")[0]
    for mark in (f" with arguments {call.arguments}: ", " due to: "):
        text = text.rpartition(mark)[2]
    return short(re.sub(r"^[A-Za-z]*(?:Error|Exception): ", "", text))
