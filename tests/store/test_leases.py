"""Leases: fences, commits, sweeps, renewals, and writes that are stored once, whatever happens to the connection."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from smolsessions.core.errors import LeaseLostError, SealBrokenError, StoreUnavailableError
from smolsessions.core.events import TurnStarted
from smolsessions.core.records import ConversationFields, Turn
from smolsessions.core.requests import Answer
from smolsessions.store.scripts.loader import as_service_error
from smolsessions.store.store import Store
from smolsessions.store.turns import turn_log
from smolsessions.store.turns.lease import HeldLease
from tests.support import stores
from tests.support.stores import Raw
from tests.support.waiting import PATIENCE_S

MOST_ARGUMENTS = 1_020  # of 1,000 values


async def test_an_old_fence_never_writes(one: Store, other: Store, raw: Raw) -> None:
    old = await stores.begin(one, "c")
    await stores.emit(raw, old, "step:1", stores.packed_step("kept"))
    stores.expire_lease(raw, "c")
    assert await other.scheduler.sweep() == 1
    new = await stores.claim_one(other)
    assert (old.attempt, new.attempt, old.fence == new.fence) == (1, 2, False)
    before = raw.dump(stores.key_of("conversation", "c")), stores.event_names_of(raw, "c"), stores.step_count(raw, "c")
    await stores.emit(raw, old, "step:2", stores.packed_step("lost"))
    with pytest.raises(LeaseLostError):
        await old.commit(stores.DONE)
    with pytest.raises(LeaseLostError):
        await old.load_replay_state()
    await one.scheduler.hand_back(old)
    assert old.lost
    await one.scheduler.renew([old])
    assert (
        raw.dump(stores.key_of("conversation", "c")),
        stores.event_names_of(raw, "c"),
        stores.step_count(raw, "c"),
    ) == before
    await new.load_replay_state()
    await new.commit(stores.DONE)
    assert await stores.step_texts(one, "c") == ["kept"]
    with pytest.raises(LeaseLostError):
        await old.commit(stores.DONE)


async def test_a_commit_whose_writes_were_undone_leaves_the_turn_to_another(one: Store, other: Store, raw: Raw) -> None:
    lease = await stores.begin(one, "c")
    await stores.emit(raw, lease, "a", stores.packed_step())
    raw.hset(stores.key_of("run", "c", 1), "written", 0)  # as after a failover to a replica that had none of it
    with pytest.raises(LeaseLostError):
        await lease.commit(stores.DONE)
    stores.expire_lease(raw, "c")
    assert await other.scheduler.sweep() == 1
    again = await stores.claim_one(other)
    await again.load_replay_state()
    assert (await again.commit(stores.DONE)).status == "finished"
    assert await stores.step_texts(one, "c") == ["step"]


@pytest.mark.timeout(60)
async def test_a_worker_whose_writes_the_store_took_back_learns_of_it_with_its_next_write(one: Store, raw: Raw) -> None:
    lease = await stores.begin(one, "c")
    raw.hset(stores.key_of("run", "c", 1), "written", 0)
    lease.emit("step:1", step=stores.packed_step())
    with pytest.raises(LeaseLostError):
        await lease.flush()
    assert stores.step_count(raw, "c") == 0


async def test_a_lease_is_sure_of_itself_until_its_time_is_over(socket_path: Path, raw: Raw) -> None:
    assert raw.ping()
    async with stores.open_replica(socket_path, lease_s=0.3) as store:
        await stores.submit(store, "c")
        (lease,) = await store.scheduler.claim({stores.AGENT: stores.KIND}, 1)
        for renews in (True, False):
            await asyncio.sleep(0.3)  # a lease has no event for its end
            assert (lease.is_sure, lease.is_late) == (False, True)
            at = time.monotonic()
            await (store.scheduler.renew([lease]) if renews else _write(lease))
            assert lease.is_sure or time.monotonic() - at > 0.2  # a slow machine may take a lease's time


async def _write(lease: HeldLease) -> None:
    lease.emit("model:1", result=b"said")
    await lease.flush()


async def test_attempts_that_began_and_wrote_no_effect_are_counted(one: Store, other: Store, raw: Raw) -> None:
    await stores.submit(one, "c")
    counts = []
    for begins, name in ((True, ""), (False, ""), (True, ""), (True, "model:1"), (True, "")):
        (lease,) = await (stores.claim(one) if begins else one.scheduler.claim({stores.AGENT: stores.KIND}, 1))
        counts.append(lease.crashes)
        if name:
            await stores.emit(raw, lease, name)
        stores.expire_lease(raw, "c")
        assert await other.scheduler.sweep() == 1
    assert counts == [0, 1, 1, 2, 0]
    assert (await stores.claim_one(other)).crashes == 1


async def test_a_process_alone_with_the_store_takes_all_leases_at_its_start(socket_path: Path, raw: Raw) -> None:
    assert raw.ping()
    async with stores.open_replica(socket_path) as dead:
        await stores.begin(dead, "c")
    async with stores.open_replica(socket_path) as other:
        assert await stores.claim(other) == []
    async with stores.open_replica(socket_path, ours_alone=True) as alone:
        assert (await stores.claim_one(alone)).attempt == 2


async def test_a_process_that_had_lost_the_store_spares_expired_turns(one: Store, other: Store, raw: Raw) -> None:
    await stores.begin(one, "c")
    raw.client_kill_filter(_type="normal", skipme=True)
    for _ in range(2):  # the report of the loss is sent behind the first command that waited
        while (await one.scheduler.queues([stores.AGENT])).silent:
            pass
    stores.expire_lease(raw, "c")
    await other.scheduler.sweep()
    assert (await stores.claim_one(other)).crashes == 0


async def test_a_turn_waits_although_its_last_writes_were_sent_meanwhile(one: Store, raw: Raw) -> None:
    lease = await stores.begin(one, "c")
    raw.config_resetstat()
    raw.config_set("maxmemory", 1)
    lease.emit("a", result=b"1")
    lease.send()  # its timer goes before that of the suspend
    ending = asyncio.create_task(lease.suspend(stores.waiting()))
    await stores.wait_until_async(lambda: stores.refusals(raw) > 3)
    raw.config_set("maxmemory", 0)
    assert await asyncio.wait_for(ending, PATIENCE_S)
    assert (raw.zcard(stores.LEASES), stores.event_names_of(raw, "c")) == (0, ["turn.queued", "turn.waiting"])


async def test_answers_are_recorded_once_though_two_callers_give_them(one: Store, other: Store, raw: Raw) -> None:
    lease = await stores.begin(one, "c")
    assert await lease.suspend(stores.waiting())
    assert (raw.zcard(stores.LEASES), await stores.claim(other)) == (0, [])
    seen: list[bool] = []

    async def accept(turn: Turn, waits: bool) -> list[Answer]:
        seen.append(waits)
        if len(seen) == 1:
            first = await other.turns.answer(stores.ref_of("c"), 1, lambda *_: _given(Answer("r", "reject")))
            assert first.requests == ()
        return [Answer("r")] if turn.requests else []

    await one.turns.answer(stores.ref_of("c"), 1, accept)
    assert seen == [True, False]
    again = await stores.claim_one(other)
    assert len([name for name in (await again.load_replay_state()).effects if name.startswith("answer")]) == 1
    assert stores.event_names_of(raw, "c").count("input.answered") == 1


async def _given(answer: Answer) -> list[Answer]:
    return [answer]


async def test_a_sweep_after_a_gap_of_its_own_takes_nothing(one: Store, other: Store, raw: Raw) -> None:
    lease = await stores.begin(one, "c")
    assert await other.scheduler.sweep() == 0
    raw.set(stores.BEAT, int(time.time() * 1e6 - stores.LEASE_S * 1e6 * 0.6))
    stores.expire_lease(raw, "c")
    assert await other.scheduler.sweep() == 0
    left_s = raw.zscore(stores.LEASES, str(stores.ref_of("c"))) / 1e6 - time.time()
    assert stores.LEASE_S * 0.9 < left_s <= stores.LEASE_S + 1
    assert await other.scheduler.sweep() == 0
    await lease.commit(stores.DONE)
    assert raw.zcard(stores.LEASES) == 0


async def test_no_lease_lasts_as_long_as_the_stores_clock_went_back(one: Store, other: Store, raw: Raw) -> None:
    await stores.begin(one, "c")
    two_hours_on = int((time.time() + 7200) * 1e6)
    raw.set(stores.BEAT, two_hours_on)
    raw.zadd(stores.LEASES, {str(stores.ref_of("c")): two_hours_on}, xx=True)
    assert await other.scheduler.sweep() == 0
    assert raw.zscore(stores.LEASES, str(stores.ref_of("c"))) / 1e6 - time.time() < stores.LEASE_S + 1


async def test_a_full_store_renews_leases_and_deletes_what_has_expired(one: Store, other: Store, raw: Raw) -> None:
    lease = await stores.begin(one, "c")
    await one.conversations.create(stores.ref_of("old"), stores.AGENT, ConversationFields({}, ttl_s=1e-6))
    stores.expire_lease(raw, "c")
    raw.config_set("maxmemory", 1)
    await one.scheduler.renew([lease])
    assert await other.scheduler.sweep() == 0
    raw.config_set("maxmemory", 0)
    assert not raw.hexists(stores.key_of("conversation", "old"), "agent")


async def test_a_turn_that_is_handed_back_waits_again_and_counts_no_attempt(one: Store, other: Store, raw: Raw) -> None:
    await stores.submit(one, "c")
    (lease,) = await one.scheduler.claim({stores.AGENT: stores.KIND}, 1)  # not begun
    await one.scheduler.hand_back(lease)
    assert raw.zcard(stores.LEASES) == 0
    assert (await one.turns.turn(stores.ref_of("c"), 1)).status == "queued"
    again = await stores.claim_one(other)
    assert (again.turn.number, again.attempt) == (1, 1)
    with pytest.raises(LeaseLostError):
        await lease.commit(stores.DONE)
    await again.commit(stores.DONE)


async def test_a_repeated_key_writes_nothing(one: Store, raw: Raw) -> None:
    lease = await stores.begin(one, "c")
    first = stores.emit_raw(raw, lease, stores.entry("a", 0, b"step", events=2), stores.entry("b", 1, b"step"))
    others = [stores.entry("a", 0, b"other", events=2), stores.entry("b", 1, b"other"), stores.entry("c", events=1)]
    again = stores.emit_raw(raw, lease, *others)
    assert (first, again) == (["ok", [2, 3]], ["ok", [0, 0, 4]])
    assert raw.lrange(stores.key_of("steps", "c", 0), 0, -1) == ["step", "step"]
    assert len(stores.event_names_of(raw, "c")) == 4


async def test_a_step_behind_a_gap_is_refused_and_can_come_later(one: Store, raw: Raw) -> None:
    lease = await stores.begin(one, "c")
    assert stores.emit_raw(raw, lease, stores.entry("a", 0, b"0"))[0] == "ok"
    assert stores.emit_raw(raw, lease, stores.entry("c", 2, b"2", events=1), stores.entry("d", 3, b"3"))[0] == "gap"
    assert raw.lrange(stores.key_of("steps", "c", 0), 0, -1) == ["0"]
    assert stores.event_names_of(raw, "c") == ["turn.queued"]
    whole = [stores.entry(name, index, b"%d" % index, events=index == 2) for index, name in enumerate("abcd")]
    assert stores.emit_raw(raw, lease, *whole, serial=9) == ["behind"]
    assert stores.emit_raw(raw, lease, *whole) == ["ok", [2]]
    assert raw.lrange(stores.key_of("steps", "c", 0), 0, -1) == ["0", "1", "2", "3"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["its connections break", "it refuses"])
async def test_writes_survive_a_server_while(one: Store, raw: Raw, how: str) -> None:
    lease = await stores.begin(one, "c")
    for number in range(60):
        if how == "it refuses" and number % 10 in {3, 5}:
            raw.config_set("maxmemory", 1 if number % 10 == 3 else 0)
        lease.emit(f"step:{number}", step=stores.packed_step(str(number)), events=[TurnStarted(1, 0.0)])
        lease.send()
        await asyncio.sleep(0)
        if how == "its connections break" and number % 10 == 5:
            raw.client_kill_filter(_type="normal", skipme=True)
    await asyncio.wait_for(lease.flush(), PATIENCE_S)
    raw.config_resetstat()
    raw.config_set("maxmemory", 1 if how == "it refuses" else 0)
    ending = asyncio.create_task(lease.commit(stores.DONE))
    if how == "it refuses":
        await stores.wait_until_async(lambda: stores.refusals(raw) > 2)
        assert not ending.done()
        raw.config_set("maxmemory", 0)
    assert (await ending).outcome == stores.DONE
    assert await stores.step_texts(one, "c") == [str(number) for number in range(60)]
    assert stores.event_names_of(raw, "c") == ["turn.queued", *["turn.started"] * 60, "turn.finished"]


def test_a_defect_of_a_script_is_not_taken_for_damaged_data(raw: Raw) -> None:
    raw.rpush("list", "one")
    errors = {}
    for source in (
        "return nil .. 'x'",
        "local function deep() return 1 + deep() end return deep()",
        "return redis.call('GET', 'list')",
        "return redis.call('LSET', 'list', 7, 'x')",
        "return redis.call('LSET', 'no list', 0, 'x')",
        "return redis.call('LSET', 'list', 'x', 'x')",
        "return redis.call('ZADD', 'sorted', 'x', 'x')",
        "redis.call('HSET', 'hash', 'x', 'y') return redis.call('HINCRBY', 'hash', 'x', 1)",
        "redis.call('HSET', 'hash', 'x', '9223372036854775807') return redis.call('HINCRBY', 'hash', 'x', 1)",
        "error({err = 'DAMAGED x'})",
    ):
        with pytest.raises(ResponseError) as raised:
            raw.eval(source, 0)
        errors[source] = type(as_service_error("read", raised.value))
    assert [*errors.values()] == [StoreUnavailableError] * 2 + [SealBrokenError] * 8, errors


async def test_a_silent_log_gives_a_sign_of_life_in_time(one: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits grow: the sign must come before a wait that would be too long. Times are a tenth of the real ones."""
    for name, seconds in {"REREAD_S": 0.15, "LONGEST_REREAD_S": 1.2, "SILENCE_S": 1.4}.items():
        monkeypatch.setattr(turn_log, name, seconds)
    await stores.submit(one, "c")
    with one.turns.reader(stores.ref_of("c"), reads_log=True, all_events=True) as reader:
        events = reader.follow(1)
        first = await anext(events)
        assert first
        assert first.seq == 1
        too_late = asyncio.create_task(asyncio.sleep(1.6))
        assert await anext(events) is None
        assert not too_late.done()
        too_late.cancel()
        await events.aclose()


