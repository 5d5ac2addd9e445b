"""Claims: the conversations that are ready, and the order in which workers take their turns."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from smolsessions.core.errors import (
    OverloadedError,
    SealBrokenError,
)
from smolsessions.core.records import (
    MAX_CRASHES,
    AgentName,
)
from smolsessions.store.store import Store
from smolsessions.store.turns.lease import HeldLease
from tests.support.stores import (
    AGENT,
    DONE,
    KIND,
    LEASES,
    OWNERS,
    PARTITION,
    READY,
    SEALER,
    Raw,
    claim,
    claim_one,
    event_names_of,
    key_of,
    open_replica,
    ref_of,
    submit,
)


async def test_a_worker_takes_only_its_own_agents_and_the_oldest_first(stores: tuple[Store, Store]) -> None:
    one, other = stores
    red, blue = AgentName("red"), AgentName("blue")
    for name, agent in (("1", red), ("2", blue), ("3", red), ("4", blue), ("5", red)):
        await submit(one, name, agent)

    def names(leases: list[HeldLease]) -> list[str]:
        return [lease.turn.ref.id for lease in leases]

    assert names(await claim(other, red, most=1)) == ["1"]
    assert names(await claim(other, AgentName("green"))) == []
    assert names(await claim(one, red, blue, most=3)) == ["2", "3", "4"]
    assert names(await claim(one, blue)) == []
    assert names(await claim(one, blue, red)) == ["5"]


async def test_owners_take_turns_and_each_has_its_oldest_first(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    for number in range(9):
        await submit(one, f"many/{number}")
    for name in ("few/0", "few/1", "one/0"):
        await submit(other, name)
    taken = [str((await claim(store, most=1))[0].turn.ref) for store in (one, other, one)]
    assert taken == ["many/0", "few/0", "one/0"]
    await submit(other, "one/1")
    taken = [str(lease.turn.ref) for lease in await claim(one, most=5)]
    assert taken == ["many/1", "few/1", "one/1", "many/2", "many/3"]
    assert [str(lease.turn.ref) for lease in await claim(other)] == [f"many/{number}" for number in range(4, 9)]
    assert raw.keys("*:ready:*") + raw.keys("*:owned:*") + raw.keys("*:owners:*") == []


async def test_an_owner_that_fills_one_agent_leaves_others_their_turn_at_another(stores: tuple[Store, Store]) -> None:
    one, other = stores
    red, blue = AgentName("red"), AgentName("blue")
    for number in range(6):
        await submit(one, f"many/{number}", red if number % 3 else blue)
    await submit(other, "few/0", blue)
    taken = [str(lease.turn.ref) for lease in await claim(other, red, blue, most=4)]
    assert taken == ["many/0", "few/0", "many/1", "many/2"]


async def test_an_owner_is_passed_over_while_nothing_of_it_may_be_taken(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    for name in ("many/0", "few/0", "many/1"):
        await submit(one, name)
    raw.hset(key_of("run", "many/0", 1), "counted", MAX_CRASHES - 1)
    taken = [
        str(lease.turn.ref) for _ in range(2) for lease in await other.scheduler.claim({AGENT: KIND}, 9, idle=True)
    ]
    assert taken == ["many/0", "few/0", "many/1"]


async def test_a_conversation_that_is_missing_in_the_ready_set_is_not_claimed(
    stores: tuple[Store, Store], raw: Raw
) -> None:
    one, other = stores
    for name in ("many/0", "many/1", "many/2", "few/0"):
        await submit(one, name)
    raw.zrem(READY, "many/1")
    assert [str(lease.turn.ref) for lease in await claim(other, most=9)] == ["many/0", "few/0", "many/2"]
    assert raw.keys("*:ready:*") + raw.keys("*:owned:*") + raw.keys("*:owners:*") == []


async def test_an_owner_that_fills_the_queue_leaves_a_share_of_it_to_others(socket_path: Path, raw: Raw) -> None:
    async def accepted(owner: str) -> int:
        for count in range(101):
            try:
                await submit(store, f"{owner}/{next(numbers)}")
            except OverloadedError:
                return count
        raise AssertionError("nothing was refused")

    assert raw.ping()
    numbers = itertools.count()
    async with open_replica(socket_path, SEALER, max_queued=100) as store:
        assert [await accepted(owner) for owner in ("a", "b", "c", "d", "e")] == [75, 19, 5, 1, 0]
        await claim(store, most=8)
        assert [await accepted(owner) for owner in ("a", "b", "e")] == [0, 2, 5]


async def test_a_turn_that_waits_does_not_make_a_conversation_ready_that_is_leased(
    stores: tuple[Store, Store], raw: Raw
) -> None:
    one, other = stores
    await submit(one, "c")
    lease = await claim_one(one)
    assert [await submit(other, "c", on_busy=on_busy) for on_busy in ("enqueue", "interrupt")] == [2, 3]
    assert await claim(other) == []
    assert await claim(one) == []
    for number in (2, 3):
        await lease.commit(DONE)
        lease = await claim_one(other)
        assert lease.turn.number == number
    await lease.commit(DONE)
    assert (await claim(one), raw.exists(key_of("queue", "c"))) == ([], 0)


async def test_a_claim_passes_over_what_is_gone(stores: tuple[Store, Store], raw: Raw) -> None:
    one, _ = stores
    for name in "abc":
        await submit(one, name)
    raw.delete(key_of("queue", "a"))
    raw.delete(*raw.keys("*local/b*"))
    assert [lease.turn.ref.id for lease in await claim(one)] == ["c"]
    assert raw.zcard(f"{PARTITION}:ready:{AGENT}") == 0


@pytest.mark.parametrize("what", ["record", "input", "head"])
async def test_what_cannot_be_opened_is_claimed_with_its_defect_and_spares_the_others(
    stores: tuple[Store, Store], raw: Raw, what: str
) -> None:
    one, _ = stores
    for name in "abc":
        await submit(one, name)
    if what == "record":
        raw.lset(key_of("turns", "b"), 0, "x" * 60)
    elif what == "input":
        raw.hdel(key_of("run", "b", 1), "input")
    else:
        raw.hset(key_of("conversation", "b"), "head", "x" * 60)
    first, broken, last = await claim(one)
    for lease in (first, last):
        lease.check_readable()
        await lease.commit(DONE)
    with pytest.raises(SealBrokenError):
        broken.check_readable()
    await broken.commit(replace(DONE, status="failed"))
    assert event_names_of(raw, "b")[-1] == "turn.failed"


async def test_a_turn_whose_counter_is_too_large_ends_as_damaged(stores: tuple[Store, Store], raw: Raw) -> None:
    one, _ = stores
    await submit(one, "c")
    raw.hset(key_of("run", "c", 1), "counted", 101)
    lease = await claim_one(one)
    await lease.commit(replace(DONE, status="failed"))
    assert event_names_of(raw, "c")[-1] == "turn.failed"


async def test_a_claim_that_cannot_be_opened_is_set_aside_for_good(
    stores: tuple[Store, Store], raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    one, _ = stores
    for name in "bc":
        await submit(one, name)
    raw.lset(key_of("queue", "b"), 0, 10**16 - 1)  # a number that no turn has
    assert [lease.turn.ref.id for lease in await claim(one)] == ["c"]
    await one.scheduler.all_given_back()
    assert raw.zrange(LEASES, 0, -1) == [str(ref_of("c"))]
    assert not raw.hexists(key_of("conversation", "b"), "fence")
    await one.scheduler.sweep(all_are_over=True)
    assert [lease.turn.ref.id for lease in await claim(one)] == ["c"]
    assert [record.message for record in caplog.records if "local/b" in record.message] == [
        "b'local/b' is damaged, and no worker looks at it any more"
    ]
    await one.conversations.delete(ref_of("b"))


@pytest.mark.parametrize("kind", ["ready", "owned", "owners"])
async def test_ready_sets_are_restored_from_each_other(stores: tuple[Store, Store], raw: Raw, kind: str) -> None:
    one, _ = stores
    for name in ("a/1", "b/1", "a/2"):
        await submit(one, name)
    name = {"ready": READY, "owners": OWNERS, "owned": f"{PARTITION}:owned:{AGENT}:a"}[kind]
    raw.delete(name)
    raw.set(name, "junk")
    found = [str(lease.turn.ref) for lease in await claim(one)]
    assert found == ["a/1", "b/1", "a/2"]
    assert raw.keys(f"{PARTITION}:*:{AGENT}*") == []
