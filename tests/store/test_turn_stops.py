"""Interrupted and rolled back turns: how they end, and the steps that they leave."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from smolsessions.core.errors import SealBrokenError
from smolsessions.core.records import (
    OnBusy,
    Outcome,
)
from smolsessions.store.store import Store
from tests.support.stores import (
    DONE,
    Raw,
    claim_one,
    error_code_of,
    event_names_of,
    expire_lease,
    key_of,
    second_turn,
    step_count,
    step_texts,
    submit,
)
from tests.support.waiting import wait_until


@pytest.mark.parametrize("heard", [True, False])
async def test_a_turn_that_ends_while_it_is_rolled_back_is_rolled_back(
    stores: tuple[Store, Store], raw: Raw, heard: bool
) -> None:
    one, other = stores
    lease = await second_turn(stores, raw)
    assert await submit(other, "c", on_busy="rollback" if heard else "enqueue") == 3
    if heard:
        assert await lease.stop_reason == "rolled_back"
    else:  # as if the message was lost: only the store holds the stop request
        raw.hset(key_of("run", "c", 2), "cancel", "rollback:3")
    assert lease.stop_reason.done() == heard
    ended = await lease.commit(replace(DONE, steps=1, output="x", state="success", dropped_variables=("z",)))
    assert (await lease.commit(DONE)).outcome == ended.outcome  # a second commit changes nothing
    assert (ended.status, error_code_of(ended)) == ("cancelled", "rolled_back")
    assert replace(ended.outcome or DONE, error=None) == Outcome("cancelled")
    assert await step_texts(other, "c") == ["first"]
    assert event_names_of(raw, "c", 2) == ["turn.queued", "turn.started", "turn.cancelled"]
    third = await claim_one(one)
    third.check_readable()
    assert (third.turn.number, await third.variables()) == (3, {"x": b"1"})
    assert raw.keys("*fresh*") == []
    await third.commit(DONE)


async def test_a_turn_that_is_rolled_back_leaves_nothing_of_an_earlier_attempt(
    stores: tuple[Store, Store], raw: Raw
) -> None:
    one, other = stores
    await second_turn(stores, raw)
    expire_lease(raw, "c")
    await other.scheduler.sweep()
    assert await submit(one, "c", on_busy="rollback") == 3
    again = await claim_one(other)
    assert await again.stop_reason == "rolled_back"
    past = await again.load_replay_state()
    assert (again.attempt, past.steps) == (2, (b"second",))
    assert error_code_of(await again.commit(DONE)) == "rolled_back"
    assert await step_texts(one, "c") == ["first"]


@pytest.mark.parametrize(("status", "code"), [("finished", None), ("failed", None), ("cancelled", "interrupted")])
async def test_a_turn_that_ends_by_itself_while_it_is_interrupted_ends_so(
    stores: tuple[Store, Store], raw: Raw, status: Any, code: str | None
) -> None:
    one, other = stores
    lease = await second_turn(stores, raw)
    assert await submit(other, "c", on_busy="interrupt") == 3
    assert await lease.stop_reason == "interrupted"
    ended = await lease.commit(replace(DONE, status=status))
    assert (ended.status, error_code_of(ended)) == (status, code)
    assert await step_texts(other, "c") == ["first", "second"]
    assert (await claim_one(one)).turn.number == 3


@pytest.mark.parametrize(
    ("asked", "code", "by"),
    [
        (("interrupt", "interrupt"), "interrupted", 2),
        (("interrupt", "rollback"), "rolled_back", 3),
        (("rollback", "interrupt"), "rolled_back", 2),
        (("rollback", "rollback"), "rolled_back", 2),
    ],
)
async def test_a_claim_brings_what_leaves_least(
    stores: tuple[Store, Store], asked: tuple[OnBusy, OnBusy], code: str, by: int
) -> None:
    one, other = stores
    await submit(one, "c")
    for on_busy in asked:
        await submit(other, "c", on_busy=on_busy)
    lease = await claim_one(one)
    assert await lease.stop_reason == code
    ended = await lease.commit(replace(DONE, status="cancelled"))
    assert error_code_of(ended) == code
    assert ended.outcome
    assert ended.outcome.error
    assert f"Turn {by} " in ended.outcome.error.message


def listeners(raw: Raw) -> set[str]:
    return {str(client["id"]) for client in raw.client_list(_type="pubsub")}


async def test_a_renewal_brings_back_why_a_turn_is_to_stop(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    lease = await second_turn(stores, raw)
    one.scheduler.hear_stop(b"", b"local/c\n2\n1")
    assert await lease.stop_reason == "cancelled"
    before = listeners(raw)
    raw.client_kill_filter(_type="pubsub")
    await asyncio.to_thread(wait_until, lambda: len(listeners(raw) - before) == 2)  # both have connected again
    await submit(other, "c", on_busy="interrupt")
    await one.scheduler.renew([lease])
    assert error_code_of(await lease.commit(replace(DONE, status="cancelled"))) == "interrupted"


async def test_what_cannot_be_read_is_not_rolled_back_but_told(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await second_turn(stores, raw)
    raw.hset(key_of("conversation", "c"), "head", "x" * 60)
    expire_lease(raw, "c")
    await other.scheduler.sweep()
    await submit(one, "c", on_busy="rollback")
    broken = await claim_one(other)
    with pytest.raises(SealBrokenError):
        broken.check_readable()
    assert (await broken.commit(replace(DONE, status="failed"))).status == "failed"
    assert step_count(raw, "c") == 2
    assert (await claim_one(one)).turn.number == 3