async def test_the_many_chunks_of_a_step_become_valid_together_wherever_its_worker_dies(
    one: Store, other: Store, raw: Raw
) -> None:
    before: dict[str, bytes | None] = {":v0": b"old", ":v1": b"old"}
    after: dict[str, bytes | None] = {":v0": None} | {f":v{number}": b"new" for number in range(1, 2_010)}
    written = total = 1
    while written <= total:
        name = f"large{written}"
        lease = await stores.begin(one, name)
        for key, chunks in (("step:1", before), ("step:2", after)):
            lease.emit(key, result=b"done", step=replace(stores.packed_step(key), variables=chunks))
        batches = lease._writes.take_unsent()  # noqa: SLF001 - a worker may die after each write
        writes = [write for batch in batches for write in batch]
        total = len(writes)
        for write in writes[:written]:
            assert len(write.arguments) <= MOST_ARGUMENTS
            stores.emit_raw(raw, lease, write.arguments, serial=write.serial)
        lease.lose()
        stores.expire_lease(raw, name)
        await other.scheduler.sweep()
        taken = await stores.claim_one(other)
        steps = len((await taken.load_replay_state()).steps)
        await taken.commit(stores.DONE)
        _, variables = await one.history.variables(stores.ref_of(name))
        expected = [{}, before, before | after][steps]
        assert variables == {field: chunk for field, chunk in expected.items() if chunk}, written
        assert set(raw.hkeys(stores.key_of("variables", name, 0))) == {"", *variables}, written
        written += 1
    assert (steps, total > 10) == (2, True)
