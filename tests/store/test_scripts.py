"""The Lua scripts through the store's own interface, on a real server: leases, fences, queues, and who writes."""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
import threading
import time
from collections import defaultdict
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from redis import Redis
from redis.exceptions import ResponseError

from smolsessions.core.errors import (
    BusyError,
    ConversationExistsError,
    ConversationNotFoundError,
    IdempotencyKeyReusedError,
    LeaseLostError,
    OtherAgentError,
    OverloadedError,
    SealBrokenError,
    StoreUnavailableError,
    TooManyTurnsError,
    TurnNotFoundError,
)
from smolsessions.core.events import TurnEnded, TurnStarted
from smolsessions.core.records import (
    MAX_CRASHES,
    AgentName,
    AgentVersion,
    ConversationFields,
    IdempotentRequest,
    Outcome,
    Owner,
    PackedStep,
    Ref,
    Timing,
    Turn,
    TurnInput,
    TurnOptions,
)
from smolsessions.store import codec
from smolsessions.store.connection.servers import Address
from smolsessions.store.embedded.server import embedded_server
from smolsessions.store.scripts.loader import as_service_error, script
from smolsessions.store.seal import Sealer, new_key, parse_keys
from smolsessions.store.store import Options, Store, open_store
from tests.support.played import Ended, Played, Ready, Wish, owner_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from pathlib import Path

    from smolsessions.core.records import OnBusy
    from smolsessions.store.turns.lease import HeldLease

T = TypeVar("T")
Raw = Any  # redis-py annotates the answers of both its clients at once
AGENT = AgentName("scripted")
KIND = "0123456789abcdef"
LEASE_S = 60.0
LOG_TTL_S = 60
ID_REUSE_S = 90
DONE = Outcome("finished", reply="done")
PARTITION = "{p000}"
LEASES = f"{PARTITION}:leases"
BEAT = f"{PARTITION}:beat"
READY = f"{PARTITION}:ready:{AGENT}"
OWNERS = f"{PARTITION}:owners:{AGENT}"
ALONE = f"{PARTITION}:alone"
AT_REST = {*"conversation log logs longlogs turns steps images variables moments old oldest".split()}
MOST_WAITING = 3  # of the replicas that do whatever
SEALER = Sealer(parse_keys(new_key()))


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with embedded_server(tmp_path_factory.mktemp("scripts")) as server:
        yield server.socket_path


@pytest.fixture
def raw(socket_path: Path) -> Iterator[Raw]:
    """Give a client beside the service, on an empty store that somebody has just swept."""
    with Redis(unix_socket_path=str(socket_path), decode_responses=True, encoding_errors="surrogateescape") as client:
        client.flushall()
        client.set(BEAT, int(time.time() * 1e6))
        yield client


@pytest.fixture(scope="module")
def sealer() -> Sealer:
    return SEALER


@pytest.fixture
async def stores(socket_path: Path, raw: Raw, sealer: Sealer) -> AsyncIterator[tuple[Store, Store]]:
    """Give the stores of two replicas."""
    assert raw.ping()
    async with opened(socket_path, sealer) as one, opened(socket_path, sealer) as other:
        yield one, other


@asynccontextmanager
async def opened(
    socket_path: Path, sealer: Sealer, *, max_waiting: int = 100, max_queued: int = 1000, log_ttl_s: int = LOG_TTL_S
) -> AsyncIterator[Store]:
    options = Options(
        lease_s=LEASE_S,
        log_ttl_s=log_ttl_s,
        id_reuse_s=ID_REUSE_S,
        max_waiting=max_waiting,
        max_queued=max_queued,
    )
    async with open_store(Address(f"unix://{socket_path}"), sealer, options, lambda: None) as store:
        yield store


def ref_of(conversation: str) -> Ref:
    """Return the reference of `OWNER/ID`; without an owner it is the local one's."""
    owner, _, name = conversation.rpartition("/")
    return Ref(Owner(owner or "local"), name)


def key(kind: str, conversation: str, *more: object) -> str:
    return ":".join([PARTITION, kind, str(ref_of(conversation)), *map(str, more)])


def version(agent: AgentName) -> AgentVersion:
    return AgentVersion(agent, "ToolCallingAgent", "1.26.0")


async def submit(
    store: Store,
    conversation: str,
    agent: AgentName = AGENT,
    *,
    asked: bool = True,
    new: bool = True,
    on_busy: OnBusy = "reject",
    once: IdempotentRequest | None = None,
) -> int:
    turn = Turn(ref_of(conversation), 0, version(agent), "hello", TurnOptions(), Timing(time.time()))
    accepted, _ = await store.turns.submit(
        turn, TurnInput(), create={} if new else None, asked=asked, version_of=version, on_busy=on_busy, once=once
    )
    return accepted.number


async def claim(store: Store, *agents: AgentName, most: int = 10) -> list[HeldLease]:
    """Claim and begin, as a worker does."""
    leases = await store.scheduler.claim(dict.fromkeys(agents or [AGENT], KIND), most)
    for lease in leases:
        lease.emit(f"started:{lease.attempt}")
        with suppress(SealBrokenError):
            await lease.flush()
    return leases


async def claim_one(store: Store) -> HeldLease:
    (lease,) = await claim(store)
    return lease


def a_step(text: str = "step", turn: int = 1) -> PackedStep:
    return PackedStep("action", turn, text.encode(), {"ab" * 16: b"pixels"})


async def emit(raw: Raw, lease: HeldLease, name: str, step: PackedStep | None = None) -> None:
    """Write, and see that it was answered: by what is stored, or by the lease being lost."""
    lease.emit(name, result=b"done", step=step, events=[TurnStarted(lease.attempt, 0.0)])
    journal = key("journal", lease.turn.ref.id, lease.turn.number)
    await until(lambda: lease.lost or bool(raw.hexists(journal, name)))


