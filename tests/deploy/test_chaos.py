"""The short form of `make chaos`, and that each of its invariants can fail."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos import invariants
from tests.chaos.client import Said
from tests.chaos.ledger import Line
from tests.chaos.report import report
from tests.chaos.rounds import Round, requests_of
from tests.chaos.run import Scale, run
from tests.support.tiers import deep

pytestmark = deep  # `make chaos` is deep itself, and these tests guard nothing else
LATER_S = 60
Spoil = Callable[[Round], Any]


@pytest.mark.alone
async def test_turns_under_random_kills_end_as_they_do_without(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("chaos")
    text, holds = report(*await run(Scale(turns=24, seed=49, processes=3, at_once=12), folder), "the short form")
    assert holds, text


@pytest.fixture(scope="module")
async def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Round, Round]:
    return await run(Scale(turns=8, seed=48, processes=1, at_once=3, harm=()), tmp_path_factory.mktemp("calm"))


def first(wild: Round) -> Said:
    return next(said for said in wild.said() if said.turn["reply"] and f"{said.key}/0.a" in wild.runs())


def called(wild: Round) -> Line:
    return wild.runs()[f"{first(wild).key}/0.a"][0]


def named(wild: Round, kind: str) -> tuple[list[Any], int]:
    """Return the log of that turn, and the place of its first event of a kind."""
    log = first(wild).log
    return log, next(place for place, event in enumerate(log) if event["type"] == kind)


def swap_steps(wild: Round) -> None:
    steps = wild.talks[0].steps
    steps[1], steps[2] = steps[2], steps[1]


def go_on(wild: Round) -> None:
    said = first(wild)
    said.turn["attempts"] = 2
    line = wild.runs()[f"{said.key}/0"][0]
    wild.lines += [replace(line, pid=line.pid + 1), *[line] * 4]


def lose_an_answer(wild: Round) -> None:
    log = next(said for said in wild.said() if requests_of(said)).log
    log.remove(next(event for event in log if event["type"] == "input.answered"))


def repeat(wild: Round, kind: str) -> None:
    log, place = named(wild, kind)
    log.insert(place, log[place])


SPOILT: dict[str, tuple[Spoil, Callable[[Round, Round], Any]]] = {
    "ends twice": (lambda wild: first(wild).log.append(first(wild).log[-1]), invariants.every_turn_ends_once),
    "answers otherwise": (
        lambda wild: setattr(first(wild), "answer", first(wild).turn | {"reply": "other"}),
        invariants.every_turn_ends_once,
    ),
    "never ends": (lambda wild: wild.talks[0].said.pop(), invariants.every_turn_ends_once),
    "swaps steps": (swap_steps, invariants.steps_are_in_order),
    "joins unasked": (
        lambda wild: first(wild).log.insert(3, {"type": "message.steered", "from_turn": 9}),
        invariants.each_message_joins_once,
    ),
    "loses a step": (lambda wild: [talk.steps.pop() for talk in wild.talks], invariants.shown_steps_are_kept),
    "loses an event": (lambda wild: first(wild).log.pop(3), invariants.logs_are_whole),
    "shows an event twice": (lambda wild: first(wild).seen.insert(3, first(wild).seen[3]), invariants.logs_are_whole),
    "ends a step twice": (lambda wild: repeat(wild, "step.finished"), invariants.nothing_is_told_twice),
    "writes late": (lambda wild: first(wild).log[5].update(attempt=2), invariants.no_old_fence_writes),
    "goes on": (go_on, invariants.no_old_fence_writes),
    "runs again": (lambda wild: wild.lines.append(called(wild)), invariants.no_effect_runs_twice),
    "runs later": (
        lambda wild: wild.lines.append(replace(called(wild), at=called(wild).at + LATER_S)),
        invariants.what_was_shown_never_runs_again,
    ),
    "transfers again": (
        lambda wild: wild.lines.append(next(line for line in wild.lines if line.kind == "unsafe")),
        invariants.no_unsafe_tool_runs_twice,
    ),
    "loses an answer": (lose_an_answer, invariants.each_request_is_asked_and_answered_once),
    "draws again": (
        lambda wild: wild.lines.append(replace(called(wild), given="other")),
        invariants.a_repeated_call_asks_for_the_same,
    ),
    "loses a conversation": (lambda wild: wild.astray.update(["local/x is lost"]), invariants.no_conversation_is_lost),
    "leaves keys": (lambda wild: wild.left_over.append("{p000}:run:local/x:1"), invariants.no_conversation_is_lost),
    "dies": (lambda wild: wild.complaints.append("process 7 ended itself"), invariants.processes_come_and_go_as_told),
    "replies otherwise": (lambda wild: first(wild).turn.update(reply="other"), invariants.turns_end_as_without_chaos),
    "keeps other steps": (
        lambda wild: wild.talks[0].steps[1].update(observations="other"),
        invariants.steps_are_as_without_chaos,
    ),
    "says it again": (lambda wild: repeat(wild, "message.delta"), invariants.events_tell_what_they_tell_without_chaos),
    "runs nothing": (lambda wild: wild.lines.clear(), invariants.tools_run_as_often_as_without_chaos),
}


def test_rounds_to_which_nothing_was_done_are_the_same(calm: tuple[Round, Round]) -> None:
    text, holds = report(*calm, "calm")
    assert holds, text


def test_each_invariant_fails_where_it_does_not_hold(calm: tuple[Round, Round]) -> None:
    for name, (spoil, invariant) in SPOILT.items():
        before, wild = deepcopy(calm)
        spoil(wild)
        assert [*invariant(before, wild)], name
    assert {invariant for _, invariant in SPOILT.values()} == {*invariants.INVARIANTS}
