"""Results of a round: its conversations, the counts of the tools, and the harm done meanwhile."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.client import Event, Said, Talk
from tests.chaos.fleet import Harm
from tests.chaos.ledger import Line

UNKNOWN = "unknown"
THAWED_S = 1.0  # time after a freeze in which a call that was permitted before may still begin
Told = dict[tuple[Any, ...], Any]


@dataclass
class Round:
    name: str
    talks: list[Talk]
    lines: list[Line]
    took_s: float
    harms: list[Harm] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    astray: Counter[str] = field(default_factory=Counter)
    left_over: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def said(self) -> Iterator[Said]:
        for talk in self.talks:
            yield from talk.said

    def lines_of(self) -> dict[str, list[Line]]:
        found: dict[str, list[Line]] = defaultdict(list)
        for line in self.lines:
            found[line.turn].append(line)
        return found

    def thawed_before(self, line: Line) -> bool:
        """Return whether the line's process had just resumed. No fence stops a call permitted before the freeze."""
        on = [harm.until for harm in self.harms if harm.kind == "stop" and harm.pid == line.pid]
        return any(0 < line.at - at < THAWED_S for at in on)

    def runs(self) -> dict[str, list[Line]]:
        return {key: lines for calls in self.runs_of().values() for key, lines in calls.items()}

    def runs_of(self) -> dict[str, dict[str, list[Line]]]:
        found: dict[str, dict[str, list[Line]]] = defaultdict(lambda: defaultdict(list))
        for line in self.lines:
            if line.phase == "begun":
                found[line.turn][line.key].append(line)
        return found


def attempts(said: Said) -> int:
    return int(said.turn.get("attempts", 0))


def code_of(said: Said) -> str:
    error = said.turn.get("error")
    return str(error["code"] if error else said.turn.get("status"))


def call_records(said: Said) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = defaultdict(list)
    for call in said.turn.get("tool_calls", ()):
        if isinstance(call["arguments"], dict) and "key" in call["arguments"]:
            found[call["arguments"]["key"]].append(call)
    return found


def requests_of(said: Said) -> list[Event]:
    return [request for event in said.log if event["type"] == "turn.waiting" for request in event["requests"]]


def outcome_unknown(said: Said) -> bool:
    """Return whether the model received a tool result of unknown outcome."""
    results = [event for event in said.log if event["type"] == "tool.result"]
    return any(not event["ok"] and UNKNOWN in str(event["error"]).lower() for event in results)


def steps_of(talk: Talk, number: int) -> list[Event]:
    """Return a turn's steps without places, times and call ids. These differ between runs, as ids count messages."""
    return [
        {
            name: [call | {"id": ""} for call in value] if name == "tool_calls" else value
            for name, value in step.items()
            if name not in {"index", "duration_ms"}
        }
        for step in talk.steps
        if step["turn"] == number
    ]


def told(events: Iterable[Event]) -> Told:
    """Return the final content of a turn's events, without withdrawn texts and times."""
    found: Told = {}
    for event in events:
        match event["type"]:
            case "step.started":
                found["began", event["step_id"]] = (event["agent"], event["kind"])
            case "message.restarted":
                for key in [key for key in found if key[:2] == ("text", event["call_id"])]:
                    del found[key]
            case "message.delta":
                key = ("text", event["call_id"], event["channel"], event.get("index"))
                found[key] = found.get(key, "") + event["text"]
            case "tool.call":
                found["call", event["call_id"]] = (event["name"], _untokened(event["arguments"]))
            case "tool.result":
                found["result", event["call_id"]] = (event["name"], event["ok"], _untokened(event["result"]))
            case "step.finished":
                found["ended", event["step_id"]] = (event["observations"], event["error"], event["usage"])
            case "turn.finished" | "turn.failed" | "turn.cancelled":
                found["final",] = event["type"]
    return found


def _untokened(value: Any) -> Any:
    """Leave out values that code drew at random. They are constant within a turn and differ between rounds."""
    if isinstance(value, dict):
        return {name: member for name, member in value.items() if name not in {"token", "text", "key"}}
    return None


def takeovers(said: Said) -> list[Event]:
    return [event for event in said.log if event["type"] == "turn.started" and event["attempt"] > 1]


def takeover_latencies_s(round_: Round, kind: str) -> list[float]:
    """Return the time from the harm to each turn's process until the turn was seen to continue in another one."""
    harmed = {harm.pid: harm for harm in round_.harms if harm.kind == kind}
    lines = round_.lines_of()
    found = []
    for said in round_.said():
        for at in [at for at, event in said.seen if event in takeovers(said) and not requests_of(said)]:
            before = [line.pid for line in lines[said.key] if line.at < at]
            harm = harmed.get(before[-1]) if before else None
            if harm and harm.at < at and (not harm.until or at < harm.until + THAWED_S):
                found.append(at - harm.at)
    return found
