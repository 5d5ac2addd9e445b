"""Blocks of docs/pipelines that are made from played turns. `python -m tests.support.pipeline_pages` writes them."""

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

from tests.support.llm import LLM
from tests.support.pipelines import AGENTS, MODEL, SCENARIOS, Played, Player
from tests.support.providers import Request
from tests.support.service import ROOT, Service
from tests.support.store_server import running_store
from tests.support.streaming import Event

FOLDER = ROOT / "docs" / "pipelines"
HEAD = """```mermaid
sequenceDiagram
    participant C as client
    participant S as service
    participant M as model
    participant T as tools, code
    participant D as store"""
LONG = 400  # characters; of a longer message only the first line is shown
CUT = 60
_ENTITIES = {";": "#59;", "#": "#35;", "<": "\u2039", ">": "\u203a"}  # Mermaid would end or format a message at them
_DETAILS = {
    "step.started": "{step_id} {kind} of {agent}",
    "message.delta": "{channel} of {call_id}",
    "message.restarted": "{call_id}",
    "tool.call": "{call_id} {name}",
    "tool.result": "{call_id} {outcome}",
    "step.finished": "{step_id} {outcome}",
    "turn.failed": "{outcome}",
}
_MESSAGE = ("type", "call_id", "channel")


@contextmanager
def player(folder: Path) -> Iterator[Player]:
    with ExitStack() as stack:
        store = stack.enter_context(running_store(folder / "store"))
        provider = stack.enter_context(LLM())
        settings = store.settings | {"AGENTS": AGENTS, "DEMO_AGENTS": "0"}
        environment = {"PIPELINES_MODEL": provider.base_url, "PIPELINES_STORE": str(store.socket_path)}
        yield Player(stack.enter_context(Service(folder, settings, environment)), store, provider)


def block(played: Played) -> str:
    """Return the block of a page that shows a turn."""
    if played.scenario.brief:
        return _prompts(played)
    parts = [_sequence(played), _prompts(played), _steps(played)]
    if played.scenario.data:
        parts.append(_data(played))
    return "\n\n".join(parts)


def joined(events: list[Event]) -> list[Event]:
    """Return the events with one delta for each message: the number of its pieces depends on time."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else {}
        if event["type"] == "message.delta" and all(event[name] == last.get(name) for name in _MESSAGE):
            found[-1] = {**last, "text": last["text"] + event["text"]}
        else:
            found.append(event)
    return found


def marks(name: str) -> tuple[str, str]:
    return f"<!-- played: {name} -->\n", "\n<!-- /played -->"


def block_of(page: str, name: str) -> str:
    start, end = marks(name)
    return page.partition(start)[2].partition(end)[0]


class _Sequence:
    """Lines of a diagram, made one entry after the other."""

    def __init__(self, played: Played) -> None:
        self.lines: list[str] = []
        self._played = played
        self._answers = iter(enumerate(played.scenario.answers, 1))
        self._events = iter(played.events)
        self._steps = iter(played.steps)
        self._asked = ""  # model call whose request was shown
        self._shown: list[Event] = []
        for entry in played.entries:
            getattr(self, f"_{entry.kind}")(entry.name)

    def _add(self, arrow: str, text: str) -> None:
        text = re.sub("[;#<>]", lambda found: _ENTITIES[found[0]], _line(text))
        line = f"    {arrow}: {text}"
        if self.lines[-1:] != [line] or "message.delta" not in line:
            self.lines.append(line)

    def _ask(self, call_id: str) -> None:
        """Show the request of a model call before the first sign of its answer."""
        if self._asked != call_id:
            self._asked = call_id
            number, (verb, *rest) = next(self._answers)
            self._add("S->>M", f"prompt {number}{_fallback(self._played.requests[number - 1])}")
            self._add("M-->>S", f"HTTP {rest[0]}" if verb == "fail" else _call(*rest) if verb == "call" else rest[0])

    def _event(self, name: str) -> None:
        event = next(self._events)
        assert event["type"] == name
        if name.startswith("message."):
            self._ask(event["call_id"])
        if name == "message.restarted":
            self._asked = ""
        self._shown.append(event)
        self._add("S-->>C", f"{name} {_details(event)}".strip())

    def _queue(self, _: str) -> None:
        self._add("S->>D", "queue the turn")

    def _journal(self, key: str) -> None:
        is_begun = key.startswith("begun:")
        kind, call_id = key.removeprefix("begun:").split(":")[:2]
        if kind == "model":
            self._ask(call_id)
        if kind in {"tool", "code"} and not is_begun:
            result = next(e for e in self._played.events if e["type"] == "tool.result" and e["call_id"] == call_id)
            self._add("T-->>S", result["result"] if result["ok"] else result["error"]["message"])
        self._add("S->>D", f"journal {shown_key(key)}")
        if kind == "code" and is_begun:
            self._add("S->>T", "the block of code")
        if kind == "once":
            self.lines[-2:] = self.lines[:-3:-1]  # the seed is chosen before the block runs

    def _tool(self, name: str) -> None:
        calls = [event for event in self._shown if event["type"] == "tool.call" and event["name"] == name]
        self._add("S->>T", _call(name, calls[-1]["arguments"]))

    def _commit(self, _: str) -> None:
        self._add("S->>D", "commit, delete the journal")

    def _step(self, _: str) -> None:
        step = next(self._steps)
        self._add("S->>D", f"step {step['type']}")


def shown_key(key: str) -> str:
    """Return a key of the journal without the digest of its call's arguments."""
    return re.sub(r":[0-9a-f]{16}$", "", key)


