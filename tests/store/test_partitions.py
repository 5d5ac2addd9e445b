"""A store of several partitions: each conversation lies in one, and requests to all of them are merged."""

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from smolsessions.core.records import MAX_CRASHES, ConversationFields, ConversationQuery
from smolsessions.store.store import Store
from smolsessions.store.turns.lease import HeldLease
from tests.support.problems import problem
from tests.support.service import CODELESS, PATIENCE_S, PLAIN, Service, run, wait_until
from tests.support.store_server import StoreServer, running_store
from tests.support.stores import AGENT, KIND, claim, open_replica, ref_of, submit
from tests.support.stores import DONE as DONE_TURN
from tests.support.stores import wait_until_async as soon
from tests.support.streaming import two_services
from tests.support.tiers import mostly_deep
from tests.support.turns import DONE, held_turn, submit_next, submit_turn, wait_for_end

PARTITIONS = 4
OWNER = ref_of("").owner
Raw = Any  # redis-py annotates the answers of both its clients at once


@pytest.fixture
def raw(outside: StoreServer) -> Iterator[Raw]:
    with Redis(unix_socket_path=str(outside.socket_path), decode_responses=True) as client:
        client.flushall()
        yield client


def opened(outside: StoreServer, *, affinity_s: float = 0) -> AbstractAsyncContextManager[Store]:
    return open_replica(outside.socket_path, partitions=PARTITIONS, affinity_s=affinity_s)


def place_of(raw: Raw, conversation: str) -> str:
    (key,) = raw.keys(f"*:conversation:{ref_of(conversation)}")
    return str(key.partition(":")[0])


async def test_who_waits_for_longest_is_taken_first_wherever_it_lies(outside: StoreServer, raw: Raw) -> None:
    async with opened(outside) as store:
        for number in range(40):
            await submit(store, str(number))
        taken = [int((await claim(store, most=1))[0].turn.ref.id) for _ in range(20)]
        assert len({place_of(raw, str(name)) for name in taken[:PARTITIONS]}) == PARTITIONS  # none is known at first
        early = sum(name >= 20 for name in taken)
        assert taken[PARTITIONS:] == sorted(taken[PARTITIONS:])
        assert early <= PARTITIONS
        assert len(await claim(store, most=100)) == 20  # and leaves nothing behind


async def test_one_that_has_nothing_hears_of_work_at_any_partition(outside: StoreServer, raw: Raw) -> None:
    assert raw.ping()
    async with opened(outside) as web, opened(outside) as work:
        for number in range(8):
            taken = asyncio.create_task(claim_soon(work))
            await soon(lambda: work.scheduler.waiting)
            await submit(web, str(number))
            async with asyncio.timeout(PATIENCE_S):
                assert [lease.turn.ref.id for lease in await taken] == [str(number)]


async def claim_soon(store: Store) -> list[HeldLease]:
    while not (leases := await claim(store)):
        await store.scheduler.wait_for_work(60)
    return leases


@pytest.mark.parametrize("it_came", [False, True], ids=["after it stopped", "before it stopped"])
async def test_a_late_claim_of_one_that_stops_is_returned(outside: StoreServer, raw: Raw, *, it_came: bool) -> None:
    assert raw.ping()
    async with opened(outside) as ending, opened(outside) as other:
        for number in range(12):
            await submit(other, str(number))
        outside.freeze()
        try:
            assert await claim(ending, most=2) == []
            if not it_came:
                ending.scheduler.stop_claiming()
        finally:
            outside.thaw()
        async with asyncio.timeout(PATIENCE_S):
            if it_came:
                await ending.scheduler.all_given_back()  # except those that fitted
            ending.scheduler.stop_claiming()
            await ending.scheduler.all_given_back()
        assert await claim(ending) == []
        async with asyncio.timeout(PATIENCE_S):
            taken = {lease.turn.ref.id for lease in await claim(other, most=100)}
        assert taken == {str(number) for number in range(12)}


async def test_nothing_is_taken_anywhere_beside_a_turn_that_is_suspected(outside: StoreServer, raw: Raw) -> None:
    async with opened(outside) as store:
        for number in range(12):
            await submit(store, str(number))
        suspect = f"{place_of(raw, '3')}:run:{ref_of('3')}:1"
        raw.hset(suspect, "counted", MAX_CRASHES - 1)
        claims = []
        while leases := await store.scheduler.claim({AGENT: KIND}, 20, idle=True):
            claims.append({lease.turn.ref.id for lease in leases})
        assert {"3"} in claims
        assert set.union(*claims) == {str(number) for number in range(12)}


