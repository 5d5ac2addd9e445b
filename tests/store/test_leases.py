"""Leases: fences, commits, sweeps and renewals, through the store's own interface on a real server."""

import time
from dataclasses import replace

import pytest

from smolsessions.core.errors import (
    LeaseLostError,
)
from smolsessions.store.store import Store
from tests.support.stores import (
    AGENT,
    BEAT,
    DONE,
    KIND,
    LEASE_S,
    LEASES,
    Raw,
    claim,
    claim_one,
    emit,
    event_names_of,
    expire_lease,
    key_of,
    packed_step,
    ref_of,
    step_count,
    step_texts,
    submit,
)


async def test_an_old_fence_never_writes(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await submit(one, "c")
    old = await claim_one(one)
    await emit(raw, old, "step:1", packed_step("kept"))
    expire_lease(raw, "c")
    assert await other.scheduler.sweep() == 1
    new = await claim_one(other)
    assert (old.attempt, new.attempt, old.fence == new.fence) == (1, 2, False)
    before = raw.dump(key_of("conversation", "c")), event_names_of(raw, "c"), step_count(raw, "c")
    await emit(raw, old, "step:2", packed_step("lost"))
    with pytest.raises(LeaseLostError):
        await old.commit(DONE)
    await one.scheduler.hand_back(old)
    assert old.lost
    await one.scheduler.renew([old])
    assert (raw.dump(key_of("conversation", "c")), event_names_of(raw, "c"), step_count(raw, "c")) == before
    await new.load_replay_state()
    await new.commit(DONE)
    assert await step_texts(one, "c") == ["kept"]
    with pytest.raises(LeaseLostError):
        await old.commit(DONE)


async def test_a_commit_that_is_asked_twice_is_done_once(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await submit(one, "c")
    lease = await claim_one(one)
    await emit(raw, lease, "step:1", packed_step())
    await lease.commit(DONE)
    assert await submit(other, "c") == 2
    await lease.commit(DONE)
    assert event_names_of(raw, "c") == ["turn.queued", "turn.started", "turn.finished"]
    assert raw.lrange(key_of("queue", "c"), 0, -1) == ["2"]
    assert step_count(raw, "c") == 1
    second = await claim_one(other)
    await lease.commit(DONE)
    await emit(raw, second, "step:1", packed_step("second", 2))
    await second.commit(DONE)
    with pytest.raises(LeaseLostError):
        await lease.commit(DONE)
    assert await step_texts(one, "c") == ["step", "second"]


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_task_that_no_step_followed_is_kept(stores: tuple[Store, Store], raw: Raw, *, crashes: bool) -> None:
    one, other = stores
    for number, more in enumerate([["step"], [], ["another"]], 1):
        await submit(one, "c", on_busy="enqueue")
        lease = await claim_one(one)
        await emit(raw, lease, "task", replace(packed_step(f"task {number}", number), type="task"))
        for text in more:
            await emit(raw, lease, text, packed_step(text, number))
        if crashes:
            expire_lease(raw, "c")
            await other.scheduler.sweep()
            lease = await claim_one(other)
            await lease.load_replay_state()
        await lease.commit(DONE)
        assert lease.kept_steps == len(more)
    assert await step_texts(one, "c") == ["task 1", "step", "task 2", "task 3", "another"]
    last = await one.conversations.conversation(ref_of("c"))
    assert last.step_counts == {"task": 3, "action": 2}


async def test_an_expired_lease_goes_to_another_with_the_steps_that_were_finished(
    stores: tuple[Store, Store], raw: Raw
) -> None:
    one, other = stores
    await submit(one, "c")
    old = await claim_one(one)
    await emit(raw, old, "step:1", packed_step("finished"))
    assert await claim(other) == []
    expire_lease(raw, "c")
    assert await claim(other) == []
    assert await one.scheduler.sweep() == 1
    new = await claim_one(other)
    assert (new.turn.number, new.attempt) == (1, 2)
    await new.load_replay_state()
    await emit(raw, new, "step:2", packed_step("and on"))
    assert (await new.commit(DONE)).attempts == 2
    assert await step_texts(other, "c") == ["finished", "and on"]
    with pytest.raises(LeaseLostError):
        await old.commit(DONE)


async def test_a_commit_whose_writes_the_store_took_back_leaves_the_turn_to_another(
    stores: tuple[Store, Store], raw: Raw
) -> None:
    one, other = stores
    await submit(one, "c")
    lease = await claim_one(one)
    await emit(raw, lease, "a", packed_step())
    raw.hset(key_of("run", "c", 1), "written", 0)  # as after a failover to a replica that had none of it
    with pytest.raises(LeaseLostError):
        await lease.commit(DONE)
    expire_lease(raw, "c")
    assert await other.scheduler.sweep() == 1
    again = await claim_one(other)
    await again.load_replay_state()
    assert (await again.commit(DONE)).status == "finished"
    assert await step_texts(one, "c") == ["step"]


async def test_a_sweep_after_a_gap_of_its_own_takes_nothing(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await submit(one, "c")
    lease = await claim_one(one)
    assert await other.scheduler.sweep() == 0
    raw.set(BEAT, int(time.time() * 1e6 - LEASE_S * 1e6 * 0.6))
    expire_lease(raw, "c")
    assert await other.scheduler.sweep() == 0
    left_s = raw.zscore(LEASES, str(ref_of("c"))) / 1e6 - time.time()
    assert LEASE_S * 0.9 < left_s <= LEASE_S + 1
    assert await other.scheduler.sweep() == 0
    await lease.commit(DONE)
    assert raw.zcard(LEASES) == 0


async def test_the_first_sweep_of_all_takes_nothing(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await submit(one, "c")
    lease = await claim_one(one)
    raw.delete(BEAT)
    expire_lease(raw, "c")
    assert await other.scheduler.sweep() == 0
    await lease.commit(DONE)


async def test_an_expired_lease_that_nobody_swept_can_be_renewed(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await submit(one, "c")
    lease = await claim_one(one)
    expire_lease(raw, "c")
    await one.scheduler.renew([lease])
    lost = [lease.lost]
    assert await other.scheduler.sweep() == 0
    expire_lease(raw, "c")
    assert await other.scheduler.sweep() == 1
    await one.scheduler.renew([lease])
    assert [*lost, lease.lost] == [False, True]
    assert raw.zcard(LEASES) == 0


async def test_a_renewal_that_comes_too_late_for_one_keeps_the_others(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    for name in "abc":
        await submit(one, name)
    leases = await claim(one)
    expire_lease(raw, "b")
    await other.scheduler.sweep()
    await one.scheduler.renew(leases)
    assert [lease.lost for lease in leases] == [False, True, False]
    assert set(raw.zrange(LEASES, 0, -1)) == {"local/a", "local/c"}


async def test_a_turn_that_is_handed_back_waits_again_and_counts_no_attempt(
    stores: tuple[Store, Store], raw: Raw
) -> None:
    one, other = stores
    await submit(one, "c")
    (lease,) = await one.scheduler.claim({AGENT: KIND}, 1)  # not begun
    await one.scheduler.hand_back(lease)
    assert raw.zcard(LEASES) == 0
    assert (await one.turns.turn(ref_of("c"), 1)).status == "queued"
    again = await claim_one(other)
    assert (again.turn.number, again.attempt) == (1, 1)
    with pytest.raises(LeaseLostError):
        await lease.commit(DONE)
    await again.commit(DONE)
