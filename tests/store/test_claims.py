"""Claims: which conversations are ready, the order of their turns, and offers of free threads to submissions."""

import itertools
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from smolsessions.core.errors import OverloadedError
from smolsessions.core.records import AgentName, Owner
from smolsessions.store.store import Store
from smolsessions.store.turns.lease import HeldLease
from tests.support import stores
from tests.support.stores import Raw


async def test_owners_take_turns_and_each_has_its_oldest_first(one: Store, other: Store, raw: Raw) -> None:
    for number in range(9):
        await stores.submit(one, f"many/{number}")
    for name in ("few/0", "few/1", "one/0"):
        await stores.submit(other, name)
    taken = [str((await stores.claim(store, most=1))[0].turn.ref) for store in (one, other, one)]
    assert taken == ["many/0", "few/0", "one/0"]
    await stores.submit(other, "one/1")
    taken = [str(lease.turn.ref) for lease in await stores.claim(one, most=5)]
    assert taken == ["many/1", "few/1", "one/1", "many/2", "many/3"]
    assert [str(lease.turn.ref) for lease in await stores.claim(other)] == [f"many/{number}" for number in range(4, 9)]
    assert raw.keys("*:ready:*") + raw.keys("*:owned:*") + raw.keys("*:owners:*") == []


async def test_an_owner_that_fills_one_agent_leaves_others_their_turn_at_another(one: Store, other: Store) -> None:
    red, blue = AgentName("red"), AgentName("blue")
    for number in range(6):
        await stores.submit(one, f"many/{number}", red if number % 3 else blue)
    await stores.submit(other, "few/0", blue)
    taken = [str(lease.turn.ref) for lease in await stores.claim(other, red, blue, most=4)]
    assert taken == ["many/0", "few/0", "many/1", "many/2"]


async def test_a_conversation_missing_in_the_ready_set_is_not_claimed(one: Store, other: Store, raw: Raw) -> None:
    for name in ("many/0", "many/1", "many/2", "few/0"):
        await stores.submit(one, name)
    raw.zrem(stores.READY, "many/1")
    assert [str(lease.turn.ref) for lease in await stores.claim(other, most=9)] == ["many/0", "few/0", "many/2"]
    assert raw.keys("*:ready:*") + raw.keys("*:owned:*") + raw.keys("*:owners:*") == []


async def test_an_owner_that_fills_the_queue_leaves_a_share_of_it_to_others(socket_path: Path, raw: Raw) -> None:
    async def accepted(owner: str) -> int:
        for count in range(101):
            try:
                await stores.submit(store, f"{owner}/{next(numbers)}")
            except OverloadedError:
                return count
        raise AssertionError("nothing was refused")

    assert raw.ping()
    numbers = itertools.count()
    async with stores.open_replica(socket_path, stores.SEALER, max_queued=100) as store:
        assert [await accepted(owner) for owner in ("a", "b", "c", "d", "e")] == [75, 19, 5, 1, 0]
        await stores.claim(store, most=8)
        assert [await accepted(owner) for owner in ("a", "b", "e")] == [0, 2, 5]


async def test_a_turn_that_waits_makes_no_leased_conversation_ready(one: Store, other: Store, raw: Raw) -> None:
    lease = await stores.begin(one, "c")
    assert [await stores.submit(other, "c", on_busy=on_busy) for on_busy in ("enqueue", "interrupt")] == [2, 3]
    assert await stores.claim(other) == []
    assert await stores.claim(one) == []
    for number in (2, 3):
        await lease.commit(stores.DONE)
        lease = await stores.claim_one(other)
        assert lease.turn.number == number
    await lease.commit(stores.DONE)
    assert (await stores.claim(one), raw.exists(stores.key_of("queue", "c"))) == ([], 0)


async def test_an_unreadable_claim_is_set_aside(one: Store, raw: Raw, caplog: pytest.LogCaptureFixture) -> None:
    for name in "bc":
        await stores.submit(one, name)
    raw.lset(stores.key_of("queue", "b"), 0, 10**16 - 1)  # a number that no turn has
    assert [lease.turn.ref.id for lease in await stores.claim(one)] == ["c"]
    await one.scheduler.all_given_back()
    assert raw.zrange(stores.LEASES, 0, -1) == [str(stores.ref_of("c"))]
    assert not raw.hexists(stores.key_of("conversation", "b"), "fence")
    await one.scheduler.sweep(all_are_over=True)
    assert [lease.turn.ref.id for lease in await stores.claim(one)] == ["c"]
    assert [record.message for record in caplog.records if "local/b" in record.message] == [
        "b'local/b' is damaged, and no worker looks at it any more"
    ]
    await one.conversations.delete(stores.ref_of("b"))


@pytest.mark.parametrize("kind", ["ready", "owned", "owners"])
async def test_ready_sets_are_restored_from_each_other(one: Store, raw: Raw, kind: str) -> None:
    for name in ("a/1", "b/1", "a/2"):
        await stores.submit(one, name)
    name = {"ready": stores.READY, "owners": stores.OWNERS, "owned": f"{stores.PARTITION}:owned:{stores.AGENT}:a"}[kind]
    raw.delete(name)
    raw.set(name, "junk")
    assert [str(lease.turn.ref) for lease in await stores.claim(one)] == ["a/1", "b/1", "a/2"]
    assert raw.keys(f"{stores.PARTITION}:*:{stores.AGENT}*") == []


