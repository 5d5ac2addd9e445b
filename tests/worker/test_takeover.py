"""A turn whose process dies continues in another one: no journaled call is repeated, and no reader sees a seam.

Many turns block, each at a different call, when their process is killed. The next process finishes them.
"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from smolagents import MultiStepAgent

from tests.support import ledgers
from tests.support.killed_turns import (
    SETTINGS,
    KilledTurn,
    Script,
    calls_of,
    check_log,
    kill_and_resume,
    kill_when_blocked,
    note_call,
    plain,
    spoken,
)
from tests.support.ledgers import Ledger
from tests.support.service import Service
from tests.support.streaming import Event, log_of, place
from tests.support.tiers import deep
from tests.support.turns import DONE, submit_turn, wait_for_end


def told(ledger: str) -> Script:
    """Sequential and parallel calls, some of them equal, with a tool's error, a parse error and an unknown tool."""
    declined, unknown = {"call": [["decline", {"what": "x", "ledger": ledger}]]}, {"call": [["none", {}]]}
    return [note_call(ledger, "a"), note_call(ledger, "b", "c", "b"), declined, {"text": "no call"}, unknown, DONE]


def bossed(ledger: str) -> Script:
    """Managed agents, called twice, in parallel and two deep. One of them writes code and keeps its variables."""

    def to(agent: str, *script: Event) -> list[Any]:
        return [agent, {"task": json.dumps([*script, {"say": f"{agent} is done"}])}]

    first = {"code": f"x = [note('d', {ledger!r})]\nx.append('kept')"}
    second = {"code": f"note(x[1], {ledger!r})"}
    lead = to("lead", {"call": [to("deputy", note_call(ledger, "e"))]}, note_call(ledger, "f"))
    return [
        {"call": [to("helper", note_call(ledger, "a"))]},
        {"call": [to("helper", note_call(ledger, "b")), to("writer", first), *note_call(ledger, "c")["call"]]},
        {"call": [lead, to("writer", second)]},
        DONE,
    ]


def written(ledger: str, loop: str = "kept") -> Script:
    """Code blocks with tools, variables, functions and their state, sets of strings, and errors of all kinds."""
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
    task = json.dumps([note_call(ledger, "a"), {"say": "helped"}])
    return [
        {"code": f"one = helper({task!r})\nprint(one)\nL = {ledger!r}"},
        {"code": f"two = helper(task={task!r})\nfinal_answer(note(one + two, L))"},
    ]


def carried(ledger: str) -> Script:
    """Results that are not text. One of them reads differently after it was carried."""
    kinds = ["ordered", "decimal", "date", "set", "image"]
    return [{"call": [["bring", {"what": kind, "ledger": ledger}]]} for kind in kinds] + [DONE]


def valued(ledger: str) -> Script:
    """Code that receives values other than text, and keeps them."""
    return [
        {"code": f"L = {ledger!r}\nmade = [bring(what, L) for what in ('decimal', 'date')]\nprint(made)"},
        {"code": "picture = bring('image', L)\nprint(picture.size, bring('set', L), made[0] * 2)"},
        {"code": "final_answer(note(str(made), L) + str(picture.size))"},
    ]


def judged(ledger: str) -> Script:
    """An answer that its check refuses, and one that it accepts."""
    return [note_call(ledger, "a"), {"say": "no full stop"}, {"say": "done."}]


def failing(ledger: str) -> Script:
    def to(*script: Event) -> Event:
        return {"call": [["helper", {"task": json.dumps([*script, {"raise": f"kaputt {ledger}"}])}]]}

    return [to(note_call(ledger, "a")), to(), note_call(ledger, "b"), DONE]


KINDS: dict[str, tuple[Callable[[], MultiStepAgent], Callable[[str], Script]]] = {
    "teller": (ledgers.make_teller, told),
    "boss": (ledgers.make_boss, bossed),
    "writer": (ledgers.make_writer, written),
    # Sets have another order in that process.
    "threaded": (ledgers.make_threaded, lambda ledger: written(ledger, "sorted(kept)")),
    "author": (ledgers.make_author, authored),
    "planner": (ledgers.make_planner, lambda ledger: [*(note_call(ledger, word) for word in "abc"), DONE]),
    "carrying": (ledgers.make_teller, carried),
    "valued": (ledgers.make_writer, valued),
    "judged": (ledgers.make_judged, judged),
    "failing": (ledgers.make_boss, failing),
}
AGENT_OF = {"carrying": "teller", "valued": "writer", "failing": "boss"}


def make_turn(folder: Path, kind: str, *at: int) -> KilledTurn:
    ledger = Ledger.at(folder / f"{kind}-{at[0] if at else 0}.ledger", *at)
    return KilledTurn(ledger, AGENT_OF.get(kind, kind), KINDS[kind][1](str(ledger.path)))