async def test_a_busy_one_takes_nothing_until_it_is_free_for_a_suspect(outside: StoreServer, raw: Raw) -> None:
    async with opened(outside) as store:
        await submit(store, "3")
        place = place_of(raw, "3")
        raw.hset(f"{place}:run:{ref_of('3')}:1", "counted", MAX_CRASHES - 1)
        raw.hset(f"{place}:conversation:{ref_of('3')}", "fences", MAX_CRASHES - 1)
        others = [str(number) for number in range(4, 40)]
        for name in others:
            await submit(store, name)
        taken: list[str] = []
        while leases := await store.scheduler.claim({AGENT: KIND}, 1, idle=False):
            taken += [lease.turn.ref.id for lease in leases]
        assert "3" not in taken
        assert len(taken) < PARTITIONS  # from the partitions that were visited earlier
        for _ in range(2 * PARTITIONS):
            assert await store.scheduler.claim({AGENT: KIND}, 1, idle=False) == []
        raw.delete(f"{place}:alone")
        raw.config_set("maxmemory", 1)  # no worker can reserve it: others go on
        while leases := await store.scheduler.claim({AGENT: KIND}, 9, idle=False):
            taken += [lease.turn.ref.id for lease in leases]
        raw.config_set("maxmemory", 0)
        assert sorted(taken) == sorted(others)
        assert [lease.turn.ref.id for lease in await store.scheduler.claim({AGENT: KIND}, 9, idle=True)] == ["3"]


async def test_a_conversation_is_left_for_a_moment_to_who_played_it_last(outside: StoreServer, raw: Raw) -> None:
    assert raw.ping()
    async with opened(outside, affinity_s=1) as one, opened(outside, affinity_s=1) as other:
        await submit(one, "c")
        (lease,) = await claim(one)
        await lease.commit(DONE_TURN)
        await submit(other, "c", new=False)
        assert await claim(other) == []
        (lease,) = await claim(one)
        await lease.commit(DONE_TURN)
        await submit(one, "c", new=False)
        begun = time.monotonic()
        async with asyncio.timeout(PATIENCE_S):
            (lease,) = await claim_soon(other)
        assert lease.turn.number == 3
        assert time.monotonic() - begun > 0.5


async def test_a_conversation_whose_last_worker_has_ended_waits_for_no_one(outside: StoreServer, raw: Raw) -> None:
    assert raw.ping()
    async with opened(outside, affinity_s=60) as other:
        async with opened(outside, affinity_s=60) as one:
            await submit(one, "c")
            (lease,) = await claim(one)
            await lease.commit(DONE_TURN)
            await submit(other, "c", new=False)
            assert await claim(other) == []
        async with asyncio.timeout(PATIENCE_S):
            while not (leases := await claim(other)):
                other.scheduler.nudge()
        assert leases[0].turn.number == 2


async def list_all(store: Store, limit: int) -> list[str]:
    found, cursor, is_first = list[str](), None, True
    while cursor or is_first:
        page = await store.conversations.conversations(OWNER, ConversationQuery(sort="created"), cursor, limit)
        assert len(page.items) <= limit
        found += [conversation.ref.id for conversation in page.items]
        assert len(found) == len(set(found))
        cursor, is_first = page.next_cursor, False
    return found


async def test_a_list_of_conversations_is_merged_newest_first(outside: StoreServer, raw: Raw) -> None:
    assert raw.ping()
    async with opened(outside) as store:
        names = [str(number) for number in range(30)]
        for name in names:
            await store.conversations.create(ref_of(name), AGENT, ConversationFields({}))
        for limit in (1, 3, 7, 29, 30, 31):
            assert await list_all(store, limit) == names[::-1]


@pytest.fixture(scope="module")
def pair(outside: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Service]]:
    outside.ask("FLUSHALL")
    settings = PLAIN | outside.settings | {"PARTITIONS": str(PARTITIONS)}
    with two_services(tmp_path_factory.mktemp("pair"), settings) as both:
        yield both


def say(service: Service, key: str, **body: Any) -> Any:
    return service.client.post("/turn", json={"message": "a", "agent": "demo"} | body, headers={"Idempotency-Key": key})


def test_a_key_finds_its_conversation_and_no_other_wherever_both_lie(pair: tuple[Service, Service]) -> None:
    one, other = pair
    for number in range(8):
        for name in "xyz":
            assert one.post("/conversations", id=f"{name}{number}", agent="demo").status_code == 201
        first, again = say(one, f"new-{number}").json(), say(other, f"new-{number}").json()
        assert (first["conversation_id"], first["turn"]) == (again["conversation_id"], again["turn"])
        assert problem(say(other, f"new-{number}", message="else"), 422, "idempotency_key_reused")
        assert problem(say(other, f"new-{number}", conversation_id=f"z{number}"), 422, "idempotency_key_reused")
        assert say(one, f"named-{number}", conversation_id=f"x{number}").json()["turn"] == 1
        assert say(other, f"named-{number}", conversation_id=f"x{number}").json()["turn"] == 1
        assert problem(say(other, f"named-{number}", conversation_id=f"y{number}"), 422, "idempotency_key_reused")
        assert one.get(f"/conversations/y{number}")["turn_count"] == 0


