"""The short form of `make chaos`, and that each of its invariants can fail."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos import invariants
from tests.chaos.client import Said
from tests.chaos.report import report
from tests.chaos.rounds import Round, requests_of
from tests.chaos.run import Scale, run

SEED = 37
LATER_S = 60


@pytest.mark.alone
async def test_turns_under_random_kills_end_as_they_do_without(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("chaos")
    text, holds = report(*await run(Scale(turns=24, seed=SEED, processes=3, at_once=12), folder), "the short form")
    assert holds, text


@pytest.fixture(scope="module")
async def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Round, Round]:
    """Return two rounds without any harm."""
    scale = Scale(turns=12, seed=3, processes=1, at_once=3, harm=())
    return await run(scale, tmp_path_factory.mktemp("calm"))


def first(wild: Round) -> Said:
    """Return a finished turn that calls a tool in its first step."""
    return next(said for said in wild.said() if said.turn["reply"] and f"{said.key}/0.a" in wild.runs())


def end_twice(wild: Round) -> None:
    first(wild).log.append(first(wild).log[-1])


def answer_otherwise(wild: Round) -> None:
    first(wild).answer = first(wild).turn | {"reply": "other"}


def never_end(wild: Round) -> None:
    wild.talks[0].said.pop()


def swap_steps(wild: Round) -> None:
    steps = wild.talks[0].steps
    steps[1], steps[2] = steps[2], steps[1]


def lose_a_step(wild: Round) -> None:
    for talk in wild.talks:
        talk.steps.pop()


def lose_an_event(wild: Round) -> None:
    del first(wild).log[3]


def see_an_event_twice(wild: Round) -> None:
    said = first(wild)
    said.seen.insert(3, said.seen[3])


def end_a_step_twice(wild: Round) -> None:
    said = first(wild)
    said.log.append(next(event for event in said.log if event["type"] == "step.finished"))


def write_late(wild: Round) -> None:
    said = first(wild)
    said.log[5] |= {"attempt": 2}


def go_on(wild: Round) -> None:
    said = first(wild)
    said.turn["attempts"] = 2
    line = wild.runs()[f"{said.key}/0"][0]
    wild.lines += [replace(line, pid=line.pid + 1), *[line] * 4]


def run_again(wild: Round) -> None:
    wild.lines.append(wild.runs()[f"{first(wild).key}/0.a"][0])


def run_later(wild: Round) -> None:
    line = wild.runs()[f"{first(wild).key}/0.a"][0]
    wild.lines.append(replace(line, at=line.at + LATER_S))


def transfer_again(wild: Round) -> None:
    wild.lines.append(next(line for line in wild.lines if line.kind == "unsafe"))


def lose_an_answer(wild: Round) -> None:
    log = next(said for said in wild.said() if requests_of(said)).log
    log.remove(next(event for event in log if event["type"] == "input.answered"))


def draw_again(wild: Round) -> None:
    wild.lines.append(replace(wild.runs()[f"{first(wild).key}/0.a"][0], given="other"))


def run_nothing(wild: Round) -> None:
    wild.lines.clear()


def answer(wild: Round) -> None:
    first(wild).turn["reply"] = "other"


def keep_other_steps(wild: Round) -> None:
    wild.talks[0].steps[1]["observations"] = "other"


def say_again(wild: Round) -> None:
    said = first(wild)
    place = next(place for place, event in enumerate(said.log) if event["type"] == "message.delta")
    said.log.insert(place, said.log[place])


def lose_a_conversation(wild: Round) -> None:
    wild.astray["local/x has work and is in no set"] += 1


def leave_keys(wild: Round) -> None:
    wild.left_over.append("{p000}:run:local/x:1")


def die(wild: Round) -> None:
    wild.complaints.append("process 7 ended by itself")


SPOILT: list[tuple[Callable[[Round], None], Callable[[Round, Round], Any]]] = [
    (end_twice, invariants.every_turn_ends_once),
    (answer_otherwise, invariants.every_turn_ends_once),
    (never_end, invariants.every_turn_ends_once),
    (swap_steps, invariants.steps_are_in_order),
    (lose_a_step, invariants.shown_steps_are_kept),
    (lose_an_event, invariants.logs_are_whole),
    (see_an_event_twice, invariants.logs_are_whole),
    (end_a_step_twice, invariants.nothing_is_told_twice),
    (write_late, invariants.no_old_fence_writes),
    (go_on, invariants.no_old_fence_writes),
    (run_again, invariants.no_effect_runs_twice),
    (run_later, invariants.what_was_shown_never_runs_again),
    (transfer_again, invariants.no_unsafe_tool_runs_twice),
    (lose_an_answer, invariants.each_request_is_asked_and_answered_once),
    (draw_again, invariants.a_repeated_call_asks_for_the_same),
    (lose_a_conversation, invariants.no_conversation_is_lost),
    (leave_keys, invariants.no_conversation_is_lost),
    (die, invariants.processes_come_and_go_as_told),
    (answer, invariants.turns_end_as_without_chaos),
    (keep_other_steps, invariants.steps_are_as_without_chaos),
    (say_again, invariants.events_tell_what_they_tell_without_chaos),
    (run_nothing, invariants.tools_run_as_often_as_without_chaos),
]


def test_rounds_to_which_nothing_was_done_are_the_same(calm: tuple[Round, Round]) -> None:
    text, holds = report(*calm, "calm")
    assert holds, text


@pytest.mark.parametrize(("spoil", "invariant"), SPOILT, ids=[spoil.__name__ for spoil, _ in SPOILT])
def test_an_invariant_fails_where_it_does_not_hold(
    calm: tuple[Round, Round], spoil: Callable[[Round], None], invariant: Callable[[Round, Round], Any]
) -> None:
    before, wild = deepcopy(calm)
    spoil(wild)
    assert [*invariant(before, wild)]


def test_every_invariant_is_seen_to_fail() -> None:
    assert {invariant for _, invariant in SPOILT} == {*invariants.INVARIANTS}
