"""Rules of the demo agents: from the messages of a prompt to tool calls and answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from smolagents import ChatMessage, MessageRole

from smolsessions.agents.demo.tools import NOTED
from smolsessions.agents.memory.step_types import text_in

MAX_PARTS = 4
QUOTE_CHARS = 300  # of an earlier message or an error
READ_CHARS = 500  # of a request, except a note or a text for statistics
TASK, OBSERVATION, ERROR = "New task:\n", "Observation:\n", "Error:\n"
LOGS, LAST_OUTPUT = "Execution logs:\n", "Last output from code snippet:\n"
ADDITIONAL_ARGS = "\nYou have been provided with these additional arguments"
MOST_COUNTED = 100
SUMMARY_CHARS = 80
HELP = """I am a small set of rules and no language model (LLM). I know a few English phrases:
- arithmetic: What is 12 * 7?
- date and time: What time is it? What time is it in Europe/Berlin?
- notes: Note that the key is under the mat. What are my notes?
- text statistics, in any language: Count the words in: Hello world
- earlier messages: What did I ask first? What did I ask last? How many questions did I ask?
- the number and sizes of images: What is in the image?
- counting, slowly, to see an answer come and to stop it: Count to 50.
- a failure of the model, to see one: Please fail.
Several can be joined: What is 12 * 7 and what time is it?"""

COUNTING = re.compile(r"\s*(?:please )?count (?:from 1 )?to (\d{1,9})[.!]?\s*", re.IGNORECASE)
FORCED_FAILURE = re.compile(r"\s*(please )?fail( now)?[.!]?\s*", re.IGNORECASE)
_SUMMARY = re.compile(r"Summary of what was before:\n(.*?)\n\n", re.DOTALL)
_SUMMARIZED = re.compile(rf"^({TASK}|{OBSERVATION})(.*)", re.MULTILINE)
_JOINT = re.compile(r"[,;.]? (?:and|then) (?=(?:what|how|count|note|remember|calculate|compute)\b)", re.IGNORECASE)


@dataclass(frozen=True)
class Call:
    """Tool call, with the words around its result."""

    tool: str
    arguments: dict[str, str]
    before: str = ""
    after: str = "."


Part = str | Call


@dataclass(frozen=True)
class Exchange:
    """Current message and its responses, found from the end, so that a long history costs nothing."""

    messages: list[ChatMessage]
    start: int
    task: str

    @classmethod
    def current(cls, messages: list[ChatMessage]) -> Exchange:
        for index in range(len(messages) - 1, -1, -1):
            if (task := _task(messages[index])) is not None:
                return cls(messages, index, task)
        return cls(messages, len(messages) - 1, "")

    def earlier(self) -> list[str]:
        return [task for message in self.messages[: self.start] if (task := _task(message)) is not None]

    def notes(self) -> list[str]:
        lines = (line for text in _responses(self.messages[: self.start]) for line in text.split("\n"))
        return [line.removeprefix(NOTED) for line in lines if line.startswith(NOTED)]

    def images(self) -> list[Any]:
        content = self.messages[self.start].content
        return [part["image"] for part in content if "image" in part] if isinstance(content, list) else []

    def resolve(self) -> tuple[list[Part], list[Call]]:
        """Return the parts of the answer with the results so far, and the next calls.

        smolagents drops the results of a failed call's siblings. After a failure, calls are made one by one.
        """
        parts = parse(self)
        next_calls = pending = [place for place, part in enumerate(parts) if isinstance(part, Call)]
        is_single = len(pending) == 1
        for response in _responses(self.messages[self.start + 1 :]):
            results: list[str] = []  # one for each call, none of an error
            if response.startswith(OBSERVATION):
                text = response.removeprefix(OBSERVATION).removeprefix(LOGS).partition(LAST_OUTPUT)[0]
                results = text.strip().split("\n", len(next_calls) - 1)
            if is_single or results:
                for place, result in zip(next_calls, results or [""], strict=False):
                    call: Any = parts[place]
                    reason = response.partition(ERROR)[2].partition("\n")[0]
                    reason = re.split(r"(?:Error|Exception): ", reason, maxsplit=1)[-1]
                    failed = f"The {call.tool} tool said: {short(reason)}"
                    parts[place] = f"{call.before}{result}{call.after}" if results else failed
                pending = pending[len(next_calls) :]
            is_single = is_single or not results
            next_calls = pending[:1] if is_single else pending
        return parts, [part for place in next_calls if isinstance(part := parts[place], Call)]


def summarize_by_rules(text: str) -> str:
    """List the tasks and results of a conversation, each shortened."""
    before = _SUMMARY.match(text)
    found = _SUMMARIZED.findall(text)
    lines = [f"{'Asked' if kind == TASK else 'Result'}: {line[:SUMMARY_CHARS]}" for kind, line in found]
    return "\n".join([before[1].strip() if before else "Summed up by rules, no LLM.", *lines])


def parse(exchange: Exchange) -> list[Part]:
    whole = _STATS.match(exchange.task)  # the text may contain phrases of other rules
    requests = [exchange.task] if whole else _JOINT.split(exchange.task)
    parts = [part for request in requests if (part := _read(exchange, request.strip()))]
    if not parts:
        return [_images(exchange) if exchange.images() else f"I did not understand that. {HELP}"]
    return parts[:MAX_PARTS]


def _read(exchange: Exchange, request: str) -> Part | None:
    for pattern, rule in _RULES:
        is_text = pattern is _STATS or pattern is _NOTE  # a set would hash the pattern: 1 % of a turn
        match = pattern.match(request) if is_text else pattern.search(request[:READ_CHARS].strip(" ?!.,;:"))
        if match:
            return rule(exchange, match)
    return None


def _responses(messages: list[ChatMessage]) -> list[str]:
    """Return observations and errors, without the logs of code that failed."""
    texts = [text_in(message) for message in messages if message.role == MessageRole.TOOL_RESPONSE]
    return [text for text in texts if LAST_OUTPUT in text or not text.startswith(OBSERVATION + LOGS)]


def _task(message: ChatMessage) -> str | None:
    if message.role != MessageRole.USER or not (text := text_in(message)).startswith(TASK):
        return None
    task = text.removeprefix(TASK).partition(ADDITIONAL_ARGS)[0].strip()
    return task.encode(errors="replace").decode()  # a reply cannot hold a lone surrogate


def short(text: str) -> str:
    line = " ".join(text[: 2 * QUOTE_CHARS].split())
    return line if len(line) <= QUOTE_CHARS else line[:QUOTE_CHARS] + " …"


def _count(_exchange: Exchange, match: re.Match[str]) -> str:
    count = int(match[1])
    if count > MOST_COUNTED:
        return f"I count to {MOST_COUNTED} at most."
    return " ".join(map(str, range(1, count + 1))) or "There is nothing to count."


def _stats(_exchange: Exchange, match: re.Match[str]) -> Call:
    quoted = re.fullmatch(r'["“«](.*)["”»][?.!]?', match["text"].strip(), re.DOTALL)
    return Call("text_stats", {"text": quoted[1] if quoted else match["text"].strip()}, "The text has ")


def _notes(exchange: Exchange, _match: re.Match[str]) -> str:
    if notes := exchange.notes():
        lines = [f"{number}. {note}" for number, note in enumerate(notes, 1)]
        return "\n".join(["Your notes from earlier messages:", *lines])
    return "I was shown no note." if exchange.earlier() else "I was shown no earlier message, and so no note."


def _history(exchange: Exchange, match: re.Match[str]) -> str:
    earlier = exchange.earlier()
    if not earlier:
        return "I was shown no earlier message."
    if match["kind"].lower() != "what":
        return f"I was shown {len(earlier)} earlier message{'' if len(earlier) == 1 else 's'} of yours."
    which, task = ("first", earlier[0]) if "first" in match.string else ("last", earlier[-1])
    return f"The {which} message that I was shown before this one: \u201c{short(task)}\u201d"


def _arithmetic(_exchange: Exchange, match: re.Match[str]) -> Call:
    expression = match[0].replace(",", "").translate(_SIGNS)
    return Call("calculator", {"expression": expression}, f"{expression} = ")


def _clock(_exchange: Exchange, match: re.Match[str]) -> Call:
    zone = match["zone"]
    return Call("clock", {"time_zone": zone} if zone else {}, f"The time in {zone}: " if zone else "The time: ")


def _images(exchange: Exchange, _match: re.Match[str] | None = None) -> str:
    images = exchange.images()
    if not images:
        return "No image came with this message."
    sizes = "; ".join(f"{image.width} × {image.height} pixels" for image in images)  # noqa: RUF001
    count = "1 image" if len(images) == 1 else f"{len(images)} images"
    return f"{count} came with this message ({sizes}). I am a set of rules and cannot see what is in it."


_SIGNS = str.maketrans("×÷", "*/")  # noqa: RUF001
_STATS = re.compile(
    r"(?:text[ _]stats\b|(?:count|how many)\b[^:\n]{0,40}?\b(?:words|characters|letters|sentences|lines)\b"
    r"[^:\n]{0,30}?(?::|\bin\b))\s*:?\s*(?P<text>\S.*)",
    re.IGNORECASE | re.DOTALL,
)
_NOTE = re.compile(
    r"\A(?:please )?(?:note|remember)\b(?: (?:that|to)\b)?[\s:,]*(?P<text>[^\s:,].*)", re.IGNORECASE | re.DOTALL
)
_NUMBER, _OPERATOR = r"\d[\d.,]*(?<!,)", r"(?:\*\*|[*+×]| (?:-|//?|%|÷) )"  # noqa: RUF001 - 1-2 may be a range or a date
_RULES: tuple[tuple[re.Pattern[str], Callable[[Exchange, re.Match[str]], Part]], ...] = (
    (re.compile(rf"\A{COUNTING.pattern}\Z", re.IGNORECASE), _count),
    (_STATS, _stats),
    (_NOTE, lambda _, match: Call("note", {"text": " ".join(match["text"].split())}, "OK. ", "")),
    (re.compile(r"\b(?:my|what|list|show)\b.*\bnotes?\b", re.IGNORECASE), _notes),
    (re.compile(r"\b(?P<kind>what|how many)\b.*\bI (?:ask|say|write)\b", re.IGNORECASE), _history),
    (re.compile(rf"[-+(]*{_NUMBER}(?:[ )]*?{_OPERATOR}[ (+-]*{_NUMBER})+\)*"), _arithmetic),
    (
        re.compile(
            r"\b(?:what|tell|show)\b.*\b(?:time|date|day)\b(?:.*?\bin (?P<zone>[\w/+ -]+?)(?: now| please)?\Z)?",
            re.IGNORECASE,
        ),
        _clock,
    ),
    (re.compile(r"\b(?:image|picture|photo)s?\b", re.IGNORECASE), _images),
    (re.compile(r"\b(?:help|hello|hi|hey|who are you|llm|language model)\b", re.IGNORECASE), lambda *_: HELP),
)
