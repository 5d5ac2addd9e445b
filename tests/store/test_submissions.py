"""Submissions and deletions: every accepted turn exists once, and a deleted conversation takes none."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from smolsessions.core.errors import (
    BusyError,
    ConversationExistsError,
    ConversationNotFoundError,
    LeaseLostError,
    OtherAgentError,
    SealBrokenError,
    StoreUnavailableError,
)
from smolsessions.core.records import (
    AgentName,
    ConversationFields,
    IdempotentRequest,
)
from smolsessions.store.store import Store
from smolsessions.store.turns.lease import HeldLease
from tests.support.stores import (
    AGENT,
    DONE,
    ID_REUSE_S,
    KIND,
    LEASES,
    LOG_TTL_S,
    PARTITION,
    READY,
    SEALER,
    Raw,
    claim,
    claim_one,
    emit,
    event_names_of,
    key_of,
    open_replica,
    packed_step,
    ref_of,
    submit,
    submit_raw,
)


async def test_a_conversation_takes_one_turn_at_a_time(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await submit(one, "c")
    before = {name: raw.dump(name) for name in raw.keys("*local/c*")}
    for store in (one, other):
        with pytest.raises(BusyError) as caught:
            await submit(store, "c")
        assert caught.value.extensions == {"running_turn": 1, "waiting": False}
    assert {name: raw.dump(name) for name in raw.keys("*local/c*")} == before


async def test_turns_that_are_submitted_at_once_are_numbered_once(stores: tuple[Store, Store]) -> None:
    for number in range(1, 6):
        tries = [submit(store, "c") for _ in range(10) for store in stores]
        results = await asyncio.gather(*tries, return_exceptions=True)
        assert sorted(str(result) for result in results if isinstance(result, int)) == [str(number)]
        assert sum(isinstance(result, BusyError) for result in results) == len(tries) - 1
        lease = await claim_one(stores[number % 2])
        assert lease.turn.number == number
        await lease.commit(DONE)


async def test_a_submission_that_is_asked_twice_is_one_turn(stores: tuple[Store, Store], raw: Raw) -> None:
    one, _ = stores
    for number in (1, 2):
        assert submit_raw(raw, number, "sealed once") == ["ok", 1]
        before = {name: raw.dump(name) for name in raw.keys("*local/c*")}
        assert submit_raw(raw, number, "sealed once") == ["ok", 1]
        assert {name: raw.dump(name) for name in raw.keys("*local/c*")} == before
        assert submit_raw(raw, number + 1, "sealed again") == ["busy", str(number), 0]
        assert raw.lrange(key_of("queue", "c"), 0, -1) == [str(number)]
        assert raw.llen(key_of("turns", "c")) == number
        assert event_names_of(raw, "c", number) == ["turn.queued"]
        assert raw.zcard(f"{PARTITION}:ready:{AGENT}") == 1
        lease = await claim_one(one)
        assert submit_raw(raw, number, "sealed once") == ["ok", 1]
        await lease.commit(DONE)
        assert await claim(one) == []


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


async def test_turns_are_accepted_once_where_the_connection_breaks_on_the_way(
    stores: tuple[Store, Store], raw: Raw
) -> None:
    for rounds in range(6):
        tries = [asyncio.create_task(submit(store, f"{rounds} {number}")) for number, store in enumerate(stores)]
        for _ in range(rounds):
            await asyncio.sleep(0)
        raw.client_kill_filter(_type="normal", skipme=True)
        assert await asyncio.gather(*tries) == [1] * len(tries)
        assert [raw.llen(key_of("turns", f"{rounds} {number}")) for number in range(len(tries))] == [1] * len(tries)


async def test_a_number_that_another_replica_gave_is_not_given_again(stores: tuple[Store, Store]) -> None:
    for number in range(1, 9):
        store = stores[number // 2 % 2]
        assert await submit(store, "c", new=number == 1, asked=number % 2 == 0) == number
        lease = await claim_one(store)
        assert (await lease.commit(DONE)).number == number
    with pytest.raises(OtherAgentError):
        await submit(stores[0], "c", AgentName("other"))


async def test_turns_that_are_enqueued_at_once_do_not_hinder_each_other(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await submit(one, "c")
    raw.config_resetstat()
    tries = [submit(store, "c", new=False, on_busy="enqueue") for _ in range(25) for store in (one, other)]
    assert sorted(await asyncio.gather(*tries)) == [*range(2, 52)]
    assert raw.info("commandstats")["cmdstat_evalsha"]["calls"] < 4 * len(tries)


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


async def test_a_delete_takes_a_waiting_turn_out_of_the_ready_set(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await submit(one, "c")
    await other.conversations.delete(ref_of("c"))
    assert event_names_of(raw, "c") == ["turn.queued", "turn.cancelled"]
    assert await claim(one) == []
    with pytest.raises(ConversationNotFoundError):
        await one.conversations.conversation(ref_of("c"))


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


async def test_a_conversation_without_its_time_accepts_no_turn(stores: tuple[Store, Store], raw: Raw) -> None:
    one, _ = stores
    await one.conversations.create(ref_of("c"), AGENT, ConversationFields({}))
    raw.hdel(key_of("conversation", "c"), "created")
    with pytest.raises(SealBrokenError):
        await submit(one, "c", new=False, once=IdempotentRequest("key", b"digest"))
    assert (raw.llen(key_of("turns", "c")), raw.zcard(READY)) == (0, 0)
