"""Agents that stay in memory, ends of turns, and the share of an owner."""

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from smolsessions.agents.catalog import Catalog
from smolsessions.core.records import LOCAL, Ref, Turn
from smolsessions.store.store import Store
from smolsessions.worker.session_pool import SessionPool
from smolsessions.worker.threads import Threads
from smolsessions.worker.worker import Worker
from tests.support import stores
from tests.support.agents import make_scripted
from tests.support.owners import ADA, BOB, owner_line, request_as
from tests.support.service import PLAIN, Gate, Service, json_of, shared_service, totals, wait_until, write_private
from tests.support.store_server import StoreServer
from tests.support.stores import Raw
from tests.support.streaming import Event
from tests.support.turns import DONE, ECHO, PROMPT, png, submit_next, wait_for_end

# A service that keeps two agents, with few bytes.
few = shared_service(PLAIN | {"WARM_SESSIONS": "2", "WARM_MB": "0.0001"}, on_outside=True)


def warm(service: Service) -> float:
    return totals(service)["smolsessions_sessions_warm"]


def test_few_agents_stay_and_none_of_a_turn_that_failed_or_with_many_bytes(few: Service) -> None:
    for _ in range(2):
        few.play({"say": "large"}, images=[png("red", (100, 100))])
        wait_until(lambda: warm(few) == 0)
        few.follow_up(few.play({"say": "a"}), {"say": "a"})
        few.play({"raise": "kaputt"})
        wait_until(lambda: warm(few) == 1)
        for _ in range(3):
            few.play({"say": "a"})
        wait_until(lambda: warm(few) == 2)


def test_an_agent_is_dropped_if_unused_or_outdated(few: Service, outside: StoreServer, tmp_path: Path) -> None:
    first, apart = few.play({"say": "one"}), few.play({"say": "one"})
    with Service(tmp_path, PLAIN | outside.settings | {"WARM_IDLE_S": "0.2"}) as other:
        few.process.send_signal(signal.SIGSTOP)  # otherwise the conversation would be left to it for a moment
        try:
            turn = wait_for_end(other, submit_next(other, first, {"say": "two"}))
        finally:
            few.process.send_signal(signal.SIGCONT)
        assert (turn["status"], turn["attempts"]) == ("finished", 1)
        wait_until(lambda: warm(other) == 0)
    few.follow_up(apart, {"say": "two"})
    assert few.follow_up(first, PROMPT)["reply"] == few.follow_up(apart, PROMPT)["reply"]


def test_sessions_that_idle_for_too_long_are_closed_and_no_others() -> None:
    pool, closed = SessionPool(9, 0.2, 1.0), list[str]()

    def keep(name: str) -> float:
        session: Any = SimpleNamespace(held_bytes=0, close=partial(closed.append, name))
        pool.release(Ref(LOCAL, name), b"", session)
        return time.monotonic()

    since = max(map(keep, ("older", "old")))
    wait_until(lambda: time.monotonic() > since + 0.2)
    keep("new")
    pool.evict_idle()
    assert (closed, len(pool)) == (["older", "old"], 1)
    keep("new")
    assert (closed[2:], len(pool)) == (["new"], 1)


def test_a_turn_with_an_unknown_end_is_answered_as_accepted(tmp_path: Path, server: StoreServer, gate: Gate) -> None:
    body = {"agent": "scripted", "message": json.dumps([gate.script, DONE])}
    with Service(tmp_path / "service", PLAIN | server.settings) as service, ThreadPoolExecutor(1) as pool:
        answering = pool.submit(service.client.post, "/turn", json=body, headers={"Prefer": "wait=2"})
        gate.reached()
        server.freeze()
        try:
            answer = answering.result()
        finally:
            server.thaw()
        assert (answer.status_code, answer.json()["turn"]) == (202, 1), answer.text
        gate.open()
        assert wait_for_end(service, answer.json())["reply"] == "done"


