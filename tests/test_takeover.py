"""A turn whose process dies is played on by another: no call that was journaled is made again, and nobody sees a seam.

Many turns stand still, each at another of its calls (tests.ledgers), when their process is killed; the next one plays
them on.
"""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from redis import Redis

from tests import ledgers
from tests.ledgers import AGENTS, Ledger
from tests.service import Service
from tests.streaming import FINAL, log_of, place, posting, watching
from tests.test_store import P, begin, over, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from smolagents import MultiStepAgent

    from tests.streaming import Event, Frame

    Script = list[Event]

pytest_plugins = ["tests.streaming"]

DONE: Event = {"say": "done"}
SETTINGS = {"AGENTS": AGENTS, "THREADS": "64", "DEMO_AGENTS": "0"}


def told(ledger: str) -> Script:
    """Sequential and parallel calls, some of them equal; a tool's error, a parse error, a tool that is none."""

    def noting(*words: str) -> Event:
        return {"call": [["note", {"what": word, "ledger": ledger}] for word in words]}

    declined = {"call": [["decline", {"what": "x", "ledger": ledger}]]}
    return [noting("a"), noting("b", "c", "b"), declined, {"text": "no call"}, {"call": [["none", {}]]}, DONE]


def bossed(ledger: str) -> Script:
    """Managed agents: called twice, in parallel, two deep; one of them writes code and keeps its variables."""

    def noting(word: str) -> Event:
        return {"call": [["note", {"what": word, "ledger": ledger}]]}

    def to(agent: str, *script: Event) -> list[Any]:
        return [agent, {"task": json.dumps([*script, {"say": f"{agent} is done"}])}]

    first = {"code": f"x = [note('d', {ledger!r})]\nx.append('kept')"}
    second = {"code": f"note(x[1], {ledger!r})"}
    return [
        {"call": [to("helper", noting("a"))]},
        {"call": [to("helper", noting("b")), to("writer", first), *noting("c")["call"]]},
        {"call": [to("lead", {"call": [to("deputy", noting("e"))]}, noting("f")), to("writer", second)]},
        DONE,
    ]


def written(ledger: str, loop: str = "kept") -> Script:
    """Code blocks: tools in them, variables, functions and what they hold, sets of strings, errors of all kinds."""
    return [
        {
            "code": (
                f"L = {ledger!r}\nkept = {{'p', 'q', 'r'}}\nn = [0]\n"
                "def count():\n    n[0] += 1\n    return n[0]\n"
                "def twice(t):\n    return note(t, L) + note(t, L)\n"
                "x = note('a', L)"
            )
        },
        {
            "code": (
                "try:\n    decline('b', L)\nexcept ValueError as error:\n"
                "    print(type(error).__name__, error)\nprint(twice('c'))"
            )
        },
        {"code": f"for word in {loop}:\n    note(word, L)\ncount()\nmissing"},
        {"code": "decline('d', ledger=L)"},
        {"text": "no code"},
        {"code": "print(count(), x, sorted(kept))"},
        {"code": "final_answer(x + str(count()))"},
    ]


def authored(ledger: str) -> Script:
    """Code that calls an agent that plans, twice."""
    task = json.dumps([{"call": [["note", {"what": "a", "ledger": ledger}]]}, {"say": "helped"}])
    return [
        {"code": f"one = helper({task!r})\nprint(one)\nL = {ledger!r}"},
        {"code": f"two = helper(task={task!r})\nfinal_answer(note(one + two, L))"},
    ]


def planned(ledger: str) -> Script:
    return [{"call": [["note", {"what": word, "ledger": ledger}]]} for word in "abc"] + [DONE]


def carried(ledger: str) -> Script:
    """Results that are not text, one of which reads otherwise once it was carried."""
    kinds = ["ordered", "decimal", "date", "set", "image"]
    return [{"call": [["bring", {"what": kind, "ledger": ledger}]]} for kind in kinds] + [DONE]


def judged(ledger: str) -> Script:
    """An answer that its check refuses, and one that it takes."""
    return [{"call": [["note", {"what": "a", "ledger": ledger}]]}, {"say": "no full stop"}, {"say": "done."}]


def failing(ledger: str) -> Script:
    """A managed agent whose model fails: at once, and after it has done something."""
    noting = {"call": [["note", {"what": "a", "ledger": ledger}]]}

    def to(*script: Event) -> Event:
        return {"call": [["helper", {"task": json.dumps([*script, {"raise": f"kaputt {ledger}"}])}]]}

    return [to(noting), to(), noting, DONE]