async def test_of_an_owner_no_more_is_claimed_than_there_is_room_for(one: Store) -> None:
    for name in ("a/1", "a/2", "a/3", "a/4", "b/1", "b/2", "c/1"):
        await stores.submit(one, name)
    rooms = {Owner("b"): 1, Owner("c"): 0}
    for expected in (["a/1", "b/1", "a/2"], ["b/2", "a/3", "a/4"], []):
        leases = await one.scheduler.claim({stores.AGENT: stores.KIND}, 10, most_each=2, rooms=rooms)
        assert [str(lease.turn.ref) for lease in leases] == expected
        one.scheduler.nudge()
    assert [str(lease.turn.ref) for lease in await stores.claim(one)] == ["c/1"]


class Seats:
    def __init__(self, store: Store, free: int = 1) -> None:
        self.free, self.reserved_threads = free, 0
        self.leases: list[HeldLease] = []
        store.scheduler.intake = self

    def reserve_thread(self, agent: AgentName, _owner: Owner) -> Mapping[AgentName, str] | None:
        if self.free == 0:
            return None
        self.free, self.reserved_threads = self.free - 1, self.reserved_threads + 1
        return {agent: stores.KIND}

    def use_thread(self, lease: HeldLease | None, _owner: Owner) -> None:
        self.reserved_threads -= 1
        if lease:
            self.leases.append(lease)
        else:
            self.free += 1


async def all_asked(*schedulers: Store) -> None:
    """Let each scheduler learn that nothing waits."""
    for store in schedulers:
        assert await stores.claim(store) == []


async def test_a_turn_is_claimed_as_it_is_submitted_if_a_thread_is_free(one: Store, other: Store, raw: Raw) -> None:
    await all_asked(one, other)
    seats = Seats(one)
    for number in (1, 2):
        await stores.submit(one, "c", new=number == 1)
        lease = seats.leases.pop()
        assert (lease.turn.number, lease.attempt, lease.turn.status) == (number, 1, "running")
        assert lease.turn.timing.started_at is not None
        assert abs(time.time() - lease.turn.timing.started_at) < 60
        assert lease.is_sure
        assert await stores.claim(other) == []
        await stores.emit(raw, lease, "model:1")
        assert (await lease.commit(stores.DONE)).status == "finished"
        assert stores.event_names_of(raw, "c", number) == ["turn.queued", "turn.started", "turn.finished"]
        seats.free = 1


async def test_a_turn_waits_behind_a_ready_one_although_a_thread_is_free(one: Store, other: Store, raw: Raw) -> None:
    await all_asked(one, other)
    seats = Seats(one)
    stores.submit_raw(raw, 1, "of another process")
    await stores.submit(one, "late")
    assert (seats.leases, seats.free) == ([], 1)
    assert [lease.turn.ref.id for lease in await stores.claim(other)] == ["c", "late"]


async def test_a_turn_is_left_to_the_worker_that_has_its_conversation_in_memory(one: Store, other: Store) -> None:
    await stores.submit(one, "c")
    await (await stores.claim_one(other)).commit(stores.DONE)
    await all_asked(one, other)
    seats = Seats(one)
    await stores.submit(one, "c", new=False)
    assert seats.leases == []
    assert (await stores.claim_one(other)).turn.number == 2


async def test_a_turn_is_not_claimed_while_a_suspect_turn_waits_to_be_alone(one: Store, other: Store, raw: Raw) -> None:
    await all_asked(one, other)
    seats = Seats(one)
    raw.set(f"{stores.PARTITION}:alone", "somebody")
    await stores.submit(one, "c")
    assert seats.leases == []


@pytest.mark.usefixtures("stores")
@pytest.mark.parametrize("idem", ["", "digest of a key"])
async def test_a_retry_of_a_submission_claims_anew_until_the_turn_has_begun(raw: Raw, idem: str) -> None:
    first = stores.submit_raw(raw, 1, "sealed", worker="me", idem=idem)
    again = stores.submit_raw(raw, 1, "sealed", worker="me", idem=idem)
    assert (first[:2], again[:2]) == (["ok", 1], ["ok", 1])
    (*_, (_, _, one_fence, *_)), (*_, (_, _, other_fence, *_)) = first, again
    assert one_fence != other_fence
    assert other_fence == raw.hget(stores.key_of("conversation", "c"), "fence")
    assert raw.hget(stores.key_of("run", "c", 1), "attempts") == "1"
    assert stores.submit_raw(raw, 1, "sealed", worker="another", idem=idem) == ["ok", 1]
    raw.hset(stores.key_of("journal", "c", 1), "started:1", "")
    assert stores.submit_raw(raw, 1, "sealed", worker="me", idem=idem) == ["ok", 1]


async def test_a_damaged_conversation_is_left_to_a_claim(one: Store, raw: Raw) -> None:
    await (await stores.begin(one, "c")).commit(stores.DONE)
    await all_asked(one)
    seats = Seats(one)
    raw.set(stores.key_of("steps", "c", 0), "no list")
    await stores.submit(one, "c", new=False)
    assert seats.leases == []
    assert raw.zcard(f"{stores.PARTITION}:ready:{stores.AGENT}") == 1