def check_takeovers(folder: Path, kinds: dict[str, int | None], *, watched: Callable[[int], bool]) -> None:
    """Play a turn of each kind, kill others of it at this number of their calls (None: at each), and compare."""
    with Service(folder / "service", SETTINGS) as service:
        spared, killed_turns = {}, []
        for kind, most in kinds.items():
            one = spared[kind] = make_turn(folder, kind)
            one.watch(service)
            one.turn = service.get(place(one.turn), include_internal_tools=True)
            assert one.turn["status"] == "finished", one.turn
            count = len(one.ledger.calls)
            points = range(1, count + 1) if most is None else [count * n // (most + 1) + 1 for n in range(1, most + 1)]
            killed_turns += [(kind, number, make_turn(folder, kind, number)) for number in points]
        for place_, (_, _, it) in enumerate(killed_turns):
            it.watched = watched(place_)
        kill_and_resume(service, [it for _, _, it in killed_turns])
        for kind, number, it in killed_turns:
            check_taken_over(service, it, spared[kind], KINDS[kind][0], number)


def test_turns_of_every_kind_that_are_killed_at_some_of_their_calls_end_as_those_that_are_not(tmp_path: Path) -> None:
    check_takeovers(tmp_path, dict.fromkeys(KINDS, 2), watched=lambda place_: bool(place_ % 2))


@deep
@pytest.mark.parametrize("watched", [True, False], ids=["watched", "unwatched"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_killed_at_any_of_its_calls_ends_as_one_that_is_not(tmp_path: Path, kind: str, *, watched: bool) -> None:
    check_takeovers(tmp_path, {kind: None}, watched=lambda _: watched)


def test_turns_that_are_killed_twice_end_as_those_that_are_not(tmp_path: Path) -> None:
    """The second kill hits the same call, or the one after it."""
    service = Service(tmp_path / "service", SETTINGS)
    service.start()
    killed_turns = []
    for kind, number, apart in (
        ("teller", 2, 1),
        ("teller", 5, 1),
        ("teller", 8, 2),
        ("writer", 4, 2),
        ("writer", 9, 2),
    ):
        it = make_turn(tmp_path, kind, number)
        it.turn = submit_turn(service, *it.script, agent=kind)
        killed_turns.append((it, apart))
    kill_when_blocked(service, [it for it, _ in killed_turns])
    in_flight = [Counter(it.in_flight) for it, _ in killed_turns]
    for it, apart in killed_turns:
        (it.ledger.path / "at").write_text(str(len(it.calls) + apart))
    service.start()
    kill_when_blocked(service, [it for it, _ in killed_turns])
    with service:
        for (it, apart), first in zip(killed_turns, in_flight, strict=True):
            turn = wait_for_end(service, it.turn)
            assert (turn["status"], turn["attempts"]) == ("finished", 3)
            after = it.ledger.calls
            bare, expected = calls_of(KINDS[it.agent][0], it.script, it.ledger)
            assert Counter(after) == Counter(expected) + Counter(it.in_flight)  # the calls in flight of both attempts
            assert len(it.in_flight) == 2
            assert apart > 1 or Counter(it.in_flight) == first + first
            frames = log_of(service, turn)
            check_log(frames, frames, 3)
            shown = service.follow_up(turn, {"prompt": True})["reply"]
            assert shown == str(bare.run(json.dumps([{"prompt": True}]), reset=False))


def check_taken_over(
    service: Service, it: KilledTurn, spared: KilledTurn, factory: Callable[[], MultiStepAgent], number: int
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
    if it.agent == "writer":
        assert names.count("python_interpreter") == (kind != "model"), number
    assert it.agent == "threaded" or names.count("python_interpreter") <= 1, number
    assert plain(service.steps(turn), ledger) == plain(service.steps(spared.turn), spared.ledger)
    check_log(it.frames, spared.frames)
    texts = {where: plain(text, ledger) for where, text in spoken(it.frames).items()}
    assert texts == {where: plain(text, spared.ledger) for where, text in spoken(spared.frames).items()}, number
    told_repeated = {f.data["call_id"] for f in it.frames if f.event == "tool.result" and f.data.get("repeated")}
    known_repeated = {call["call_id"] for call, again in zip(calls, repeated, strict=True) if again}
    # Code in a thread runs again even if its end was reported before.
    assert told_repeated == known_repeated or (it.agent == "threaded" and told_repeated < known_repeated), number
    shown = service.follow_up(turn, {"prompt": True})["reply"]
    assert shown == str(bare.run(json.dumps([{"prompt": True}]), reset=False)), number