KINDS: dict[str, tuple[Callable[[], MultiStepAgent], Callable[[str], Script]]] = {
    "teller": (ledgers.make_teller, told),
    "boss": (ledgers.make_boss, bossed),
    "writer": (ledgers.make_writer, written),
    "threaded": (
        ledgers.make_threaded,
        lambda ledger: written(ledger, "sorted(kept)"),
    ),  # that process's order is its own
    "author": (ledgers.make_author, authored),
    "planner": (ledgers.make_planner, planned),
    "carrying": (ledgers.make_teller, carried),
    "judged": (ledgers.make_judged, judged),
    "failing": (ledgers.make_boss, failing),
}
AGENT_OF = {"carrying": "teller", "failing": "boss"}


@dataclass
class Doomed:
    """A turn whose process is killed at one of its calls."""

    ledger: Ledger
    agent: str
    script: Script
    body: Event = field(default_factory=dict)
    turn: Event = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    """What was called when the process was killed."""
    ends: list[str] = field(default_factory=list)

    @property
    def in_flight(self) -> list[str]:
        """What was called and had not ended."""
        return list((Counter(self.calls) - Counter(self.ends)).elements())

    def watch(self, service: Service) -> None:
        """Play it and read its events, until they end."""
        with (
            suppress(httpx2.TransportError),
            posting(service, *self.script, agent=self.agent, **self.body) as stream,
        ):
            for frame in stream:
                self.turn = self.turn or frame.data
                self.frames.append(frame)

    def read_on(self, service: Service) -> None:
        with watching(service, self.turn, self.frames[-1].id) as stream:
            self.frames += stream.rest()

    def stands(self, service: Service) -> bool:
        """Tell whether it stands still at its call, and what had ended before is in the journal."""
        if not (self.ledger.stands and self.turn):
            return False
        with Redis(unix_socket_path=str(service.folder / "data" / "store.sock")) as raw:
            key = f"{P}:journal:local/{self.turn['conversation_id']}:{self.turn['turn']}"
            journal = raw.hgetall(key)
        kept = [
            name for name, effect in journal.items() if effect and name.startswith((b"tool:", b"model:", b"check:"))
        ]
        return len(kept) == len(self.ledger.ends)


def killed_amid(service: Service, doomed: list[Doomed], *, watched: bool = False) -> None:
    """Play turns until each stands still at its call, kill their process, and let the next one play them to the end."""
    with ThreadPoolExecutor(len(doomed)) as pool:
        reading = [pool.submit(each.watch, service) for each in doomed if watched]
        for each in doomed:
            if not watched:
                each.turn = begin(service, *each.script, agent=each.agent, **each.body)
        killed(service, doomed)
        for future in reading:
            future.result()
        service.start()
        for future in [pool.submit(each.read_on, service) for each in doomed if watched]:
            future.result()
    for each in doomed:
        each.turn = over(service, each.turn, 30)
        if not watched:
            each.frames = log_of(service, each.turn)


def killed(service: Service, doomed: list[Doomed]) -> None:
    """Kill the process of turns as soon as they stand still, and let them go."""
    until(lambda: all(each.stands(service) for each in doomed), 30)
    for each in doomed:
        each.calls, each.ends = each.ledger.calls, each.ledger.ends
    service.kill()
    for each in doomed:
        each.ledger.go()


def calls_of(factory: Callable[[], MultiStepAgent], script: Script, ledger: Ledger) -> tuple[MultiStepAgent, list[str]]:
    """Run a bare agent; give it, and what it called."""
    before = len(ledger.calls)
    agent = factory()
    agent.run(json.dumps(script), reset=False)
    return agent, ledger.calls[before:]