def _details(event: Event) -> str:
    outcome = "ok" if event.get("ok") else "failed" if "ok" in event else ""
    error = event["result"]["error"] if event["type"] == "turn.failed" else event.get("error")
    if isinstance(error, dict):
        outcome = error["code"]
    return _DETAILS.get(event["type"], "").format_map({**event, "outcome": outcome})


def _call(name: str, arguments: Any) -> str:
    if not isinstance(arguments, dict):
        return f"{name}(…)"
    return f"{name}({', '.join(f'{key}={json.dumps(value)}' for key, value in arguments.items())})"


def _fallback(request: Request) -> str:
    """Return the name of the model that is called in place of the first one, as the end of a line."""
    return "" if (name := request.body["model"]) == MODEL else f" to the fallback {name}"


def _line(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= CUT else f"{words[:CUT]}…"


def _sequence(played: Played) -> str:
    message = f"    C->>S: POST /turn {json.dumps(played.scenario.message)}"
    return "\n".join([HEAD, message, *_Sequence(played).lines, "```"])


def _prompts(played: Played) -> str:
    """Show each prompt without the messages that it has in common with an earlier one."""
    earlier: list[list[tuple[str, str]]] = []
    lines = []
    wholes: dict[str, str] = {}
    for number, request in enumerate(played.requests, 1):
        messages = [*map(_message, request.body["messages"])]
        common, like = max(((_common(each, messages), -place) for place, each in enumerate(earlier)), default=(0, 0))
        tools = ", ".join(each["function"]["name"] for each in request.body.get("tools", ()))
        lines.append(f"prompt {number}{_fallback(request)}" + (f" (tools: {tools})" if tools else ""))
        if common:
            lines.append(f"  {common} message{'s' * (common > 1)} as in prompt {1 - like}")
        for role, text in messages[common:]:
            start = played.scenario.whole.get(f"{role} {number}")
            if start is not None and start in text:
                shown = f"from “{start}”" if start else "the whole text"
                wholes[f"{role}, prompt {number}: {shown}"] = text[text.index(start) :]
            lines.append(f"  {role}: {_shortened(text)}")
        earlier.append(messages)
    if played.scenario.brief and len(played.requests) > 1:  # the first prompt is as on the other pages
        lines = lines[next(place for place, line in enumerate(lines) if line.startswith("prompt 2")) :]
    whole = [_whole(title, text) for title, text in wholes.items()]
    return "\n".join(["**Prompts**", "```text", *lines, "```", *whole])


def _message(message: dict[str, Any]) -> tuple[str, str]:
    content = message["content"] or ""
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    return message["role"], re.sub(r"call_[0-9a-f]{24}", "call_1", text).strip()


def _common(one: list[Any], other: list[Any]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _shortened(text: str) -> str:
    if len(text) > LONG:
        first = next(filter(None, map(str.strip, text.splitlines())))
        return f"{_line(first)} ({len(text):,} characters)"
    return text.replace("\n", "\n    ")


def _whole(title: str, text: str) -> str:
    fence = "~~~~" if "```" in text else "```"
    return f"\n<details><summary>{title}</summary>\n\n{fence}text\n{text}\n{fence}\n\n</details>"


def _steps(played: Played) -> str:
    rows = [
        "**Stored steps**\n",
        "| step | calls | error | observations, answer, or error message |",
        "|---|---|---|---|",
    ]
    for step in played.steps:
        calls = ", ".join(call["name"] for call in step.get("tool_calls") or ())
        error = step.get("error") or {}
        said = next((str(step[name]) for name in ("observations", "output", "plan", "task") if step.get(name)), "")
        cell = re.sub("[|<]", r"\\\g<0>", _line(said or error["message"]))
        rows.append(f"| {step['type']} | {calls} | {error.get('code', '')} | {cell} |")
    return "\n".join(rows)


def _data(played: Played) -> str:
    rows = ["**Data**\n", "| text | in prompts | in events | in steps |", "|---|---|---|---|"]
    for name, text in played.scenario.data.items():
        prompts = [str(n) for n, each in enumerate(played.requests, 1) if _holds(each.body["messages"], text)]
        events = dict.fromkeys(each["type"] for each in joined(played.events) if _holds(each, text))
        steps = dict.fromkeys(f"{s['type']}.{key}" for s in played.steps for key in s if _holds(s[key], text))
        rows.append(f"| {name} | " + " | ".join(", ".join(each) or "none" for each in (prompts, events, steps)) + " |")
    return "\n".join(rows)


def _holds(value: Any, text: str) -> bool:
    if isinstance(value, dict | list):
        return any(_holds(each, text) for each in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and text in value


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, player(Path(folder)) as played_by:
        for scenario in SCENARIOS:
            file = FOLDER / f"{scenario.page}.md"
            start, end = marks(scenario.title)
            before, found, rest = file.read_text("utf-8").partition(start)
            assert found, f"{file} lacks {start!r}"
            file.write_text(f"{before}{start}{block(played_by.play(scenario))}{end}{rest.partition(end)[2]}", "utf-8")


if __name__ == "__main__":
    main()