async def test_a_turn_that_meets_a_defect_ends_no_other(one: Store, other: Store, raw: Raw) -> None:
    def on_end(turn: Turn) -> None:
        ended[turn.ref.id] = stores.error_code_of(turn)
        assert turn.ref.id != "b", "a defect"

    ended = dict[str, str | None]()
    await stores.emit(raw, await stores.begin(other, "a"), "model:1.m1")  # its result is no message
    stores.expire_lease(raw, "a")
    for name in "bc":
        await stores.submit(other, name)
    catalog = Catalog([(stores.AGENT, make_scripted)])
    worker = Worker(one.scheduler, catalog, SessionPool(0, 60, 0), Threads(1), on_end, deadline_s=60)
    working = asyncio.create_task(worker.run())
    await stores.wait_until_async(lambda: len(ended) == 3 or working.done())
    worker.retire()
    await working
    assert ended == {"a": "agent_changed", "b": "model_error", "c": "model_error"}


TURNS = 10
COLLECT: Event = {"call": [["collect", {}]]}
SETTINGS = {"AGENTS": "collector=tests.support.rememberers:make_collector", "DEMO_AGENTS": "0"}


def test_no_turn_leaves_objects_to_the_garbage_collector_or_in_memory(tmp_path: Path) -> None:
    with Service(tmp_path, SETTINGS) as service:
        first = service.play(COLLECT, DONE, agent="collector")
        for _ in range(TURNS):
            service.play(ECHO, DONE, agent="collector")
            service.follow_up(first, ECHO, DONE)
        service.follow_up(first, COLLECT, DONE)
        steps = service.steps(first)

    observed = [step["observations"] for step in steps if step["type"] == "action"]
    found, left = map(int, observed[-2].split())
    assert found < TURNS, "objects that only the collector freed, less than one a turn"
    assert left == 1, "the turn that counts"


SLOW = 5


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Service]:
    keys = write_private(tmp_path / "keys", owner_line("ada", ADA) + owner_line("bob", BOB))
    with Service(tmp_path / "service", {"API_KEYS_FILE": str(keys), "THREADS": "4", "PARTITIONS": "2"}) as service:
        yield service


def submit(service: Service, key: str, text: str) -> dict[str, Any]:
    return json_of(request_as(service, key, "POST", "/turn", {"message": text}, Prefer="respond-async"), 202)


def test_slow_turns_of_one_owner_keep_no_other_waiting(shared: Service, gate: Gate) -> None:
    slow = json.dumps([gate.script, {"say": "slow"}])
    first = [submit(shared, ADA, slow) for _ in range(SLOW)]
    wait_until(lambda: statuses(shared, ADA, first).count("running") == 3)
    other = request_as(shared, BOB, "POST", "/turn", {"message": '[{"say": "quick"}]'})
    assert (other.status_code, other.json()["reply"]) == (200, "quick")
    assert statuses(shared, ADA, first).count("running") == 3
    gate.open()
    wait_until(lambda: statuses(shared, ADA, first) == ["finished"] * SLOW)
    gate.path.unlink()
    second = [submit(shared, ADA, slow) for _ in range(SLOW)]  # now one of two owners
    wait_until(lambda: statuses(shared, ADA, second).count("running") == 2)
    bob = [submit(shared, BOB, slow) for _ in range(2)]
    wait_until(lambda: statuses(shared, BOB, bob) == ["running"] * 2)
    assert statuses(shared, ADA, second).count("running") == 2
    gate.open()
    wait_until(lambda: statuses(shared, ADA, second) == ["finished"] * SLOW)


def statuses(service: Service, key: str, turns: list[dict[str, Any]]) -> list[str]:
    paths = [f"/conversations/{turn['conversation_id']}/turns/{turn['turn']}" for turn in turns]
    return [request_as(service, key, "GET", path).json()["status"] for path in paths]
