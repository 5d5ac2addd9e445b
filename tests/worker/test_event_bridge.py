"""The bridge between an agent's thread and the lease of its turn."""

import asyncio
import threading

import pytest

from smolsessions.core.events import MessageDelta, MessageRestarted, StepPlace
from smolsessions.core.memories import PackedStep
from smolsessions.store import seal
from smolsessions.store.seal import compress
from smolsessions.store.store import Store
from smolsessions.store.turns import turn_memory
from smolsessions.store.turns.lease import HeldLease
from smolsessions.worker import event_bridge
from smolsessions.worker.event_bridge import JOIN_S, MAX_BATCH, MAX_QUEUED, LoopEventBridge
from tests.support.stores import (
    DONE,
    Raw,
    begin,
    claim_one,
    event_names_of,
    key_of,
    read_events,
    ref_of,
    submit,
    wait_until_async,
)
from tests.support.waiting import PATIENCE_S

HERE = StepPlace("1", 1, "agent", None, 1)
RESTARTED = MessageRestarted(HERE, "1.m1")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let events without a reader wait longer than a test."""
    monkeypatch.setattr(event_bridge, "HOLD_S", 60)


async def begun(store: Store, *, can_wait: bool = True) -> tuple[HeldLease, LoopEventBridge]:
    lease = await begin(store, "c")
    bridge = LoopEventBridge(lease)
    bridge.begin(1, can_wait=can_wait)
    return lease, bridge


@pytest.mark.parametrize("can_wait", [True, False])
async def test_a_turn_handed_back_keeps_its_start(one: Store, other: Store, raw: Raw, can_wait: bool) -> None:
    lease, bridge = await begun(one, can_wait=can_wait)
    bridge.emit(None, effect=("model:1", b"sealed"))
    bridge.request_stop("drained")
    bridge.flush(("begun:tool:1", b""))  # comes too late
    bridge.close()
    await lease.flush()
    assert {*raw.hkeys(key_of("journal", "c", 1))} == {"started:1", "model:1"}
    await one.scheduler.hand_back(lease)
    again = await claim_one(other)
    assert again.attempt == 2
    await again.load_replay_state()
    await again.commit(DONE)
    assert event_names_of(raw, "c") == ["turn.queued", "turn.started", "turn.finished"]


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["here", "elsewhere"])
async def test_a_new_reader_gets_waiting_events_and_later_ones(one: Store, other: Store, is_elsewhere: bool) -> None:
    lease, bridge = await begun(one)
    await lease.flush()
    assert not lease.watched
    reading = other if is_elsewhere else one
    async with asyncio.timeout(PATIENCE_S):
        with reading.turns.reader(ref_of("c"), reads_log=True, all_events=True) as reader:
            events = reader.follow(1)
            found = [await anext(events) for _ in range(2)]
            bridge.emit(RESTARTED)
            found.append(await anext(events))
    assert [logged and logged.event.type for logged in found] == ["turn.queued", "turn.started", "message.restarted"]
    bridge.close()


@pytest.mark.parametrize("follows", [False, True])
async def test_a_turn_of_another_process_is_watched_on_request(one: Store, other: Store, *, follows: bool) -> None:
    await submit(one, "c", follows=follows)
    lease = await claim_one(other)
    assert lease.watched == follows
    await lease.commit(DONE)


async def test_events_without_a_reader_wait_for_the_commit_except_the_start(one: Store, raw: Raw) -> None:
    lease, bridge = await begun(one)
    await asyncio.to_thread(bridge.emit, RESTARTED, None, ("model:1", b"sealed"))
    await lease.flush()
    assert event_names_of(raw, "c") == ["turn.queued", "turn.started"]
    bridge.close()
    await lease.commit(DONE)
    events = await read_events(one, "c", 1)
    assert [name for _, name in events] == ["turn.queued", "turn.started", "message.restarted", "turn.finished"]


async def test_a_run_that_ends_before_the_loop_wakes_writes_its_start_and_no_last_effect(one: Store, raw: Raw) -> None:
    lease, bridge = await begun(one)
    bridge.emit(RESTARTED, None, ("model:1", b"sealed"))
    bridge.run_has_ended = True
    bridge.close()
    await lease.flush()
    assert raw.hkeys(key_of("journal", "c", 1)) == ["started:1"]
    assert event_names_of(raw, "c") == ["turn.queued", "turn.started"]
    await lease.commit(DONE)
    events = await read_events(one, "c", 1)
    assert [name for _, name in events] == ["turn.queued", "turn.started", "message.restarted", "turn.finished"]


async def test_large_parts_are_compressed_in_the_agents_thread(one: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    large, threads = [b"x" * 2**21 + b"%d" % number for number in range(4)], list[int]()

    def noted(data: bytes) -> bytes:
        if len(data) >= 2**21:
            threads.append(threading.get_ident())
        return compress(data)

    for module in (seal, turn_memory):
        monkeypatch.setattr(module, "compress", noted)
    lease, bridge = await begun(one)
    step = PackedStep("action", 1, large[0], {"0" * 32: large[1]}, {"v": large[2]})
    await asyncio.to_thread(bridge.emit, RESTARTED, step, ("tool:1", large[3]))
    await lease.flush()
    bridge.close()
    assert len(threads) == 4
    assert threading.get_ident() not in threads


async def test_events_keep_their_order_and_only_deltas_of_one_message_become_one(one: Store) -> None:
    lease, bridge = await begun(one)

    def say() -> None:
        bridge.emit(MessageDelta(HERE, "1.m1", "thought", "a"))
        bridge.emit(MessageDelta(HERE, "1.m1", "thought", "b"))
        bridge.emit(MessageDelta(HERE, "1.m1", "code", "c"))
        bridge.emit(RESTARTED)
        bridge.emit(MessageDelta(HERE, "1.m1", "code", "d"))

    await asyncio.to_thread(say)
    bridge.close()
    bridge.emit(RESTARTED)  # too late
    await lease.commit(DONE)
    with one.turns.reader(ref_of("c"), reads_log=True, all_events=True) as reader:
        events = [logged.event async for logged in reader.follow(1) if logged]
    assert [getattr(event, "text", event.type) for event in events[2:-1]] == ["ab", "c", "message.restarted", "d"]


@pytest.mark.parametrize("is_silent", [False, True], ids=["slow loop", "silent store"])
async def test_a_thread_that_emits_faster_than_the_loop_writes_waits_for_it(
    one: Store, raw: Raw, is_silent: bool
) -> None:
    lease, bridge = await begun(one)
    count = 2 * MAX_QUEUED * MAX_BATCH if is_silent else 3 * MAX_QUEUED

    def emit_all() -> None:
        for _ in range(count):
            bridge.emit(RESTARTED)

    thread = threading.Thread(target=emit_all)
    if is_silent:
        raw.client_pause(600_000, all=False)  # writes
    thread.start()
    if is_silent:
        await wait_until_async(lambda: lease.backlog > MAX_QUEUED or not thread.is_alive())
    thread.join(0.3)  # the loop stands still meanwhile
    assert thread.is_alive()
    if is_silent:
        await asyncio.sleep(5 * JOIN_S)  # the bridge looks again
        assert lease.backlog <= MAX_QUEUED + 1
        raw.client_unpause()
    await asyncio.to_thread(thread.join)
    bridge.close()
    await lease.commit(DONE)
    assert [name for _, name in await read_events(one, "c", 1)].count("message.restarted") == count


async def test_the_first_reason_to_stop_counts_and_frees_a_waiting_thread(one: Store, raw: Raw) -> None:
    _, bridge = await begun(one)
    raw.client_pause(600_000, all=False)  # writes
    flushing = asyncio.create_task(asyncio.to_thread(bridge.flush, ("tool:1.1:echo:1", b"")))
    await asyncio.sleep(0.2)
    assert not flushing.done()
    bridge.request_stop("deadline")
    bridge.request_stop("cancelled")
    async with asyncio.timeout(PATIENCE_S / 4):
        await flushing
    assert (bridge.reason, bridge.stop_requested, bridge.hands_over) == ("deadline", True, False)
    raw.client_unpause()
    bridge.close()
