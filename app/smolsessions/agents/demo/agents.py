"""The agents that need no key and no network: a small set of rules stands where a language model would."""

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
    Part,
    Turn,
    short,
    summarize_by_rules,
    understand,
)
from smolsessions.agents.demo.tools import TOOLS
from smolsessions.agents.memory.step_weights import text_in
from smolsessions.agents.memory.summarizer import INSTRUCTION

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

MAX_STEPS = 8
COUNTING_PACE_S = 0.1
MAX_PIECES = 100  # of one text in a stream: a long one is cut into longer pieces
LOGS, LAST_OUTPUT = "Execution logs:\n", "Last output from code snippet:\n"
NO_LLM = "Its model is a small set of rules and no LLM; it needs no key and no network."


def make_demo() -> ToolCallingAgent:
    return ToolCallingAgent(
        tools=_tools(),
        model=RuleModel(),
        prompt_templates=_prompts(ToolCallingAgent),
        name="demo",
        description=f"Calculates, tells the time, takes notes and counts words by calling tools. {NO_LLM}",
        max_steps=MAX_STEPS,
        verbosity_level=LogLevel.OFF,
    )


def make_demo_code() -> CodeAgent:
    return CodeAgent(
        tools=_tools(),
        model=RuleModel(),
        prompt_templates=_prompts(CodeAgent),
        name="demo_code",
        description=f"Calculates, tells the time, takes notes and counts words by writing Python. {NO_LLM}",
        max_steps=MAX_STEPS,
        verbosity_level=LogLevel.OFF,
        executor_kwargs={"timeout_seconds": None},  # smolagents' own timeout costs a thread and does not return early
    )


def _tools() -> list[Tool]:
    return [make() for make in TOOLS]


@cache
def _prompts(kind: type[ToolCallingAgent | CodeAgent]) -> Any:
    """Return smolagents' own templates, parsed once and shared: nobody may change them in place."""
    return kind(tools=[], model=RuleModel(), verbosity_level=LogLevel.OFF).prompt_templates


class DemoFailure(Exception):  # noqa: N818 - a client reads this name
    """What a model's failure looks like, on demand."""


class RuleModel(Model):
    """Replies by rules, from the messages that it is given and nothing else: the same messages, the same reply.

    Token counts are an estimate: the words of the current message and of the reply, without the history, which is not
    read unless a question needs it.
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
        turn = Turn.current(messages)
        if FORCED_FAILURE.fullmatch(turn.task):
            raise DemoFailure
        calls: list[ChatMessageToolCall] = []
        if tools_to_call_from:
            content, calls = _tool_calls(turn, {tool.name for tool in tools_to_call_from})
        elif not stop_sequences:  # so smolagents asks for a last answer when the steps are used up
            content = _last_answer(turn)
        elif "<end_plan>" in stop_sequences:
            content = _plan(turn)
        else:
            content = _code(turn)
        words = sum(len(text.split()) for text in (content, *(call.function.arguments for call in calls)))
        usage = TokenUsage(input_tokens=len(turn.task.split()), output_tokens=words)
        return ChatMessage(MessageRole.ASSISTANT, content, tool_calls=calls, token_usage=usage)

    def generate_stream(self, messages: list[ChatMessage], **options: Any) -> Generator[ChatMessageStreamDelta]:
        message = self.generate(messages, **options)
        deltas = [*_deltas(message)]
        deltas[-1].token_usage = message.token_usage
        is_slow = COUNTING.fullmatch(Turn.current(messages).task)
        for delta in deltas:
            if is_slow:
                time.sleep(COUNTING_PACE_S)  # the point of it: an answer that takes its time
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


# ---------------------------------------------------------------------------------------------- the forms of a reply


def _tool_calls(turn: Turn, offered: set[str]) -> tuple[str, list[ChatMessageToolCall]]:
    parts = _settle(turn, offered)
    pending = [part for part in parts if isinstance(part, Call)]
    called = [(call.tool, call.arguments) for call in pending] or [("final_answer", {"answer": _joined(parts)})]
    prefix = f"call_{len(turn.messages)}"  # an id is unique in its conversation; smolagents sorts results by id
    return _thought(parts), [
        ChatMessageToolCall(
            ChatMessageToolCallFunction(name=name, arguments=json.dumps(arguments, ensure_ascii=False)),
            id=f"{prefix}_{number}",
            type="function",
        )
        for number, (name, arguments) in enumerate(called, 1)
    ]


def _code(turn: Turn) -> str:
    parts = _settle(turn, turn.offered_as_functions(("calculator", "clock", "note", "text_stats")))
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
    """Write a string that neither a code tag nor smolagents' mending of `final_answer = …` can break."""
    return json.dumps(text, ensure_ascii=False).replace("<", "\\u003c").replace("final_answer", "final\\u005fanswer")


def _plan(turn: Turn) -> str:
    calls = [part for part in _settle(turn) if isinstance(part, Call)]
    steps = [f"Call {call.tool} with {json.dumps(call.arguments, ensure_ascii=False)}." for call in calls]
    steps.append("Give the final answer.")
    return "A plan by rules, not by an LLM:\n" + "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))


def _last_answer(turn: Turn) -> str:
    parts = _settle(turn)
    return _joined([f"No step was left to call {part.tool}." if isinstance(part, Call) else part for part in parts])


def _joined(parts: list[Part]) -> str:
    return "\n".join(part for part in parts if isinstance(part, str))


# ------------------------------------------------------------------------------------------- what the tools have said


def _settle(turn: Turn, offered: set[str] | None = None) -> list[Part]:
    """Put sentences in place of the calls that were answered; calls that remain are still to be made."""
    parts = [
        f"I was given no tool named {part.tool}."
        if offered is not None and isinstance(part, Call) and part.tool not in offered
        else part
        for part in understand(turn)
    ]
    unexplained = 0
    for response in turn.responses():
        pending = {index: part for index, part in enumerate(parts) if isinstance(part, Call)}
        if response.startswith(OBSERVATION):
            for (index, call), value in zip(pending.items(), _values(response, len(pending)), strict=False):
                parts[index] = f"{call.before}{value}{call.after}"
            continue
        # smolagents drops what a failed call's siblings returned: they stay pending and are made again.
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