def test_the_store_fixes_its_partitions(pair: tuple[Service, Service], outside: StoreServer, tmp_path: Path) -> None:
    turn = say(pair[0], "kept").json()
    with Service(tmp_path / "unset", PLAIN | outside.settings) as service:
        assert service.get(f"/conversations/{turn['conversation_id']}")["turn_count"] == 1
    status, _, said = run(tmp_path / "other", outside.settings | {"PARTITIONS": str(PARTITIONS + 1)}, "serve")
    assert status == 2
    assert f"has {PARTITIONS} partitions" in said
    assert "unset it" in said


@pytest.mark.parametrize("partitions", mostly_deep(["1", "4"], fast=["1"]))
def test_a_store_that_refuses_is_asked_again_with_pauses(partitions: str, tmp_path: Path) -> None:
    with running_store(tmp_path / "store") as outside, Redis(unix_socket_path=str(outside.socket_path)) as client:
        raw: Raw = client

        def refused() -> int:
            return int(raw.info("errorstats").get("errorstat_NOREPLICAS", {"count": 0})["count"])

        settings = PLAIN | outside.settings | {"PARTITIONS": partitions}
        with (
            Service(tmp_path / "web", settings, command=("web",)) as web,
            Service(tmp_path / "work", settings, command=("work",)) as work,
        ):
            work.process.send_signal(signal.SIGSTOP)  # so that the turn waits when the worker next looks
            turn = submit_turn(web, DONE)
            raw.config_set("min-replicas-to-write", 1)
            work.process.send_signal(signal.SIGCONT)
            wait_until(refused)
            start, before = time.monotonic(), refused()
            wait_until(lambda: time.monotonic() > start + 1)
            assert refused() - before < 30 * int(partitions)
            raw.config_set("min-replicas-to-write", 0)
            assert wait_for_end(web, turn)["reply"] == "done"


def test_a_store_that_comes_back_empty_is_told_what_it_was_or_given_up(tmp_path: Path) -> None:
    with running_store(tmp_path / "store") as outside, Redis(unix_socket_path=str(outside.socket_path)) as raw:
        settings = PLAIN | outside.settings | {"PARTITIONS": str(PARTITIONS)}
        with Service(tmp_path / "a", settings) as service:
            raw.flushall()
            raw.client_kill_filter(_type="normal", skipme=True)
            wait_until(lambda: raw.hget("{p000}:about", "partitions") == str(PARTITIONS).encode())
            wait_until(lambda: "the store came back empty" in service.log())
            with Service(tmp_path / "b", PLAIN | outside.settings) as other:
                first, again = say(service, "k").json(), say(other, "k").json()
                assert first["conversation_id"] == again["conversation_id"]
            raw.flushall()
            raw.hset("{p000}:about", "partitions", PARTITIONS + 1)
            raw.client_kill_filter(_type="normal", skipme=True)
            assert service.process.wait(PATIENCE_S) == 2
            assert "the store was replaced by another one" in service.log()


def test_beyond_its_bound_the_queue_takes_no_more(tmp_path: Path) -> None:
    settings = CODELESS | {"THREADS": "1", "MAX_QUEUED_TURNS": "2"}
    with (
        running_store(tmp_path / "store") as outside,
        Service(tmp_path / "service", outside.settings | settings) as service,
    ):
        with held_turn(service, tmp_path / "gate") as first:
            waiting = [submit_turn(service, DONE), submit_turn(service, DONE)]
            refused = service.post("/turn", message="[]", agent="scripted")
            assert problem(refused, 503, "overloaded")["detail"]
            assert int(refused.headers["Retry-After"]) > 0
            assert submit_turn(service, {"say": "another agent"}, agent="planner")["status"] == "queued"
            figures = service.client.get("/metrics").text
            assert 'smolsessions_queue_length{agent="scripted"} 2.0' in figures
            assert 'smolsessions_queue_length{agent="planner"} 1.0' in figures
            assert 'smolsessions_queue_length{agent="demo"} 0.0' in figures
            assert 0 < float(figures.split('smolsessions_queue_oldest_seconds{agent="scripted"} ')[1].split()[0]) < 60
            behind = submit_next(service, first, DONE)  # waits for its conversation, not for a thread
            with Redis(unix_socket_path=str(outside.socket_path)) as client:
                assert len(client.keys("*:conversation:*")) == 4
        for turn in (*waiting, behind):
            assert wait_for_end(service, turn)["status"] == "finished"
        assert service.play({"say": "there is room again"})["reply"] == "there is room again"
