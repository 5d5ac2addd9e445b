"""Rules of the demo agents: from the messages of a prompt to tool calls and answers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from smolagents import ChatMessage, MessageRole

from smolsessions.agents.demo.tools import NOTED

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_PARTS = 4
QUOTE_CHARS = 300  # of an earlier message or an error
SPLIT_CHARS = 2000  # of a message that are searched for several requests
READ_CHARS = 500  # a longer request is ignored, except a note or a text for statistics
TASK, OBSERVATION, ERROR = "New task:\n", "Observation:\n", "Error:\n"
SUMMARY_CHARS = 80
_SECTION = re.compile(rf"^({TASK}|{OBSERVATION})(.*?)(?=\n\n|\n(?:{TASK}|{OBSERVATION})|\Z)", re.MULTILINE | re.DOTALL)
_SUMMARY = re.compile(r"Summary of what was before:\n(.*?)\n\n", re.DOTALL)
ADDITIONAL_ARGS = "\nYou have been provided with these additional arguments"

COUNTING = re.compile(r"\s*(?:please )?count (?:from 1 )?to (\d{1,9})[.!]?\s*", re.IGNORECASE)
MOST_COUNTED = 100
FORCED_FAILURE = re.compile(r"\s*(please )?fail( now)?[.!]?\s*", re.IGNORECASE)

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


def summarize_by_rules(text: str) -> str:
    """List the tasks and results of a conversation, each shortened."""
    before = _SUMMARY.match(text)
    lines = [
        f"{'Asked' if kind == TASK else 'Result'}: {' '.join(body.split())[:SUMMARY_CHARS]}"
        for kind, body in _SECTION.findall(text)
    ]
    return "\n".join([before[1].strip() if before else "Summed up by rules, no LLM.", *lines])


@dataclass(frozen=True)
class Call:
    """Tool call, with the words around its result."""

    tool: str
    arguments: dict[str, str] = field(default_factory=dict)
    before: str = ""
    after: str = ""


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
        prompt = _text(messages[-1]) if messages else ""
        # The request for a first plan is one long prompt that ends in the task.
        task = prompt.rpartition("Here is your task:\n```\n")[2].partition("\n```\nFirst in part 1")[0]
        return cls(messages, max(len(messages) - 1, 0), task)

    def earlier(self) -> list[str]:
        return [task for message in self.messages[: self.start] if (task := _task(message)) is not None]

    def responses(self) -> list[str]:
        return [_text(message) for message in self.messages[self.start + 1 :] if _is_response(message)]

    def notes(self) -> list[str]:
        texts = (_text(message) for message in self.messages[: self.start] if _is_response(message))
        lines = (line for text in texts if text.startswith(OBSERVATION) for line in text.split("\n"))
        return [line.removeprefix(NOTED) for line in lines if line.startswith(NOTED)]

    def images(self) -> list[Any]:
        content = self.messages[self.start].content if self.messages else None
        parts = content if isinstance(content, list) else []
        return [part.get("image") for part in parts if part.get("type") == "image"]

    def offered_as_functions(self, names: tuple[str, ...]) -> set[str]:
        system = _text(self.messages[0]) if self.messages else ""
        return {name for name in names if f"def {name}(" in system}


def _is_response(message: ChatMessage) -> bool:
    return bool(message.role == MessageRole.TOOL_RESPONSE)


def _text(message: ChatMessage) -> str:
    if isinstance(message.content, list):
        return next((str(part["text"]) for part in message.content if part.get("type") == "text"), "")
    return message.content or ""


def _task(message: ChatMessage) -> str | None:
    if message.role != MessageRole.USER or not (text := _text(message)).startswith(TASK):
        return None
    task = text.removeprefix(TASK).partition(ADDITIONAL_ARGS)[0].strip()
    return task if task.isascii() else task.encode(errors="replace").decode()  # a reply cannot hold a lone surrogate


def short(text: str) -> str:
    line = " ".join(text[: 2 * QUOTE_CHARS].split())
    return line if len(line) <= QUOTE_CHARS else line[:QUOTE_CHARS] + " …"


@dataclass(frozen=True)
class _Request:
    """One request of a message."""

    raw: str
    exchange: Exchange

    @cached_property
    def line(self) -> str:
        text = self.raw if len(self.raw) <= READ_CHARS else ""
        return " ".join(text.replace("\u2019", "'").split()).strip(" ?!.,;:=")

    @cached_property
    def words(self) -> set[str]:
        return set(re.findall(r"[a-z']+", self.line.lower()))


_JOINT = re.compile(
    r"(?:[,;?!.]?\s{1,3}(?:and\s+then|and\s+also|and|then)\s{1,3}|[,;?!.]\s{1,3}|\n\s{0,3})"
    r"(?=(?:please\s)?(?:what|calculate|compute|note\b|remember|count|how|tell|the\s(?:time|date)|text.stat|list|show))",
    re.IGNORECASE,
)


def parse(exchange: Exchange) -> list[Part]:
    whole = _Request(exchange.task, exchange)
    if parts := _counting(whole) or _stats(whole):  # a text for statistics may contain phrases of other rules
        return parts
    parts, end = [], len(exchange.task)
    for joint in reversed([*_JOINT.finditer(exchange.task, 0, SPLIT_CHARS)]):
        if found := _read(_Request(exchange.task[joint.end() : end].strip(), exchange)):
            parts, end = found + parts, joint.start()
    parts = _read(_Request(exchange.task[:end].strip(), exchange)) + parts
    parts = [part for part in parts if part != HELP] or parts[:1]
    if not parts:
        parts = [_images(exchange)] if exchange.images() else ["I did not understand that. " + HELP]
    return parts[:MAX_PARTS]


def _read(request: _Request) -> list[Part]:
    return next((parts for rule in _RULES if (parts := rule(request))), [])


_UNITS = r"(?:words|characters|letters|sentences|lines)"
_STATS = re.compile(
    r"(?:please\s)?(?:(?:can|could)\syou\s)?(?:"
    r"text[ _]stat(?:istic)?s\b(?:\s(?:of|for|on|in)\b)?"
    rf"|(?:count|how\smany)\b[^:\n]{{0,40}}?\b{_UNITS}\b[^:\n]{{0,30}}?(?::|\b(?:in|of)\b)"
    r"|(?:analy[sz]e|statistics|stats)\b[^:\n]{0,40}:"
    r")(?:\s(?:this|the|following|text|sentence)\b)*\s*:?\s*(?P<text>\S.*)",
    re.IGNORECASE | re.DOTALL,
)
_QUOTES = {'"': '"', "'": "'", "\u201c": "\u201d", "\u2018": "\u2019", "«": "»", "「": "」"}


def _stats(request: _Request) -> list[Part]:
    if not (match := _STATS.match(request.raw)):
        return []
    text = match["text"].strip()
    inside, closing, rest = text[1:].rpartition(_QUOTES.get(text[0], "\n"))
    text = inside if text[0] in _QUOTES and closing and not rest.strip(" ?.!") else text
    return [Call("text_stats", {"text": text}, "The text has ", ".")]


_NOTE = re.compile(
    r"(?:please\s)?(?:(?:take|make)\s(?:a\s)?note(?:\sof)?|note(?:\sdown)?|write\sdown|remember(?!\s(?:me|what|when)\b))\b"
    r"(?:\s(?:that|to)\b)?[\s:,]*(?P<text>[^\s:,].*)",
    re.IGNORECASE | re.DOTALL,
)


def _note(request: _Request) -> list[Part]:
    match = _NOTE.match(request.raw)
    text = " ".join(match["text"].split()) if match else ""
    return [Call("note", {"text": text}, "OK. ")] if text.strip(" ?!.") else []


def _notes(request: _Request) -> list[Part]:
    asked = request.words & {"my", "list", "show", "read", "what", "which", "the", "all"} or len(request.words) == 1
    if not (asked and request.words & {"note", "notes"}):
        return []
    if notes := request.exchange.notes():
        lines = [f"{number}. {note}" for number, note in enumerate(notes, 1)]
        return ["\n".join(["Your notes from earlier messages:", *lines])]
    return ["I was shown no note." if request.exchange.earlier() else "I was shown no earlier message, and so no note."]


_ASKED = {
    *("ask", "asked", "question", "questions", "message", "messages"),
    *("say", "said", "tell", "told", "write", "wrote"),
}
_LAST = {"last", "before", "previous", "previously", "earlier", "just"}


def _history(request: _Request) -> list[Part]:
    words = request.words
    if not (words & {"i", "my"} and words & _ASKED):
        return []
    counts = "many" in words and words & {"question", "questions", "messages", "times", "things"}
    if not (counts or "first" in words or words & _LAST or words >= {"what", "did"}):
        return []
    earlier = request.exchange.earlier()
    if not earlier:
        return ["I was shown no earlier message."]
    if counts:
        return [f"I was shown {len(earlier)} earlier message{'' if len(earlier) == 1 else 's'} of yours."]
    which, task = ("first", earlier[0]) if "first" in words else ("last", earlier[-1])
    return [f"The {which} message that I was shown before this one: \u201c{short(task)}\u201d"]


_SPOKEN = {"plus": "+", "minus": "-", "times": "*", "x": "*", "multiplied by": "*", "divided by": "/", "over": "/"}
_SPOKEN |= {"to the power of": "**", "mod": "%", "modulo": "%"}
_SPOKEN_OPERATOR = re.compile(rf"(?<=[\d)])\s*\b({'|'.join(_SPOKEN)})\b\s*(?=[\d(+-])", re.IGNORECASE)
_SIGNS = str.maketrans({"×": "*", "÷": "/", "·": "*", "−": "-", "^": "**"})  # noqa: RUF001
_LEAD = re.compile(
    r"(?:please )?(?:(?:can|could) you )?(?:tell me )?"
    r"(?:what is|what's|whats|how much is|calculate|compute|evaluate|solve)? ?(?:the result of )?",
    re.IGNORECASE,
)
_ARITHMETIC = re.compile(r"[-+*/%().,\de ]*", re.IGNORECASE | re.ASCII)
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?"
_EXPRESSION = re.compile(
    rf"(?<![\w.])[-(]*{_NUMBER}(?:[ )]*(?:\*\*|//|[-+*/%])[ (-]*{_NUMBER})+\)*(?![\w])", re.IGNORECASE | re.ASCII
)


def _arithmetic(request: _Request) -> list[Part]:
    line = re.sub(r"(?<=\d),(?=\d{3}\b)", "", request.line.translate(_SIGNS))
    line = _SPOKEN_OPERATOR.sub(lambda match: f" {_SPOKEN[match[1].lower()]} ", line)
    asked = line[lead.end() :] if (lead := _LEAD.match(line)) else line
    if _ARITHMETIC.fullmatch(asked) and re.search(r"\d.*[-+*/%]|[-+*/%].*\d", asked):
        found = [asked]  # even if it is invalid: the tool says so
    else:
        # Among other words, only an expression that is hardly a date, a range or a name.
        found = [text for text in _EXPRESSION.findall(line) if re.search(r"[+*]| [-/%] ", text)]
    return [Call("calculator", {"expression": text.strip()}, f"{text.strip()} = ", ".") for text in found]


_CLOCK = re.compile(
    r"(?:(?:what|which|tell|show|give|current|can|could|do|please)\b.{0,60}|(?:the )?)\b"
    r"(?:time|date|day|clock)(?: and (?:the )?(?:time|date))?(?: is it| is today| it is)?"
    r"(?: right)?(?: now| today)?(?: in (?P<zone>[\w/+ -]{1,60}?))?(?: right)?(?: now| today| please)?",
    re.IGNORECASE,
)


def _clock(request: _Request) -> list[Part]:
    if not (match := _CLOCK.fullmatch(request.line)):
        return []
    zone = match["zone"]
    return [Call("clock", {"time_zone": zone} if zone else {}, f"The time in {zone}: " if zone else "The time: ", ".")]


def _image(request: _Request) -> list[Part]:
    about = request.words & {"image", "images", "picture", "pictures", "photo", "photos"}
    asks = request.words & {"what", "what's", "which", "who", "how", "is", "are", "describe", "see", "show", "explain"}
    return [_images(request.exchange)] if about and asks else []


def _images(exchange: Exchange) -> str:
    images = exchange.images()
    if not images:
        return "No image came with this message."
    sizes = [getattr(image, "size", None) for image in images]
    described = [f"{size[0]} × {size[1]} pixels" if size else "unknown size" for size in sizes]  # noqa: RUF001
    count = "1 image" if len(images) == 1 else f"{len(images)} images"
    return f"{count} came with this message ({'; '.join(described)}). I am a set of rules and cannot see what is in it."


_ABOUT = re.compile(
    r"\b(?:help|hello|hi|hey|(?:who|what) are you|what can you|are you|llm|language model|which model)\b", re.IGNORECASE
)


def _about(request: _Request) -> list[Part]:
    return [HELP] if _ABOUT.search(request.line) else []


def _counting(request: _Request) -> list[Part]:
    if not (match := COUNTING.fullmatch(request.raw)):
        return []
    count = int(match[1])
    if count > MOST_COUNTED:
        return [f"I count to {MOST_COUNTED} at most."]
    return [" ".join(str(number) for number in range(1, count + 1)) or "There is nothing to count."]


_RULES: list[Callable[[_Request], list[Part]]] = [_stats, _note, _notes, _history, _arithmetic, _clock, _image, _about]