def plain(value: Any, ledger: Ledger) -> Any:
    """Give data as it is for every ledger, and without what differs from run to run."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True).replace(str(ledger.path), "LEDGER")
    return json.loads(
        text, object_hook=lambda item: {k: v for k, v in item.items() if k not in {"duration_ms", "created_at"}}
    )


def spoken(frames: list[Frame]) -> dict[tuple[Any, ...], str]:
    """Give what readers see of every model call in the end."""
    texts: dict[tuple[Any, ...], str] = {}
    for frame in frames:
        event = frame.data
        if event["type"] == "message.restarted":
            texts = {place: text for place, text in texts.items() if place[0] != event["call_id"]}
        elif event["type"] == "message.delta":
            where = (event["call_id"], event["channel"], event.get("index"))
            texts[where] = texts.get(where, "") + event["text"]
    return texts


def named(frames: list[Frame]) -> Counter[tuple[str, str]]:
    """Give events with what names them in their turn, but for texts and those of the turn."""
    names = {"step.started": "step_id", "step.finished": "step_id", "tool.call": "call_id", "tool.result": "call_id"}
    return Counter((frame.event, frame.data[names[frame.event]]) for frame in frames if frame.event in names)


def check_log(frames: list[Frame], whole: list[Frame], attempts: int = 2) -> None:
    """Check the log of a turn that was taken over; `whole` is that of one that was not."""
    assert [frame.id for frame in frames] == list(range(1, len(frames) + 1))
    assert [frame.event for frame in frames if frame.event in FINAL] == [frames[-1].event]
    started = [frame.data["attempt"] for frame in frames if frame.event == "turn.started"]
    assert started == list(range(1, attempts + 1))
    told_by = [frame.data["attempt"] for frame in frames]
    assert told_by == sorted(told_by)
    assert named(frames) == named(whole)


@pytest.mark.parametrize("watched", [True, False], ids=["watched", "unwatched"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(180)
def test_a_turn_that_is_killed_at_any_of_its_calls_ends_as_one_that_is_not(
    tmp_path: Path, kind: str, *, watched: bool
) -> None:
    factory, script = KINDS[kind]
    with Service(tmp_path / "service", SETTINGS) as service:
        agent = AGENT_OF.get(kind, kind)
        spared = Doomed(Ledger.at(tmp_path / "0.ledger"), agent, script(str(tmp_path / "0.ledger")))
        spared.watch(service)
        spared.turn = service.get(place(spared.turn), include_internal_tools=True)
        assert spared.turn["status"] == "finished", spared.turn
        everything = spared.ledger.calls
        doomed = []
        for number in range(1, len(everything) + 1):
            ledger = Ledger.at(tmp_path / f"{number}.ledger", number)
            doomed.append(Doomed(ledger, agent, script(str(ledger.path))))
        killed_amid(service, doomed, watched=watched)
        for number, each in enumerate(doomed, 1):
            check_taken_over(service, each, spared, factory, number)


def check_taken_over(
    service: Service, it: Doomed, spared: Doomed, factory: Callable[[], MultiStepAgent], number: int
) -> None:
    ledger = it.ledger
    after = ledger.calls
    turn = service.get(place(it.turn), include_internal_tools=True)
    assert (turn["status"], turn["attempts"]) == ("finished", 2), (number, turn["error"], turn["tool_calls"])
    assert turn["reply"] == spared.turn["reply"].replace(str(spared.ledger.path), str(ledger.path))
    bare, expected = calls_of(factory, it.script, ledger)
    assert len(it.in_flight) == 1
    assert Counter(after) == Counter(expected) + Counter(it.in_flight), (number, it.in_flight)
    calls = plain(turn["tool_calls"], ledger)
    repeated = [call.pop("repeated") for call in calls]
    others = plain(spared.turn["tool_calls"], spared.ledger)
    assert [call.pop("repeated") for call in others] == [False] * len(others)
    assert calls == others
    names = [call["name"] for call, is_repeated in zip(calls, repeated, strict=True) if is_repeated]
    kind = it.in_flight[0].split()[0]
    assert [name for name in names if name != "python_interpreter"] == [kind] * (kind not in {"model", "check"}), number
    assert it.agent == "threaded" or names.count("python_interpreter") <= 1, number
    assert plain(service.steps(turn), ledger) == plain(service.steps(spared.turn), spared.ledger)
    check_log(it.frames, spared.frames)
    texts = {where: plain(text, ledger) for where, text in spoken(it.frames).items()}
    assert texts == {where: plain(text, spared.ledger) for where, text in spoken(spared.frames).items()}, number
    told_repeated = {f.data["call_id"] for f in it.frames if f.event == "tool.result" and f.data.get("repeated")}
    known_repeated = {call["call_id"] for call, again in zip(calls, repeated, strict=True) if again}
    # Code in a thread runs again also where its end was told before.
    assert told_repeated == known_repeated or (it.agent == "threaded" and told_repeated < known_repeated), number
    shown = service.follow_up(turn, {"prompt": True})["reply"]
    assert shown == str(bare.run(json.dumps([{"prompt": True}]), reset=False)), number
