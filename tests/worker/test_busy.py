"""One conversation plays one turn at a time. Tests of a turn that meets another, in one process or several."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from redis import Redis

from tests.support.killed_turns import assert_goes_on, assert_steps_stored
from tests.support.problems import nothing_stored, problem
from tests.support.service import CODELESS, Service, shared_service, totals, wait_until
from tests.support.store_server import running_store
from tests.support.streaming import Event, Stream, log_of, place, posting, watching
from tests.support.turns import (
    DONE,
    ECHO,
    ENDLESS,
    cancel,
    held_turn,
    submit_next,
    submit_turn,
    turn_counts,
    wait_for_end,
)

CODES = {"interrupt": "interrupted", "rollback": "rolled_back"}
STOPPING = list(CODES)
# A service that plays one turn at a time and lets two wait in each conversation.
narrow = shared_service(CODELESS | {"THREADS": "1", "MAX_TURNS_BEHIND": "2"})


@pytest.fixture(scope="module")
def trio(folder: Path) -> Iterator[list[Service]]:
    with running_store(folder / "store") as server, ExitStack() as stack:
        settings = CODELESS | server.settings | {"MAX_TURNS_BEHIND": "100"}
        yield [stack.enter_context(Service(folder / name, settings)) for name in "abc"]


def in_order(turns: list[Event]) -> bool:
    """Return whether each turn began after the one before it was over."""
    return all(a["timing"]["finished_at"] <= b["timing"]["started_at"] for a, b in pairwise(turns))


def ended_by(service: Service, turn: Event, how: str, by: int) -> Event:
    ended = wait_for_end(service, turn)
    assert (ended["status"], ended["error"]["code"], ended["error"]["retryable"]) == ("cancelled", CODES[how], False)
    assert f"Turn {by} " in ended["error"]["message"]
    assert (ended["reply"], ended["output"], ended["outcome"]) == (None, None, None)
    assert ended["rolled_back"] == (how == "rollback")
    return ended


def test_a_turn_that_waits_is_played_when_those_before_it_are_over(service: Service, tmp_path: Path) -> None:
    with held_turn(service, tmp_path / "gate") as first:
        second, third = (submit_next(service, first, {"say": text}) for text in ("второй", "第三"))
        assert [turn["turn"] for turn in (first, second, third)] == [1, 2, 3]
        assert [service.get(place(turn))["status"] for turn in (first, second, third)] == ["running"] + ["queued"] * 2
        assert turn_counts(service, first) == (3, 1, 2)
        with watching(service, third) as stream:
            stream.until("turn.queued")
            (tmp_path / "gate").touch()
            events = [frame.event for frame in stream.rest()]
            assert (events[0], events[-1]) == ("turn.started", "turn.finished")
    ended = [wait_for_end(service, turn) for turn in (first, second, third)]
    assert [turn["reply"] for turn in ended] == ["done", "второй", "第三"]
    assert in_order(ended)
    assert [step["turn"] for step in service.steps(first)] == [1, 1, 1, 2, 2, 3, 3]
    assert turn_counts(service, first) == (3, None, 0)


def test_more_turns_than_may_wait_are_refused_and_stop_nobody(narrow: Service, tmp_path: Path) -> None:
    with held_turn(narrow, tmp_path / "gate") as first:
        waiting = [submit_next(narrow, first, DONE) for _ in range(2)]
        body = {"conversation_id": first["conversation_id"], "message": "[]"}
        with nothing_stored(narrow):
            for on_busy in ("enqueue", "interrupt", "rollback", "steer"):
                response = narrow.post("/turn", **body, on_busy=on_busy)
                assert "SMOLSESSIONS_MAX_TURNS_BEHIND" in problem(response, 429, "too_many_turns")["detail"]
                assert int(response.headers["retry-after"]) > 0
            problem(narrow.post("/turn", **body), 409, "busy")
        assert cancel(narrow, waiting[0]).status_code == 200
        last = submit_next(narrow, first, {"say": "room again"})
        assert last["turn"] == 4
    statuses = [wait_for_end(narrow, turn)["status"] for turn in (first, *waiting, last)]
    assert statuses == ["finished", "cancelled", "finished", "finished"]


def test_an_interrupted_turn_keeps_its_finished_steps_and_the_new_one_sees_them(service: Service) -> None:
    with posting(service, ECHO, ENDLESS) as stream:
        first = stream.until("message.delta", step=2)
        named = {"agent": "streamed", "conversation_id": first["conversation_id"]}
        second = service.play(DONE, on_busy="interrupt", **named)
        assert stream.rest()[-1].event == "turn.cancelled"
    ended = ended_by(service, first, "interrupt", 2)
    assert stream.seen[-1].data["result"] == ended
    assert (ended["step_count"], ended["tool_call_names"], ended["usage"]["output_tokens"] > 5) == (1, ["echo"], True)
    assert_steps_stored(service, ended, stream)
    assert (second["turn"], second["reply"], in_order([ended, second])) == (2, "done", True)
    assert [step["turn"] for step in service.steps(first)] == [1, 1, 2, 2]
    assert_goes_on(service, second)


def test_a_turn_that_is_rolled_back_leaves_the_conversation_as_it_found_it(service: Service) -> None:
    one, other = (service.play({"say": "início"}, agent="streamed") for _ in range(2))
    before = service.steps(one)
    with posting(service, ECHO, ENDLESS, conversation_id=one["conversation_id"]) as stream:
        rolled = stream.until("message.delta", step=2)
        assert len(service.steps(one)) == len(before) + 2
        third = service.follow_up(one, {"prompt": True}, on_busy="rollback")
        assert stream.rest()[-1].event == "turn.cancelled"
    ended = ended_by(service, rolled, "rollback", 3)
    assert (ended["step_count"], ended["tool_call_names"], ended["usage"]["output_tokens"] > 5) == (0, ["echo"], True)
    assert [frame.raw for frame in log_of(service, ended)] == [frame.raw for frame in stream.seen]
    assert "step.finished" in [frame.event for frame in stream.seen]
    assert third["reply"] == service.follow_up(other, {"prompt": True})["reply"]
    steps = service.steps(one)
    assert steps[: len(before)] == before
    assert [step["turn"] for step in steps[len(before) :]] == [3, 3]
    assert_goes_on(service, third)


def test_a_reset_is_rolled_back_with_its_turn(service: Service) -> None:
    one, other = (service.play({"say": "kept"}, agent="streamed") for _ in range(2))
    with posting(service, ENDLESS, conversation_id=one["conversation_id"], reset=True) as stream:
        stream.until("message.delta")
        turn = service.follow_up(one, {"prompt": True}, on_busy="rollback")
    assert turn["reply"] == service.follow_up(other, {"prompt": True})["reply"]
    assert not any(step["hidden"] for step in service.steps(one))


@pytest.mark.parametrize("how", STOPPING)
def test_variables_are_kept_by_an_interrupt_and_dropped_by_a_rollback(service: Service, how: str) -> None:
    first = service.play({"code": "x = 'первое'\nfinal_answer(1)"}, agent="streamed-code")
    again = {"code": "x = 'второе'\ny = 1"}
    with posting(service, again, ENDLESS, agent="streamed-code", conversation_id=first["conversation_id"]) as stream:
        stream.until("message.delta", step=2)
        turn = service.follow_up(first, {"code": "final_answer(x)"}, on_busy=how)
    assert turn["reply"] == ("второе" if how == "interrupt" else "первое")
    turn = service.follow_up(first, {"code": "final_answer(y)"}, {"code": "final_answer('no y')"})
    assert turn["reply"] == ("1" if how == "interrupt" else "no y")


@pytest.mark.parametrize("is_heard", [True, False])
@pytest.mark.parametrize("how", STOPPING)
def test_a_turn_is_stopped_by_one_of_another_process(trio: list[Service], how: str, *, is_heard: bool) -> None:
    here, there, third = trio
    with posting(here, ECHO, ENDLESS) as stream, Redis.from_url(here.settings["REDIS_URL"]) as store:
        first = stream.until("message.delta", step=2)
        if not is_heard:
            wait_until(lambda: store.execute_command("CLIENT", "KILL", "TYPE", "pubsub"))
        second = submit_next(there, first | {"agent": {"name": "streamed"}}, DONE, on_busy=how)
        stream.rest()
    ended = ended_by(third, first, how, 2)
    assert stream.seen[-1].data["result"] == ended
    assert ended["step_count"] == (how == "interrupt")
    assert wait_for_end(third, second)["reply"] == "done"
    assert [step["turn"] for step in third.steps(first)] == [1] * (2 * ended["step_count"]) + [2, 2]
    assert_goes_on(here, second)


@pytest.mark.parametrize("how", STOPPING)
def test_a_turn_that_nobody_has_begun_is_stopped_when_its_time_comes(narrow: Service, tmp_path: Path, how: str) -> None:
    with held_turn(narrow, tmp_path / "gate"):
        first = submit_turn(narrow, ECHO, {"say": "never"})
        second = submit_next(narrow, first, DONE, on_busy=how)
        assert turn_counts(narrow, first) == (2, None, 2)
    assert ended_by(narrow, first, how, 2)["tool_call_names"] == []
    assert wait_for_end(narrow, second)["reply"] == "done"
    assert [step["turn"] for step in narrow.steps(first) if step["type"] != "task"] == [2]


def test_a_delete_ends_the_turn_that_runs_and_all_that_wait(service: Service, tmp_path: Path) -> None:
    name = 'smolsessions_turns_total{agent="scripted",code="conversation_deleted",status="cancelled"}'
    before = totals(service).get(name, 0)
    with held_turn(service, tmp_path / "gate") as first, ExitStack() as stack:
        cancelled = submit_next(service, first, DONE)
        turns = [first, *(submit_next(service, first, {"say": "никогда"}) for _ in range(2))]
        cancel(service, cancelled)
        streams: list[Stream] = [stack.enter_context(watching(service, turn)) for turn in turns]
        for stream in streams:
            stream.until("turn.queued")
        where = f"/conversations/{first['conversation_id']}"
        assert service.client.delete(where).status_code == 204
        for stream, turn in zip(streams, turns, strict=True):
            final = stream.rest()[-1]
            assert (final.event, final.data["result"]["turn"]) == ("turn.cancelled", turn["turn"])
            assert final.data["result"]["error"]["code"] == "conversation_deleted"
        problem(service.client.get(where), 404, "conversation_not_found")
        body = {"conversation_id": first["conversation_id"], "message": "hi", "on_busy": "enqueue"}
        problem(service.post("/turn", **body), 404, "conversation_not_found")
    assert totals(service)[name] == before + 3


def test_a_reset_that_waits_hides_what_is_there_when_it_starts(service: Service, tmp_path: Path) -> None:
    fresh = service.play({"prompt": True})
    with held_turn(service, tmp_path / "gate") as first:
        second = submit_next(service, first, {"say": "hidden too"})
        third = submit_next(service, first, {"prompt": True}, reset=True)
    assert [wait_for_end(service, turn)["reply"] for turn in (second, third)] == ["hidden too", fresh["reply"]]
    assert [(step["turn"], step["hidden"]) for step in service.steps(first)] == [
        *[(1, True)] * 3,
        *[(2, True)] * 2,
        *[(3, False)] * 2,
    ]


def test_of_turns_that_stop_each_other_all_end_once_and_the_last_is_played(trio: list[Service]) -> None:
    conversation = trio[0].post("/conversations", agent="streamed").json()["id"]

    def post(number: int) -> Event:
        on_busy = ("interrupt", "rollback", "enqueue")[number // 3 % 3]
        named = {"agent": "streamed", "conversation_id": conversation}
        body = {"message": json.dumps([ECHO, DONE]), "on_busy": on_busy, **named}
        answer = trio[number % 3].client.post("/turn", json=body, headers={"Prefer": "respond-async"})
        turn: Event = answer.json()
        is_over = turn.get("status") in {"finished", "cancelled"}  # another turn may have stopped it before the answer
        assert answer.status_code == (200 if is_over else 202), answer.text
        return turn

    with ThreadPoolExecutor(18) as pool:
        accepted = sorted(pool.map(post, range(18)), key=lambda turn: int(turn["turn"]))
    assert [turn["turn"] for turn in accepted] == [*range(1, 19)]
    ended = [wait_for_end(trio[0], turn) for turn in accepted]
    assert in_order(ended)
    assert ended[-1]["reply"] == "done"
    for turn in ended:
        events = [frame.event for frame in log_of(trio[1], turn)]
        assert [event for event in events if event in {"turn.finished", "turn.cancelled"}] == [events[-1]]
        steps = [step for step in trio[2].steps(turn) if step["turn"] == turn["turn"] and step["type"] != "task"]
        assert len(steps) == turn["step_count"]
