"""Offers: a free thread of this process, which takes a turn in the script that submits it."""

import time
from collections.abc import Mapping

import pytest

from smolsessions.core.records import AgentName
from smolsessions.store.store import Store
from smolsessions.store.turns.lease import HeldLease
from tests.support.stores import (
    AGENT,
    DONE,
    KIND,
    PARTITION,
    Raw,
    claim,
    claim_one,
    emit,
    event_names_of,
    expire_lease,
    key_of,
    submit,
    submit_raw,
)


class Seats:
    """Intake with a number of free threads."""

    def __init__(self, store: Store, free: int = 1) -> None:
        self.free = free
        self.leases: list[HeldLease] = []
        store.scheduler.intake = self

    def reserve(self, agent: AgentName) -> Mapping[AgentName, str] | None:
        if self.free == 0:
            return None
        self.free -= 1
        return {agent: KIND}

    def start(self, lease: HeldLease | None) -> None:
        if lease:
            self.leases.append(lease)
        else:
            self.free += 1


async def all_asked(*stores: Store) -> None:
    """Let each scheduler learn that nothing waits."""
    for store in stores:
        assert await claim(store) == []


async def test_a_turn_is_claimed_as_it_is_submitted_if_a_thread_is_free(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await all_asked(one, other)
    seats = Seats(one)
    for number in (1, 2):
        await submit(one, "c", new=number == 1)
        lease = seats.leases.pop()
        assert (lease.turn.number, lease.attempt, lease.turn.status) == (number, 1, "running")
        assert lease.turn.timing.started_at is not None
        assert abs(time.time() - lease.turn.timing.started_at) < 60
        assert lease.is_sure
        assert await claim(other) == []
        await emit(raw, lease, "model:1")
        assert (await lease.commit(DONE)).status == "finished"
        assert event_names_of(raw, "c", number) == ["turn.queued", "turn.started", "turn.finished"]
        seats.free = 1


async def test_a_turn_waits_behind_one_that_is_ready_although_a_thread_is_free(
    stores: tuple[Store, Store], raw: Raw
) -> None:
    one, other = stores
    await all_asked(one, other)
    seats = Seats(one)
    submit_raw(raw, 1, "of another process")
    await submit(one, "late")
    assert (seats.leases, seats.free) == ([], 1)
    assert [lease.turn.ref.id for lease in await claim(other)] == ["c", "late"]


async def test_a_turn_is_left_to_the_worker_that_has_its_conversation_in_memory(stores: tuple[Store, Store]) -> None:
    one, other = stores
    await submit(one, "c")
    await (await claim_one(other)).commit(DONE)
    await all_asked(one, other)
    seats = Seats(one)
    await submit(one, "c", new=False)
    assert seats.leases == []
    assert (await claim_one(other)).turn.number == 2


async def test_a_turn_is_not_claimed_while_a_suspect_turn_waits_to_be_alone(
    stores: tuple[Store, Store], raw: Raw
) -> None:
    one, other = stores
    await all_asked(one, other)
    seats = Seats(one)
    raw.set(f"{PARTITION}:alone", "somebody")
    await submit(one, "c")
    assert seats.leases == []


async def test_a_turn_that_waits_behind_another_is_not_claimed(stores: tuple[Store, Store]) -> None:
    one, _ = stores
    await all_asked(one)
    seats = Seats(one, free=2)
    await submit(one, "c")
    await submit(one, "c", new=False, on_busy="enqueue")
    assert [lease.turn.number for lease in seats.leases] == [1]
    await seats.leases[0].commit(DONE)
    assert (await claim_one(one)).turn.number == 2


@pytest.mark.usefixtures("stores")
@pytest.mark.parametrize("idem", ["", "digest of a key"])
async def test_a_retry_of_a_submission_claims_anew_until_the_turn_has_begun(raw: Raw, idem: str) -> None:
    first = submit_raw(raw, 1, "sealed", worker="me", idem=idem)
    again = submit_raw(raw, 1, "sealed", worker="me", idem=idem)
    assert (first[:2], again[:2]) == (["ok", 1], ["ok", 1])
    assert first[2] != again[2]
    assert again[2] == raw.hget(key_of("conversation", "c"), "fence")
    assert raw.hget(key_of("run", "c", 1), "attempts") == "1"
    assert submit_raw(raw, 1, "sealed", worker="another", idem=idem) == ["ok", 1]
    raw.hset(key_of("journal", "c", 1), "started:1", "")
    assert submit_raw(raw, 1, "sealed", worker="me", idem=idem) == ["ok", 1]


async def test_a_lease_of_a_submission_expires_like_any_other(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await all_asked(one, other)
    seats = Seats(one)
    await submit(one, "c")
    expire_lease(raw, "c")
    await other.scheduler.sweep()
    taken = await claim_one(other)
    assert (taken.turn.number, taken.attempt, taken.crashes) == (1, 1, 0)
    await one.scheduler.renew(seats.leases)
    assert seats.leases[0].lost


async def test_a_damaged_conversation_is_left_to_a_claim(stores: tuple[Store, Store], raw: Raw) -> None:
    one, _ = stores
    await submit(one, "c")
    await (await claim_one(one)).commit(DONE)
    await all_asked(one)
    seats = Seats(one)
    raw.set(key_of("steps", "c", 0), "no list")
    await submit(one, "c", new=False)
    assert seats.leases == []
    assert raw.zcard(f"{PARTITION}:ready:{AGENT}") == 1
