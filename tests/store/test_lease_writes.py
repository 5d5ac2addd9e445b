"""Steps and events that a lease writes: each is stored once, whatever happens to the connection or the server."""

import asyncio

import pytest
from redis.exceptions import ResponseError

from smolsessions.core.errors import (
    SealBrokenError,
    StoreUnavailableError,
)
from smolsessions.core.events import TurnEnded, TurnStarted
from smolsessions.store.scripts.loader import as_service_error
from smolsessions.store.store import Store
from tests.support.stores import (
    DONE,
    Raw,
    claim_one,
    emit,
    emit_raw,
    entry,
    event_names_of,
    key_of,
    packed_step,
    ref_of,
    refusals,
    step_texts,
    submit,
    wait_until_async,
)


async def test_a_repeated_key_writes_nothing(stores: tuple[Store, Store], raw: Raw) -> None:
    one, _ = stores
    await submit(one, "c")
    lease = await claim_one(one)
    first = emit_raw(raw, lease, entry("a", 0, b"step", events=2), entry("b", 1, b"step"))
    again = emit_raw(raw, lease, entry("a", 0, b"other", events=2), entry("b", 1, b"other"), entry("c", events=1))
    assert (first, again) == (["ok", [2, 3]], ["ok", [0, 0, 4]])
    assert raw.lrange(key_of("steps", "c", 0), 0, -1) == ["step", "step"]
    assert len(event_names_of(raw, "c")) == 4


async def test_a_step_behind_a_gap_is_refused_and_can_come_later(stores: tuple[Store, Store], raw: Raw) -> None:
    one, _ = stores
    await submit(one, "c")
    lease = await claim_one(one)
    assert emit_raw(raw, lease, entry("a", 0, b"0"))[0] == "ok"
    assert emit_raw(raw, lease, entry("c", 2, b"2", events=1), entry("d", 3, b"3"))[0] == "gap"
    assert raw.lrange(key_of("steps", "c", 0), 0, -1) == ["0"]
    assert event_names_of(raw, "c") == ["turn.queued"]
    whole = [entry("a", 0, b"0"), entry("b", 1, b"1"), entry("c", 2, b"2", events=1), entry("d", 3, b"3")]
    assert emit_raw(raw, lease, *whole) == ["ok", [2]]
    assert raw.lrange(key_of("steps", "c", 0), 0, -1) == ["0", "1", "2", "3"]


async def test_writes_survive_connections_that_break(stores: tuple[Store, Store], raw: Raw) -> None:
    one, _ = stores
    await submit(one, "c")
    lease = await claim_one(one)
    for number in range(60):
        lease.emit(f"step:{number}", step=packed_step(str(number)), events=[TurnStarted(1, 0.0)])
        lease.send()
        await asyncio.sleep(0)
        if number % 10 == 5:
            raw.client_kill_filter(_type="normal", skipme=True)
    await lease.commit(DONE)
    assert await step_texts(one, "c") == [str(number) for number in range(60)]
    assert event_names_of(raw, "c") == ["turn.queued", *["turn.started"] * 60, "turn.finished"]


async def test_writes_survive_a_server_that_refuses_for_a_while(stores: tuple[Store, Store], raw: Raw) -> None:
    one, _ = stores
    await submit(one, "c")
    lease = await claim_one(one)
    for number in range(60):
        if number % 10 in {3, 5}:
            raw.config_set("maxmemory", 1 if number % 10 == 3 else 0)
        lease.emit(f"step:{number}", step=packed_step(str(number)), events=[TurnStarted(1, 0.0)])
        lease.send()
        await asyncio.sleep(0)
    await lease.commit(DONE)
    assert await step_texts(one, "c") == [str(number) for number in range(60)]
    assert event_names_of(raw, "c") == ["turn.queued", *["turn.started"] * 60, "turn.finished"]


async def test_the_end_of_a_turn_waits_while_the_store_refuses_and_loses_no_step(
    stores: tuple[Store, Store], raw: Raw
) -> None:
    one, other = stores
    await submit(one, "c")
    lease = await claim_one(one)
    await emit(raw, lease, "step:1", packed_step("before"))
    raw.config_resetstat()
    raw.config_set("maxmemory", 1)
    try:
        lease.emit("step:2", step=packed_step("refused"), events=[TurnStarted(1, 0.0)])
        ending = asyncio.create_task(lease.commit(DONE))
        await wait_until_async(lambda: refusals(raw) > 2)
        assert not ending.done()
    finally:
        raw.config_set("maxmemory", 0)
    assert (await ending).outcome == DONE
    assert (await other.turns.turn(ref_of("c"), 1)).status == "finished"
    assert await step_texts(other, "c") == ["before", "refused"]
    assert event_names_of(raw, "c")[-1] == "turn.finished"
    assert await submit(other, "c") == 2
    (await claim_one(other)).check_readable()


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


async def test_every_reader_sees_every_event_once_wherever_it_was_written(
    stores: tuple[Store, Store], raw: Raw
) -> None:
    async def read(store: Store) -> list[tuple[int, str]]:
        with store.turns.reader(ref_of("c"), looks=False, wants_all=True) as reader:
            ready.set()
            return [(logged.seq, logged.event.type) async for logged in reader.follow(1) if logged]

    await submit(stores[0], "c")
    ready = asyncio.Event()
    tasks = []
    for store in (*stores, *stores):
        tasks.append(asyncio.create_task(read(store)))
        await ready.wait()
        ready.clear()
    lease = await claim_one(stores[1])
    for number in range(20):
        lease.emit(str(number), events=[TurnStarted(1, 0.0)])
        lease.send()
        await asyncio.sleep(0)
    ended = await lease.commit(DONE)
    expected = [(1, "turn.queued"), *((number, "turn.started") for number in range(2, 22)), (22, "turn.finished")]
    assert await asyncio.gather(*tasks) == [expected] * 4
    raw.delete(key_of("log", "c", 1))
    with stores[0].turns.reader(ref_of("c"), looks=False, wants_all=True) as reader:
        assert [logged.event async for logged in reader.follow(1, after=3) if logged] == [TurnEnded(ended)]
