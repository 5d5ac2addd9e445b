"""Submissions, deletions and stops: every accepted turn exists once, and ends as the strongest request asks for."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from smolsessions.core.errors import (
    ConversationExistsError,
    LeaseLostError,
    SealBrokenError,
    StoreUnavailableError,
)
from smolsessions.core.records import AgentName, ConversationFields, IdempotentRequest, OnBusy, Owner
from smolsessions.store.store import Store
from smolsessions.store.turns.lease import HeldLease
from tests.support.stores import (
    AGENT,
    DONE,
    ID_REUSE_S,
    KIND,
    LEASES,
    LOG_TTL_S,
    SEALER,
    Raw,
    claim,
    claim_one,
    emit,
    error_code_of,
    event_names_of,
    expire_lease,
    key_of,
    open_replica,
    packed_step,
    ref_of,
    second_turn,
    step_count,
    submit,
    submit_raw,
)


async def test_a_submission_that_is_asked_twice_is_one_turn_behind_others_too(
    stores: tuple[Store, Store], raw: Raw
) -> None:
    for number in (1, 2, 3):
        assert submit_raw(raw, number, "sealed once", "enqueue") == ["ok", 1]
    before = {name: raw.dump(name) for name in raw.keys("*local/c*")}
    for number in (2, 1, 3):
        assert submit_raw(raw, number, "sealed once", "rollback") == ["ok", 1]
    assert submit_raw(raw, 3, "sealed again", "enqueue") == ["full", "2"]
    assert submit_raw(raw, 3, "sealed again") == ["busy", "1", 0]
    assert {name: raw.dump(name) for name in raw.keys("*local/c*")} == before
    assert [lease.turn.number for lease in await stores[0].scheduler.claim({AGENT: KIND}, 9)] == [1]


async def test_a_turn_that_is_over_before_its_acceptance_is_known_is_not_made_again(
    stores: tuple[Store, Store], raw: Raw
) -> None:
    one, other = stores
    for rounds in range(8):
        accepting = asyncio.create_task(submit(one, f"lost {rounds}"))
        for _ in range(rounds):
            await asyncio.sleep(0)
        raw.client_kill_filter(_type="normal", skipme=True)
        leases: list[HeldLease] = []
        while not leases:
            with suppress(StoreUnavailableError):
                leases = await claim(other)
        await leases[0].commit(DONE)
        assert await accepting == 1
        assert raw.llen(key_of("turns", f"lost {rounds}")) == 1


async def test_a_key_that_names_the_turn_of_another_owner_is_refused(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    once, names = IdempotentRequest("key", b"request"), list[str]()
    for owner in ("ann", "bob"):
        known = set(raw.keys("*:idem:*"))
        await one.conversations.create(ref_of(f"{owner}/c"), AGENT, ConversationFields({}))
        await submit(one, f"{owner}/c", new=False, once=once)
        names += set(raw.keys("*:idem:*")) - known
    ann, bob = (raw.get(name).split("\n") for name in names)
    assert (await other.turns.recall(Owner("bob"), once)) is not None
    raw.set(names[1], "\n".join([*ann[:3], bob[3]]))
    with pytest.raises(SealBrokenError):
        await other.turns.recall(Owner("bob"), once)


async def test_a_delete_ends_what_runs_and_leaves_a_tombstone(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await submit(one, "c")
    lease = await claim_one(one)
    await emit(raw, lease, "step:1", packed_step())
    await other.conversations.delete(ref_of("c"))
    await emit(raw, lease, "step:2", packed_step())
    with pytest.raises(LeaseLostError):
        await lease.commit(DONE)
    assert event_names_of(raw, "c") == ["turn.queued", "turn.started", "turn.cancelled"]
    assert set(raw.keys("*local/c*")) == {key_of("conversation", "c"), key_of("log", "c", 1)}
    assert 0 < raw.ttl(key_of("log", "c", 1)) <= LOG_TTL_S < raw.ttl(key_of("conversation", "c")) <= ID_REUSE_S
    assert raw.zcard(LEASES) == 0
    for store in stores:
        with pytest.raises(ConversationExistsError):
            await submit(store, "c")
    assert await claim(one) == []


async def test_an_id_that_is_free_again_can_have_another_agent(stores: tuple[Store, Store], raw: Raw) -> None:
    one, _ = stores
    await submit(one, "c")
    await one.conversations.delete(ref_of("c"))
    raw.delete(*raw.keys("*local/c*"))  # as their times to live would
    other_agent = AgentName("other")
    await one.conversations.create(ref_of("c"), other_agent, ConversationFields({}))
    assert await submit(one, "c", other_agent, new=False) == 1


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_a_delete_finds_long_logs_whose_set_was_damaged(socket_path: Path, raw: Raw, *, is_damaged: bool) -> None:
    async with open_replica(socket_path, SEALER, log_ttl_s=0) as store:
        await submit(store, "c")
        await submit(store, "c", new=False, on_busy="enqueue")
        await store.turns.cancel(ref_of("c"), 2)
        assert raw.smembers(key_of("longlogs", "c")) == {"2"}
        raw.set(key_of("longlogs", "c"), "junk")
        if is_damaged:
            raw.hset(key_of("run", "c", 1), "counted", "junk")
            raw.hset(key_of("conversation", "c"), "turns", "junk")
        await store.conversations.delete(ref_of("c"))
    assert [name for name in raw.keys("*local/c*") if raw.ttl(name) == -1] == []


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


async def test_a_renewal_brings_back_why_a_turn_is_to_stop(stores: tuple[Store, Store], raw: Raw) -> None:
    one, _ = stores
    lease = await second_turn(stores, raw)
    one.scheduler.hear_stop(b"", b"local/c\n2\n1")
    assert await lease.stop_reason == "cancelled"
    raw.hset(key_of("run", "c", 2), "cancel", "interrupt:3")  # as if the message was lost
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