async def until(condition: Callable[[], bool], within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "this did not come to pass"
        await asyncio.sleep(0)


def expire(raw: Raw, conversation: str) -> None:
    """Let a lease be over: its time lies in the past."""
    raw.zadd(LEASES, {str(ref_of(conversation)): 1}, xx=True)
    assert raw.zscore(LEASES, str(ref_of(conversation))) == 1


def log_of(raw: Raw, conversation: str, turn: int = 1) -> list[str]:
    """Give the names of a turn's events, in order, whether the log is packed or not."""
    entries = [entry.partition("\n") for entry in raw.lrange(key("log", conversation, turn), 0, -1)]
    if entries and entries[0][0] == "packed":
        blob = entries[0][2].encode(errors="surrogateescape")
        packed = codec.unpack_events(SEALER.open(blob, str(ref_of(conversation)), "log", turn))
        return [*(event.type for event in packed if event), *(name for name, _, _ in entries[1:])]
    return [name for name, _, _ in entries]


def steps_of(raw: Raw, conversation: str) -> int:
    return int(raw.llen(key("steps", conversation, 0)))


async def texts_of(store: Store, conversation: str) -> list[str]:
    _, page, _ = await store.conversations.steps(ref_of(conversation), 0, 100)
    return [step.data.decode() for step in page.items]


async def test_an_old_fence_never_writes(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await submit(one, "c")
    old = await claim_one(one)
    await emit(raw, old, "step:1", a_step("kept"))
    expire(raw, "c")
    assert await other.scheduler.sweep() == 1
    new = await claim_one(other)
    assert (old.attempt, new.attempt, old.fence == new.fence) == (1, 2, False)
    before = raw.dump(key("conversation", "c")), log_of(raw, "c"), steps_of(raw, "c")
    await emit(raw, old, "step:2", a_step("lost"))
    with pytest.raises(LeaseLostError):
        await old.commit(DONE)
    await one.scheduler.hand_back(old)
    assert old.lost
    await one.scheduler.renew([old])
    assert (raw.dump(key("conversation", "c")), log_of(raw, "c"), steps_of(raw, "c")) == before
    await new.load_replay_state()
    await new.commit(DONE)
    assert await texts_of(one, "c") == ["kept"]
    with pytest.raises(LeaseLostError):
        await old.commit(DONE)


async def test_a_commit_that_is_asked_twice_is_done_once(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await submit(one, "c")
    lease = await claim_one(one)
    await emit(raw, lease, "step:1", a_step())
    await lease.commit(DONE)
    assert await submit(other, "c") == 2
    await lease.commit(DONE)
    assert log_of(raw, "c") == ["turn.queued", "turn.started", "turn.finished"]
    assert raw.lrange(key("queue", "c"), 0, -1) == ["2"]
    assert steps_of(raw, "c") == 1
    second = await claim_one(other)
    await lease.commit(DONE)
    await emit(raw, second, "step:1", a_step("second", 2))
    await second.commit(DONE)
    with pytest.raises(LeaseLostError):
        await lease.commit(DONE)
    assert await texts_of(one, "c") == ["step", "second"]


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_task_that_no_step_followed_is_kept(stores: tuple[Store, Store], raw: Raw, *, crashes: bool) -> None:
    one, other = stores
    for number, more in enumerate([["step"], [], ["another"]], 1):
        await submit(one, "c", on_busy="enqueue")
        lease = await claim_one(one)
        await emit(raw, lease, "task", replace(a_step(f"task {number}", number), type="task"))
        for text in more:
            await emit(raw, lease, text, a_step(text, number))
        if crashes:
            expire(raw, "c")
            await other.scheduler.sweep()
            lease = await claim_one(other)
            await lease.load_replay_state()
        await lease.commit(DONE)
        assert lease.kept_steps == len(more)
    assert await texts_of(one, "c") == ["task 1", "step", "task 2", "task 3", "another"]
    last = await one.conversations.conversation(ref_of("c"))
    assert last.step_counts == {"task": 3, "action": 2}


async def test_a_repeated_key_writes_nothing(stores: tuple[Store, Store], raw: Raw) -> None:
    one, _ = stores
    await submit(one, "c")
    lease = await claim_one(one)
    first = emit_raw(raw, lease, entry("a", 0, b"step", events=2), entry("b", 1, b"step"))
    again = emit_raw(raw, lease, entry("a", 0, b"other", events=2), entry("b", 1, b"other"), entry("c", events=1))
    assert (first, again) == (["ok", [2, 3]], ["ok", [0, 0, 4]])
    assert raw.lrange(key("steps", "c", 0), 0, -1) == ["step", "step"]
    assert len(log_of(raw, "c")) == 4


async def test_a_step_behind_a_gap_is_refused_and_can_come_later(stores: tuple[Store, Store], raw: Raw) -> None:
    one, _ = stores
    await submit(one, "c")
    lease = await claim_one(one)
    assert emit_raw(raw, lease, entry("a", 0, b"0"))[0] == "ok"
    assert emit_raw(raw, lease, entry("c", 2, b"2", events=1), entry("d", 3, b"3"))[0] == "gap"
    assert raw.lrange(key("steps", "c", 0), 0, -1) == ["0"]
    assert log_of(raw, "c") == ["turn.queued"]
    whole = [entry("a", 0, b"0"), entry("b", 1, b"1"), entry("c", 2, b"2", events=1), entry("d", 3, b"3")]
    assert emit_raw(raw, lease, *whole) == ["ok", [2]]
    assert raw.lrange(key("steps", "c", 0), 0, -1) == ["0", "1", "2", "3"]


def entry(name: str, index: int | str = "", step: bytes = b"", events: int = 0) -> list[Any]:
    return [name, "", "", index, step, 0, 0, events, *(["turn.started", b"sealed"] * events)]


def emit_raw(raw: Raw, lease: HeldLease, *entries: list[Any], serial: int = 2) -> Any:
    """Run emit.lua as it is; number 1 was that the turn started."""
    named: dict[str, str | bytes | int] = {
        "ref": str(lease.turn.ref),
        "turn": lease.turn.number,
        "fence": lease.fence,
        "generation": 0,
        "me": "nobody",
        "lease_us": int(LEASE_S * 1_000_000),
        "serial": serial,
    }
    command = script("emit").command(PARTITION, tuple(item for given in entries for item in given), named)
    return raw.execute_command(*command)


async def test_writes_survive_connections_that_break(stores: tuple[Store, Store], raw: Raw) -> None:
    one, _ = stores
    await submit(one, "c")
    lease = await claim_one(one)
    for number in range(60):
        lease.emit(f"step:{number}", step=a_step(str(number)), events=[TurnStarted(1, 0.0)])
        await asyncio.sleep(0)
        if number % 10 == 5:
            raw.client_kill_filter(_type="normal", skipme=True)
    await lease.commit(DONE)
    assert await texts_of(one, "c") == [str(number) for number in range(60)]
    assert log_of(raw, "c") == ["turn.queued", *["turn.started"] * 60, "turn.finished"]


async def test_writes_survive_a_server_that_refuses_for_a_while(stores: tuple[Store, Store], raw: Raw) -> None:
    one, _ = stores
    await submit(one, "c")
    lease = await claim_one(one)
    for number in range(60):
        if number % 10 in {3, 5}:
            raw.config_set("maxmemory", 1 if number % 10 == 3 else 0)
        lease.emit(f"step:{number}", step=a_step(str(number)), events=[TurnStarted(1, 0.0)])
        await asyncio.sleep(0)
    await lease.commit(DONE)
    assert await texts_of(one, "c") == [str(number) for number in range(60)]
    assert log_of(raw, "c") == ["turn.queued", *["turn.started"] * 60, "turn.finished"]


async def test_the_end_of_a_turn_waits_while_the_store_refuses_and_loses_no_step(
    stores: tuple[Store, Store], raw: Raw
) -> None:
    one, other = stores
    await submit(one, "c")
    lease = await claim_one(one)
    await emit(raw, lease, "step:1", a_step("before"))
    raw.config_resetstat()
    raw.config_set("maxmemory", 1)
    try:
        lease.emit("step:2", step=a_step("refused"), events=[TurnStarted(1, 0.0)])
        ending = asyncio.create_task(lease.commit(DONE))
        await until(lambda: refusals(raw) > 2)
        assert not ending.done()
    finally:
        raw.config_set("maxmemory", 0)
    assert (await ending).outcome == DONE
    assert (await other.turns.turn(ref_of("c"), 1)).status == "finished"
    assert await texts_of(other, "c") == ["before", "refused"]
    assert log_of(raw, "c")[-1] == "turn.finished"
    assert await submit(other, "c") == 2
    (await claim_one(other)).check_readable()


def refusals(raw: Raw) -> int:
    """Give how often the server had no memory."""
    return int(raw.info("errorstats").get("errorstat_OOM", {"count": 0})["count"])


async def test_an_expired_lease_goes_to_another_with_the_steps_that_were_finished(
    stores: tuple[Store, Store], raw: Raw
) -> None:
    one, other = stores
    await submit(one, "c")
    old = await claim_one(one)
    await emit(raw, old, "step:1", a_step("finished"))
    assert await claim(other) == []
    expire(raw, "c")
    assert await claim(other) == []
    assert await one.scheduler.sweep() == 1
    new = await claim_one(other)
    assert (new.turn.number, new.attempt) == (1, 2)
    await new.load_replay_state()
    await emit(raw, new, "step:2", a_step("and on"))
    assert (await new.commit(DONE)).attempts == 2
    assert await texts_of(other, "c") == ["finished", "and on"]
    with pytest.raises(LeaseLostError):
        await old.commit(DONE)


async def test_a_commit_whose_writes_the_store_took_back_leaves_the_turn_to_another(
    stores: tuple[Store, Store], raw: Raw
) -> None:
    one, other = stores
    await submit(one, "c")
    lease = await claim_one(one)
    await emit(raw, lease, "a", a_step())
    raw.hset(key("run", "c", 1), "written", 0)  # as after a failover to a replica that had none of it
    with pytest.raises(LeaseLostError):
        await lease.commit(DONE)
    expire(raw, "c")
    assert await other.scheduler.sweep() == 1
    again = await claim_one(other)
    await again.load_replay_state()
    assert (await again.commit(DONE)).status == "finished"
    assert await texts_of(one, "c") == ["step"]


async def test_a_sweep_after_a_gap_of_its_own_takes_nothing(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await submit(one, "c")
    lease = await claim_one(one)
    assert await other.scheduler.sweep() == 0
    raw.set(BEAT, int(time.time() * 1e6 - LEASE_S * 1e6 * 0.6))
    expire(raw, "c")
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
    expire(raw, "c")
    assert await other.scheduler.sweep() == 0
    await lease.commit(DONE)


async def test_an_expired_lease_that_nobody_swept_can_be_renewed(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await submit(one, "c")
    lease = await claim_one(one)
    expire(raw, "c")
    await one.scheduler.renew([lease])
    lost = [lease.lost]
    assert await other.scheduler.sweep() == 0
    expire(raw, "c")
    assert await other.scheduler.sweep() == 1
    await one.scheduler.renew([lease])
    assert [*lost, lease.lost] == [False, True]
    assert raw.zcard(LEASES) == 0


async def test_a_renewal_that_comes_too_late_for_one_keeps_the_others(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    for name in "abc":
        await submit(one, name)
    leases = await claim(one)
    expire(raw, "b")
    await other.scheduler.sweep()
    await one.scheduler.renew(leases)
    assert [lease.lost for lease in leases] == [False, True, False]
    assert set(raw.zrange(LEASES, 0, -1)) == {"local/a", "local/c"}


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
    assert raw.keys("*:ready:*") + raw.keys("*:share:*") + raw.keys("*:owners:*") == []


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
    raw.hset(key("run", "many/0", 1), "counted", MAX_CRASHES - 1)
    taken = [
        str(lease.turn.ref) for _ in range(2) for lease in await other.scheduler.claim({AGENT: KIND}, 9, idle=True)
    ]
    assert taken == ["many/0", "few/0", "many/1"]


async def test_what_an_older_release_made_ready_is_claimed_and_what_it_took_is_not(
    stores: tuple[Store, Store], raw: Raw
) -> None:
    one, other = stores
    for name in ("many/0", "many/1", "many/2", "few/0", "few/1"):
        await submit(one, name)
    raw.delete(OWNERS, *raw.keys("*:share:*"))  # an older release writes neither
    assert [str(lease.turn.ref) for lease in await claim(other, most=2)] == ["many/0", "few/0"]
    raw.zrem(READY, "many/1")  # as its workers claim
    assert [str(lease.turn.ref) for lease in await claim(other, most=9)] == ["many/2", "few/1"]
    assert raw.keys("*:ready:*") + raw.keys("*:share:*") + raw.keys("*:owners:*") == []


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
    async with opened(socket_path, SEALER, max_queued=100) as store:
        assert [await accepted(owner) for owner in ("a", "b", "c", "d", "e")] == [75, 19, 5, 1, 0]
        await claim(store, most=8)
        assert [await accepted(owner) for owner in ("a", "b", "e")] == [0, 2, 5]


async def test_a_conversation_takes_one_turn_at_a_time(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await submit(one, "c")
    before = {name: raw.dump(name) for name in raw.keys("*local/c*")}
    for store in (one, other):
        with pytest.raises(BusyError) as caught:
            await submit(store, "c")
        assert caught.value.extensions == {"running_turn": 1}
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
        assert submit_raw(raw, number + 1, "sealed again") == ["busy", str(number)]
        assert raw.lrange(key("queue", "c"), 0, -1) == [str(number)]
        assert raw.llen(key("turns", "c")) == number
        assert log_of(raw, "c", number) == ["turn.queued"]
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
    assert submit_raw(raw, 3, "sealed again") == ["busy", "1"]
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
        assert raw.llen(key("turns", f"lost {rounds}")) == 1


def submit_raw(raw: Raw, turn: int, record: str, on_busy: OnBusy = "reject") -> Any:
    """Run submit.lua as it is."""
    named: dict[str, str | bytes | int] = {
        "owner": "local",
        "ref": str(ref_of("c")),
        "agent": AGENT,
        "conversation": "sealed",
        "turn": turn,
        "record": f"{record} {turn}",
        "input": "sealed",
        "event": "sealed",
        "me": "nobody",
        "wake": "",
        "on_busy": on_busy,
        "most_waiting": 2,
        "most_queued": 1000,
        "idem": "",
        "digest": "",
    }
    return raw.execute_command(*script("submit").command(PARTITION, (), named))


async def test_turns_are_accepted_once_where_the_connection_breaks_on_the_way(
    stores: tuple[Store, Store], raw: Raw
) -> None:
    for rounds in range(6):
        tries = [asyncio.create_task(submit(store, f"{rounds} {number}")) for number, store in enumerate(stores)]
        for _ in range(rounds):
            await asyncio.sleep(0)
        raw.client_kill_filter(_type="normal", skipme=True)
        assert await asyncio.gather(*tries) == [1] * len(tries)
        assert [raw.llen(key("turns", f"{rounds} {number}")) for number in range(len(tries))] == [1] * len(tries)


async def test_a_number_that_another_replica_gave_is_not_given_again(stores: tuple[Store, Store]) -> None:
    for number in range(1, 9):
        store = stores[number // 2 % 2]
        assert await submit(store, "c", new=number == 1, asked=number % 2 == 0) == number
        lease = await claim_one(store)
        assert (await lease.commit(DONE)).number == number
    with pytest.raises(OtherAgentError):
        await submit(stores[0], "c", AgentName("other"))


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


async def second_turn(stores: tuple[Store, Store], raw: Raw) -> HeldLease:
    """Give the lease of a second turn with a finished step, behind a first one that is over."""
    await submit(stores[0], "c")
    first = await claim_one(stores[0])
    await emit(raw, first, "step:1", replace(a_step("first"), variables={"x": b"1"}))
    await first.commit(DONE)
    await submit(stores[0], "c")
    second = await claim_one(stores[0])
    await emit(raw, second, "step:1", replace(a_step("second", 2), variables={"x": None, "y": b"2"}))
    return second


def code_of(turn: Turn) -> str | None:
    assert turn.outcome
    return turn.outcome.error.code if turn.outcome.error else None


@pytest.mark.parametrize("heard", [True, False])
async def test_a_turn_that_ends_while_it_is_rolled_back_is_rolled_back(
    stores: tuple[Store, Store], raw: Raw, heard: bool
) -> None:
    one, other = stores
    lease = await second_turn(stores, raw)
    assert await submit(other, "c", on_busy="rollback" if heard else "enqueue") == 3
    if heard:
        assert await lease.stop_reason == "rolled_back"
    else:  # as where the message was lost: the wish stands in the store alone
        raw.hset(key("run", "c", 2), "cancel", "rollback:3")
    assert lease.stop_reason.done() == heard
    ended = await lease.commit(replace(DONE, steps=1, output="x", state="success", dropped_variables=("z",)))
    assert (await lease.commit(DONE)).outcome == ended.outcome  # asked twice it is done once
    assert (ended.status, code_of(ended)) == ("cancelled", "rolled_back")
    assert replace(ended.outcome or DONE, error=None) == Outcome("cancelled")
    assert await texts_of(other, "c") == ["first"]
    assert log_of(raw, "c", 2) == ["turn.queued", "turn.started", "turn.cancelled"]
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
    expire(raw, "c")
    await other.scheduler.sweep()
    assert await submit(one, "c", on_busy="rollback") == 3
    again = await claim_one(other)
    assert await again.stop_reason == "rolled_back"
    past = await again.load_replay_state()
    assert (again.attempt, past.steps) == (2, (b"second",))
    assert code_of(await again.commit(DONE)) == "rolled_back"
    assert await texts_of(one, "c") == ["first"]


@pytest.mark.parametrize(("status", "code"), [("finished", None), ("failed", None), ("cancelled", "interrupted")])
async def test_a_turn_that_ends_by_itself_while_it_is_interrupted_ends_so(
    stores: tuple[Store, Store], raw: Raw, status: Any, code: str | None
) -> None:
    one, other = stores
    lease = await second_turn(stores, raw)
    assert await submit(other, "c", on_busy="interrupt") == 3
    assert await lease.stop_reason == "interrupted"
    ended = await lease.commit(replace(DONE, status=status))
    assert (ended.status, code_of(ended)) == (status, code)
    assert await texts_of(other, "c") == ["first", "second"]
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
    assert code_of(ended) == code
    assert ended.outcome
    assert ended.outcome.error
    assert f"Turn {by} " in ended.outcome.error.message


async def test_turns_that_are_enqueued_at_once_do_not_hinder_each_other(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await submit(one, "c")
    raw.config_resetstat()
    tries = [submit(store, "c", new=False, on_busy="enqueue") for _ in range(25) for store in (one, other)]
    assert sorted(await asyncio.gather(*tries)) == [*range(2, 52)]
    assert raw.info("commandstats")["cmdstat_evalsha"]["calls"] < 4 * len(tries)


async def test_a_renewal_brings_back_why_a_turn_is_to_stop(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    lease = await second_turn(stores, raw)
    one.scheduler.hear_stop(b"", b"local/c\n2")  # an older release's words
    assert await lease.stop_reason == "cancelled"
    raw.client_kill_filter(_type="pubsub")
    await submit(other, "c", on_busy="interrupt")
    await one.scheduler.renew([lease])
    assert code_of(await lease.commit(replace(DONE, status="cancelled"))) == "interrupted"


async def test_what_cannot_be_read_is_not_rolled_back_but_told(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await second_turn(stores, raw)
    raw.hset(key("conversation", "c"), "head", "x" * 60)
    expire(raw, "c")
    await other.scheduler.sweep()
    await submit(one, "c", on_busy="rollback")
    broken = await claim_one(other)
    with pytest.raises(SealBrokenError):
        broken.check_readable()
    assert (await broken.commit(replace(DONE, status="failed"))).status == "failed"
    assert steps_of(raw, "c") == 2
    assert (await claim_one(one)).turn.number == 3


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
    assert (await claim(one), raw.exists(key("queue", "c"))) == ([], 0)


async def test_a_delete_ends_what_runs_and_leaves_a_tombstone(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await submit(one, "c")
    lease = await claim_one(one)
    await emit(raw, lease, "step:1", a_step())
    await other.conversations.delete(ref_of("c"))
    await emit(raw, lease, "step:2", a_step())
    with pytest.raises(LeaseLostError):
        await lease.commit(DONE)
    assert log_of(raw, "c") == ["turn.queued", "turn.started", "turn.cancelled"]
    assert set(raw.keys("*local/c*")) == {key("conversation", "c"), key("log", "c", 1)}
    assert 0 < raw.ttl(key("log", "c", 1)) <= LOG_TTL_S < raw.ttl(key("conversation", "c")) <= ID_REUSE_S
    assert raw.zcard(LEASES) == 0
    for store in stores:
        with pytest.raises(ConversationExistsError):
            await submit(store, "c")
    assert await claim(one) == []


async def test_a_delete_takes_a_waiting_turn_out_of_the_ready_set(stores: tuple[Store, Store], raw: Raw) -> None:
    one, other = stores
    await submit(one, "c")
    await other.conversations.delete(ref_of("c"))
    assert log_of(raw, "c") == ["turn.queued", "turn.cancelled"]
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


async def test_a_claim_passes_over_what_is_gone(stores: tuple[Store, Store], raw: Raw) -> None:
    one, _ = stores
    for name in "abc":
        await submit(one, name)
    raw.delete(key("queue", "a"))
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
        raw.lset(key("turns", "b"), 0, "x" * 60)
    elif what == "input":
        raw.hdel(key("run", "b", 1), "input")
    else:
        raw.hset(key("conversation", "b"), "head", "x" * 60)
    first, broken, last = await claim(one)
    for lease in (first, last):
        lease.check_readable()
        await lease.commit(DONE)
    with pytest.raises(SealBrokenError):
        broken.check_readable()
    await broken.commit(replace(DONE, status="failed"))
    assert log_of(raw, "b")[-1] == "turn.failed"


async def test_a_turn_whose_counter_is_too_large_ends_as_damaged(stores: tuple[Store, Store], raw: Raw) -> None:
    one, _ = stores
    await submit(one, "c")
    raw.hset(key("run", "c", 1), "counted", 101)
    lease = await claim_one(one)
    await lease.commit(replace(DONE, status="failed"))
    assert log_of(raw, "c")[-1] == "turn.failed"


async def test_a_claim_that_cannot_be_opened_is_set_aside_for_good(
    stores: tuple[Store, Store], raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    one, _ = stores
    for name in "bc":
        await submit(one, name)
    raw.lset(key("queue", "b"), 0, 10**16 - 1)  # a number that no turn has
    assert [lease.turn.ref.id for lease in await claim(one)] == ["c"]
    await one.scheduler.all_given_back()
    assert raw.zrange(LEASES, 0, -1) == [str(ref_of("c"))]
    assert not raw.hexists(key("conversation", "b"), "fence")
    await one.scheduler.sweep(all_are_over=True)
    assert [lease.turn.ref.id for lease in await claim(one)] == ["c"]
    assert [record.message for record in caplog.records if "local/b" in record.message] == [
        "b'local/b' is damaged, and no worker looks at it any more"
    ]
    await one.conversations.delete(ref_of("b"))


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_a_delete_finds_long_logs_whose_set_was_damaged(socket_path: Path, raw: Raw, *, is_damaged: bool) -> None:
    async with opened(socket_path, SEALER, log_ttl_s=0) as store:
        await submit(store, "c")
        await submit(store, "c", new=False, on_busy="enqueue")
        await store.turns.cancel(ref_of("c"), 2)
        assert raw.smembers(key("longlogs", "c")) == {"2"}
        raw.set(key("longlogs", "c"), "junk")
        if is_damaged:
            raw.hset(key("run", "c", 1), "counted", "junk")
            raw.hset(key("conversation", "c"), "turns", "junk")
        await store.conversations.delete(ref_of("c"))
    assert [name for name in raw.keys("*local/c*") if raw.ttl(name) == -1] == []


async def test_a_conversation_without_its_time_accepts_no_turn(stores: tuple[Store, Store], raw: Raw) -> None:
    one, _ = stores
    await one.conversations.create(ref_of("c"), AGENT, ConversationFields({}))
    raw.hdel(key("conversation", "c"), "created")
    with pytest.raises(SealBrokenError):
        await submit(one, "c", new=False, once=IdempotentRequest("key", b"digest"))
    assert (raw.llen(key("turns", "c")), raw.zcard(READY)) == (0, 0)


@pytest.mark.parametrize("kind", ["ready", "share", "owners"])
async def test_ready_sets_are_restored_from_each_other(stores: tuple[Store, Store], raw: Raw, kind: str) -> None:
    one, _ = stores
    for name in ("a/1", "b/1", "a/2"):
        await submit(one, name)
    name = {"ready": READY, "owners": OWNERS, "share": f"{PARTITION}:share:{AGENT}:a"}[kind]
    raw.delete(name)
    raw.set(name, "junk")
    found = [str(lease.turn.ref) for lease in await claim(one)]
    assert found == ["a/1", "b/1", "a/2"]
    assert raw.keys(f"{PARTITION}:*:{AGENT}*") == []


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
        errors[source] = type(as_service_error("show", raised.value))
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
        await asyncio.sleep(0)
    ended = await lease.commit(DONE)
    expected = [(1, "turn.queued"), *((number, "turn.started") for number in range(2, 22)), (22, "turn.finished")]
    assert await asyncio.gather(*tasks) == [expected] * 4
    raw.delete(key("log", "c", 1))
    with stores[0].turns.reader(ref_of("c"), looks=False, wants_all=True) as reader:
        assert [logged.event async for logged in reader.follow(1, after=3) if logged] == [TurnEnded(ended)]


@dataclass
class Loop:
    """An event loop in a thread of its own, with the stores of two replicas."""

    socket_path: Path
    sealer: Sealer
    log_ttl_s: int = LOG_TTL_S
    stores: list[Store] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._hold()))
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._left.set)
        self._thread.join(10)

    async def _hold(self) -> None:
        self._loop, self._left = asyncio.get_running_loop(), asyncio.Event()
        open_one = partial(opened, self.socket_path, self.sealer, max_waiting=MOST_WAITING, log_ttl_s=self.log_ttl_s)
        async with open_one() as one, open_one() as other:
            self.stores = [one, other]
            self._ready.set()
            await self._left.wait()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)


class Claim(TypedDict):
    replica: int
    most: int
    idle: bool
    begins: bool


class Writes(TypedDict):
    size: int
    effect: bool
    again: bool


class Machine(RuleBasedStateMachine):
    """Replicas that submit, play, stop, stall, die and delete in any order; `Played` says what must come of it."""

    def __init__(self, loop: Loop, raw: Raw) -> None:
        super().__init__()
        self.loop, self.raw = loop, raw
        # Conversations and keys of an example have names of their own: replicas remember.
        self.era = raw.incr("era")
        if self.era % 10 == 5:
            self.lose_the_way()
        self.played: defaultdict[str, Played] = defaultdict(Played)
        self.ready = Ready()
        self.held: list[HeldLease] = []
        self.kept: dict[str, tuple[IdempotentRequest, Played, int]] = {}
        self.count = 0

    def lose_the_way(self) -> None:
        """Break the replicas' connections, and wait until both are back and have told of it.

        What is lost in that moment, and what had been claimed by then and so is spared, would be as chance has it.
        """
        before = self.listeners()
        self.raw.client_kill_filter(_type="pubsub")
        end = time.monotonic() + 10
        while len(self.listeners() - before) < len(self.loop.stores):
            assert time.monotonic() < end, "the replicas did not come back"
        for store in self.loop.stores:
            for _ in range(2):  # the first may be sent with what they tell, the second is behind it
                self.loop.run(store.scheduler.queues([AGENT]))

    def listeners(self) -> set[str]:
        return {client["id"] for client in self.raw.client_list(_type="pubsub")}

    conversations = st.sampled_from(["local/a", "local/b", "other/c", "other/d"])
    replicas = st.integers(0, 1)
    often = st.sampled_from([True, True, False])
    claims = st.fixed_dictionaries({"replica": replicas, "most": st.integers(1, 3), "idle": often, "begins": often})
    woken = st.none() | claims
    writes = st.fixed_dictionaries({"size": st.integers(1, 3), "effect": often, "again": often})
    late = st.sampled_from([False, False, False, False, True])
    statuses = st.sampled_from(["finished", "failed", "cancelled", "cancelled"])
    busy = st.sampled_from(["reject", "enqueue", "enqueue", "interrupt", "rollback"])
    keys = st.sampled_from(["k", "l"])
    requests = st.sampled_from([b"this", b"this", b"that"])

    def name(self, conversation: str) -> str:
        owner, _, letter = conversation.partition("/")
        return f"{owner}/{self.era}{letter}"

    def lease(self, data: st.DataObject) -> int:
        """Choose one that was claimed, with a bias to those that hold, or held last."""
        holders = [should.holder for should in self.played.values() if should.holder is not None]
        enders = [should.committed_by for should in self.played.values() if should.committed_by is not None]
        chosen: int = data.draw(st.sampled_from([*holders, *holders, *enders, *range(len(self.held))]))
        return chosen

    def of(self, number: int) -> Played:
        return self.played[str(self.held[number].turn.ref)]

    def holds(self, number: int) -> bool:
        return self.of(number).holder == number

    def live(self) -> list[str]:
        return [name for name, should in self.played.items() if should.lives]

    @rule(conversation=conversations, replica=replicas, on_busy=busy, woken=woken)
    def submit(self, conversation: str, replica: int, on_busy: OnBusy, woken: Claim | None) -> None:
        name, store = self.name(conversation), self.loop.stores[replica]
        if self.played[name].deleted:
            with pytest.raises(ConversationExistsError):
                self.loop.run(submit(store, name))
            self.see_that_all_is_over(name, self.played.pop(name))
            self.raw.delete(*self.raw.keys(f"*{name}*"))  # as its times to live would: the id is free
        self.accept(name, submit(store, name, on_busy=on_busy), on_busy)
        for kept in self.kept:
            self.recall_as(kept, replica)
        self.wake(woken)

    @precondition(lambda self: self.live())
    @rule(data=st.data(), replica=replicas, on_busy=busy, key=keys, request=requests)
    def submit_once(self, data: st.DataObject, replica: int, on_busy: OnBusy, key: str, request: bytes) -> None:
        name = data.draw(st.sampled_from(self.live()))
        once = IdempotentRequest(f"{self.era}{key}", name.encode() + request)
        key = f"{owner_of(name)}/{key}"
        work = submit(self.loop.stores[replica], name, on_busy=on_busy, new=False, once=once)
        known, should, number = self.kept.get(key, (None, self.played[name], 0))
        if known is None:
            if self.accept(name, work, on_busy):
                self.kept[key] = (once, self.played[name], self.played[name].turns)
        elif known != once or should is not self.played[name]:
            with pytest.raises(IdempotencyKeyReusedError if known != once else ConversationNotFoundError):
                self.loop.run(work)
        else:
            assert self.loop.run(work) == number

    @precondition(lambda self: self.kept)
    @rule(data=st.data(), replica=replicas, request=st.sampled_from([None, None, b"other"]))
    def recall(self, data: st.DataObject, replica: int, request: bytes | None) -> None:
        self.recall_as(data.draw(st.sampled_from(sorted(self.kept))), replica, request)

    def recall_as(self, key: str, replica: int, request: bytes | None = None) -> None:
        once, should, number = self.kept[key]
        work = self.loop.stores[replica].turns.recall(
            Owner(owner_of(key)), replace(once, request=request or once.request)
        )
        if request or should.deleted:
            with pytest.raises(IdempotencyKeyReusedError if request else ConversationNotFoundError):
                self.loop.run(work)
            return
        turn = self.loop.run(work)
        assert turn
        assert turn.number == number

    def accept(self, name: str, work: Coroutine[Any, Any, int], on_busy: OnBusy) -> bool:
        should = self.played[name]
        if should.queue and on_busy == "reject":
            with pytest.raises(BusyError) as caught:
                self.loop.run(work)
            assert caught.value.extensions == {"running_turn": should.first.number}
            return False
        if len(should.queue) > MOST_WAITING:
            with pytest.raises(TooManyTurnsError):
                self.loop.run(work)
            return False
        should.submit(on_busy)
        accepted = self.loop.run(work)
        assert accepted == should.turns
        if len(should.queue) == 1:
            self.ready.add(name)
        return True

    def wake(self, woken: Claim | None) -> None:
        """Let a worker claim at once, if there is one: what makes work ready wakes them."""
        if woken:
            self.claim_as(**woken)

    @precondition(lambda self: self.live())
    @rule(given=claims)
    def claim(self, given: Claim) -> None:
        self.claim_as(**given)

    def claim_as(self, replica: int, most: int, *, idle: bool, begins: bool) -> None:
        leases = self.loop.run(self.loop.stores[replica].scheduler.claim({AGENT: KIND}, most, idle=idle))
        should = self.ready.claim(replica, most, idle=idle, first=lambda name: self.played[name].first)
        assert [str(lease.turn.ref) for lease in leases] == should
        if self.ready.alone is not None:
            self.raw.persist(ALONE)  # time is the machine's
        for number, lease in enumerate(leases, len(self.held)):
            self.held.append(lease)
            self.take(number, lease)
            if begins:
                self.write(number, f"started:{lease.attempt}")

    @precondition(lambda self: any(self.played[name].first.suspect for name in self.ready.names))
    @rule(replica=replicas, most=st.integers(1, 3))
    def claim_while_busy(self, replica: int, most: int) -> None:
        """Let two workers look that both have something to do: one reserves what is suspect, the other goes past it."""
        for worker in (replica, 1 - replica):
            self.claim_as(worker, most, idle=False, begins=True)

    def take(self, number: int, lease: HeldLease) -> None:
        """See that what was claimed is the first turn of the queue, as earlier attempts left it."""
        should = self.of(number)
        turn = should.first
        should.holder = number
        turn.claim()
        assert (lease.turn.number, lease.attempt, lease.crashes) == (turn.number, turn.attempts, turn.counted)
        reason = lease.stop_reason.result() if lease.stop_reason.done() else None
        assert reason == (turn.wish.reason if turn.wish else None)
        assert self.loop.run(lease.variables()) == should.variables
        if turn.journal:
            past = self.loop.run(lease.load_replay_state())
            assert list(past.steps) == [text.encode() for text in turn.tail]
            assert dict.fromkeys(past.effects, True) | dict.fromkeys(past.begun, False) == turn.journal

    def write(self, number: int, name: str, *, effect: bool = False, step: PackedStep | None = None) -> None:
        lease, events = self.held[number], [TurnStarted(1, 0.0)] if step else []
        lease.emit(name, result=b"done" if effect else b"", step=step, events=events)
        with suppress(LeaseLostError):
            self.loop.run(lease.flush())
        assert lease.lost is not self.holds(number)
        if not self.holds(number):
            return
        self.of(number).expired = False  # who writes is alive
        turn = self.of(number).first
        turn.write(name, effect=effect)
        turn.log += [event.type for event in events]
        if step:
            turn.tail.append(step.data.decode())
            turn.fresh |= step.variables

    @precondition(lambda self: self.held)
    @rule(data=st.data(), given=writes)
    def emit(self, data: st.DataObject, given: Writes) -> None:
        self.emit_as(self.lease(data), **given)

    def emit_as(self, number: int, size: int, *, effect: bool, again: bool) -> None:
        """Write steps; an effect whose key is there (`again`) is no new one."""
        if self.holds(number) and not self.of(number).first.begun:
            self.write(number, f"started:{self.held[number].attempt}")
        journal = self.of(number).first.journal if self.holds(number) else {}
        known = [there for there in journal if there.startswith("step")] if again else []
        for place in range(size):
            self.count += 1
            text = str(self.count)
            piece = {"xy"[self.count % 2]: text.encode() if self.count % 3 else None}
            step = replace(a_step(text, self.held[number].turn.number), variables=piece)
            self.write(number, known[place % len(known)] if known else f"step:{text}", effect=effect, step=step)

    @precondition(lambda self: self.held)
    @rule(replica=replicas)
    def renew(self, replica: int) -> None:
        self.loop.run(self.loop.stores[replica].scheduler.renew(self.held))
        for number, lease in enumerate(self.held):
            assert lease.lost is not self.holds(number)
            if self.holds(number):
                should = self.of(number)
                should.expired, should.first.told = False, True
                assert lease.stop_reason.done() == (should.first.wish is not None)

    @precondition(lambda self: self.held)
    @rule(conversation=conversations)
    def expire(self, conversation: str) -> None:
        should = self.played[self.name(conversation)]
        if should.holder is not None:
            expire(self.raw, self.name(conversation))
            should.expired = True

    @precondition(lambda self: self.held)
    @rule(replica=replicas, late=late)
    def sweep(self, replica: int, late: bool) -> None:
        """Take back what expired; a sweep that comes `late` gives every holder time instead."""
        expired = sorted(name for name, should in self.played.items() if should.expired)
        self.raw.set(BEAT, int((time.time() - LEASE_S * late) * 1e6))
        assert self.loop.run(self.loop.stores[replica].scheduler.sweep()) == (0 if late else len(expired))
        for name in expired:  # of the same score: in the order of their names
            if late:
                self.played[name].expired = False
            else:
                self.played[name].sweep()
                self.ready.add(name)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), given=st.none() | writes, replica=replicas, late=late, woken=woken)
    def crash(self, data: st.DataObject, given: Writes | None, replica: int, late: bool, woken: Claim | None) -> None:
        """Let a worker be gone for a whole lease, perhaps after it wrote."""
        number = self.lease(data)
        if given:
            self.emit_as(number, **given)
        if self.holds(number):
            expire(self.raw, str(self.held[number].turn.ref))
            self.of(number).expired = True
        self.sweep(replica, late=late)
        self.wake(woken)

    @precondition(lambda self: any(should.holder is not None for should in self.played.values()))
    @rule()
    def come_back(self) -> None:
        """Let some process tell that it had lost the store: what is lost meanwhile is not counted."""
        self.raw.execute_command(*script("outage").command(PARTITION, (), {"lease_us": int(LEASE_S * 1_000_000)}))
        for should in self.played.values():
            if should.holder is not None:
                should.first.spared = True

    @precondition(lambda self: self.ready.alone is not None)
    @rule()
    def reserve_no_longer(self) -> None:
        assert self.raw.delete(ALONE)
        self.ready.alone = None

    @precondition(lambda self: self.held)
    @rule(data=st.data(), status=statuses, woken=woken)
    def commit(self, data: st.DataObject, status: Any, woken: Claim | None) -> None:
        self.end(self.lease(data), status)
        self.wake(woken)

    def end(self, number: int, status: Any) -> None:
        lease, should = self.held[number], self.of(number)
        work = lease.commit(replace(DONE, status=status))
        if should.deleted or number not in {should.holder, should.committed_by}:
            with pytest.raises(LeaseLostError):
                self.loop.run(work)
            return
        turn = self.loop.run(work)
        if should.holder == number:
            ended = ended_as(turn)
            assert ended in should.first.endings(status)
            should.commit(ended)
            self.requeue(str(lease.turn.ref))

    def requeue(self, name: str) -> None:
        if self.played[name].queue:
            self.ready.add(name)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), replica=replicas)
    def hand_back(self, data: st.DataObject, replica: int) -> None:
        number = self.lease(data)
        self.loop.run(self.loop.stores[replica].scheduler.hand_back(self.held[number]))
        if self.holds(number):
            self.of(number).hand_back()
            self.requeue(str(self.held[number].turn.ref))

    @precondition(lambda self: self.live())
    @rule(data=st.data(), replica=replicas)
    def cancel(self, data: st.DataObject, replica: int) -> None:
        name = data.draw(st.sampled_from(self.live()))
        should = self.played[name]
        number = data.draw(st.integers(1, should.turns + 1))
        work = self.loop.stores[replica].turns.cancel(ref_of(name), number)
        if number > should.turns:
            with pytest.raises(TurnNotFoundError):
                self.loop.run(work)
            return
        shown, landed = self.loop.run(work)
        turn = next((turn for turn in should.queue if turn.number == number), None)
        assert landed == (turn is not None and not turn.started)
        if turn is None:
            assert ended_as(shown) == should.ended[number]
        elif turn.started:
            assert (shown.status, shown.attempts) == ("running", turn.attempts)
            turn.stop(Wish())
        else:
            should.end(turn, Ended("cancelled", 0))
            assert ended_as(shown) == should.ended[number]
            if not should.queue:
                self.ready.remove(name)

    @precondition(lambda self: len(self.held) > 2 * len(self.played))
    @rule(conversation=conversations, replica=replicas)
    def delete(self, conversation: str, replica: int) -> None:
        name = self.name(conversation)
        should = self.played[name]
        work = self.loop.stores[replica].conversations.delete(ref_of(name))
        if not should.lives:
            with pytest.raises(ConversationNotFoundError):
                self.loop.run(work)
            return
        open_turns = [turn.number for turn in should.queue]
        ended = {turn.number: ended_as(turn) for turn in self.loop.run(work)}
        should.delete()
        assert ended == {number: should.ended[number] for number in open_turns}
        if name in self.ready.names:
            self.ready.remove(name)

    @invariant()
    def work_is_ready_or_leased(self) -> None:
        names = self.live()
        asked = (
            self.raw.pipeline(transaction=False).zrange(READY, 0, -1).zrangebyscore(LEASES, 1, 1).zrange(LEASES, 0, -1)
        )
        asked.exists(ALONE).zrange(OWNERS, 0, -1)
        asked.zrange(f"{PARTITION}:share:{AGENT}:local", 0, -1).zrange(f"{PARTITION}:share:{AGENT}:other", 0, -1)
        for name in names:
            asked.lrange(key("queue", name), 0, -1)
        ready, expired, leased, reserved, line, *shares_and_queues = asked.execute()
        shares, queues = shares_and_queues[:2], shares_and_queues[2:]
        assert line == self.ready.line
        assert shares == [self.ready.of("local"), self.ready.of("other")]
        assert reserved == (self.ready.alone is not None)
        assert expired == sorted(str(ref_of(name)) for name, should in self.played.items() if should.expired)
        assert not set(ready) & set(leased)
        assert {*ready, *leased} == {str(ref_of(name)) for name, queue in zip(names, queues, strict=True) if queue}
        assert ready == [str(ref_of(name)) for name in self.ready.names]
        assert queues == [[str(turn.number) for turn in self.played[name].queue] for name in names]

    @invariant()
    def what_a_turn_wrote_is_there_once_and_what_others_tried_is_not(self) -> None:
        names = [name for name in self.live() if self.played[name].queue]
        asked = self.raw.pipeline(transaction=False)
        for name in names:
            number = self.played[name].first.number
            asked.llen(key("steps", name, 0)).hkeys(key("journal", name, number)).llen(key("log", name, number))
            asked.hgetall(key("run", name, number))
        found = asked.execute()
        for place, name in enumerate(names):
            turn = self.played[name].first
            steps, journal, logged, run = found[4 * place : 4 * place + 4]
            assert (steps, set(journal)) == (len(self.played[name].shown), set(turn.journal))
            assert logged == len(turn.log)
            assert ("input" in run, "started" in run) == (True, turn.started)
            assert (int(run.get("attempts", 0)), int(run.get("counted", 0))) == (turn.attempts, turn.counted)
            assert run.get("cancel") == (turn.wish and turn.wish.flag)

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:  # else something has failed already
                self.play_all()
                for name, should in self.played.items():
                    self.see_that_all_is_over(name, should)
        finally:
            left = [found for name in self.played for found in self.raw.keys(f"*{name}*")]
            shares = self.raw.keys(f"{PARTITION}:share:*")
            self.raw.delete(LEASES, READY, OWNERS, ALONE, *shares, *left, *self.raw.keys(f"{PARTITION}:idem:*"))

    def play_all(self) -> None:
        for number in range(len(self.held)):
            if self.holds(number):
                self.end(number, "cancelled")
        while self.ready.names:
            first = len(self.held)
            self.claim_as(0, 3, idle=True, begins=True)
            for number in range(first, len(self.held)):
                self.end(number, "cancelled")
        assert self.raw.exists(LEASES, READY, OWNERS) == 0

    def see_that_all_is_over(self, name: str, should: Played) -> None:
        kinds = {found.removeprefix(f"{PARTITION}:").partition(":")[0] for found in self.raw.keys(f"*{name}*")}
        assert kinds <= ({"conversation", "log"} if should.deleted else AT_REST)
        assert set(should.ended) == set(should.logs) == set(range(1, should.turns + 1))
        self.see_that_logs_last(name, should)
        if not should.lives:
            return
        one, other = self.loop.stores
        assert self.loop.run(texts_of(one, name)) == should.steps
        page = self.loop.run(other.turns.turns(ref_of(name), 1, 100))
        assert {turn.number: ended_as(turn) for turn in page.items} == should.ended
        assert {turn.number: turn.last_seq for turn in page.items} == {n: len(log) for n, log in should.logs.items()}
        for turn in page.items:
            logged = self.loop.run(read(other, name, turn.number))
            assert logged == list(enumerate(should.logs[turn.number], 1))

    def see_that_logs_last(self, name: str, should: Played) -> None:
        """See that logs expire, or else that a live conversation has each of them once and a deleted one none."""
        apart = {int(found.rpartition(":")[2]) for found in self.raw.keys(key("log", name, "*"))}
        expiring = {number for number in apart if self.raw.ttl(key("log", name, number)) > 0}
        noted = {int(number) for number in self.raw.smembers(key("longlogs", name))}
        packed = {int(number) for number in self.raw.hkeys(key("logs", name))}
        if self.loop.log_ttl_s:
            assert (apart, expiring, noted, packed) == ({*should.logs}, apart, set(), set())
            if not should.lives:
                assert {number: log_of(self.raw, name, number) for number in should.logs} == should.logs
        else:
            assert (apart, expiring, apart & packed) == (noted, set(), set())
            assert apart | packed == ({*should.logs} if should.lives else set())


def ended_as(turn: Turn) -> Ended:
    code, outcome = code_of(turn), turn.outcome
    assert outcome
    by = re.match(r"Turn (\d+) ", outcome.error.message) if outcome.error else None
    return Ended(outcome.status, turn.attempts, code, int(by[1]) if by else 0)


async def read(store: Store, conversation: str, turn: int) -> list[tuple[int, str]]:
    with store.turns.reader(ref_of(conversation), looks=True, wants_all=True) as reader:
        return [(logged.seq, logged.event.type) async for logged in reader.follow(turn) if logged]


@pytest.mark.parametrize("log_ttl_s", [0, LOG_TTL_S])
def test_whatever_replicas_do_every_turn_ends_once(socket_path: Path, raw: Raw, sealer: Sealer, log_ttl_s: int) -> None:
    with Loop(socket_path, sealer, log_ttl_s) as loop:
        run_state_machine_as_test(
            cast("type[Machine]", partial(Machine, loop, raw)),
            settings=settings(
                max_examples=75,
                stateful_step_count=50,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
